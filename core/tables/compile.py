"""What torch.compile did, as tables: the facts, what it could not do, the kernels it made."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.compare import BreakEven
from ..analysis.kernels.provenance import row_key
from ..analysis.memory.owners import WHOLE_MODEL
from ..record.record import Compile, GeneratedKernel, KernelRow, Kernels, Record
from .table import Cell, Row, Table, facts

EXTENTS = {
    "whole": "whole: every frame became a graph",
    "part": "in part: what else ran eagerly is in the table of gaps",
    "none": "nothing: this is an eager run",
}


def compile_tables(record: Record, worth: BreakEven | None = None) -> list[Table]:
    """All of them that there is anything in."""
    if record.compile is None:
        return []
    tables = [compile_table(record.compile, worth), gaps_table(record.compile)]
    if record.kernels:
        tables.append(generated_table(record.kernels))
    return [table for table in tables if table.rows]


def compile_table(block: Compile, worth: BreakEven | None = None) -> Table:
    """The facts: how much was compiled, in how many seconds, and after how many steps it pays."""
    values: dict[str, Cell] = {
        "compiled": EXTENTS[block.extent] if block.extent else None,
        "mode": block.mode,
        "backend": block.backend,
        "scope": block.scope,
        "first_step_ms": block.first_step_ms,
        "compile_seconds": block.compile_seconds,
        **{f"of these {name}": value for name, value in block.parts_seconds.items()},
        "cold_seconds": block.cold_seconds,
        "warm_seconds": block.warm_seconds,
        "cache_hits": block.cache_hits,
        "cache_misses": block.cache_misses,
        "graphs": block.graphs,
        "graph_breaks": sum(block.graph_breaks.values()),
        "recompiles": block.recompiles,
        "fell_back": block.fell_back,
    }
    missing = {"compiled": "the record is of an earlier version", **block.missing}
    if block.cache_hits is None:
        missing["cache_hits"] = missing["cache_misses"] = "Inductor's cache was not asked"
    if worth is not None:
        values |= _worth(worth)
        missing |= {_WORTH[key]: reason for key, reason in worth.missing.items()}
    return facts("compile", "Compilation: what torch.compile did", values, missing)


_WORTH = {
    "compiled_ms": "compiled step_ms",
    "eager_ms": "eager step_ms",
    "eager_run": "eager run",
    "saved_ms": "saved per step_ms",
    "speed_up": "eager over compiled",
    "steps_cold": "break-even steps, cold",
    "steps_warm": "break-even steps, warm",
}


def _worth(worth: BreakEven) -> dict[str, Cell]:
    values = {key: getattr(worth, key) for key in _WORTH}
    return {
        label: values[key]
        for key, label in _WORTH.items()
        if values[key] is not None or key in worth.missing
    }


def gaps_table(block: Compile) -> Table:
    """What kept the run from being compiled once and whole; empty is good."""
    breaks = {(one.place, one.reason) for one in block.breaks}
    rows: list[Row] = [
        ("graph break", one.count, one.place, one.reason, one.code) for one in block.breaks
    ]
    rows += [("recompile", 1, one.place, one.guard, None) for one in block.recompiled]
    rows += [
        (one.cause, 1, one.place, one.reason, None)
        for one in block.eager_parts
        if (one.place, one.reason) not in breaks
    ]
    rows += [
        ("no CUDA graph", count, None, reason, None)
        for reason, count in block.cudagraph_skips.items()
    ]
    return Table(
        name="compile_gaps",
        title="Gaps: what broke a graph, compiled again, or ran eagerly",
        columns=("what", "count", "place", "reason", "code"),
        rows=tuple(rows),
    )


def generated_table(kernels: Kernels) -> Table:
    """Kernels that the compiler made, decoded, with their time in the traced step."""
    fused = [kernel for kernel in kernels.generated if kernel.fused]
    rows = [_generated_row(kernel, kernels, fused) for kernel in fused]
    return Table(
        name="generated",
        title="Generated kernels: what each is made of, bytes as the compiler counts them",
        columns=(
            *("exclusive_ns", "calls", "per_call_bytes", "name", "phase", "module", "ops"),
            *("sources", "file"),
        ),
        rows=tuple(sorted(rows, key=lambda row: -float(row[0] or 0))),
    )


def _generated_row(
    kernel: GeneratedKernel, kernels: Kernels, fused: Sequence[GeneratedKernel]
) -> Row:
    traced = _traced(kernel, kernels, fused)
    return (
        sum(row.exclusive_ns for row in traced) if traced else None,
        sum(row.calls for row in traced) if traced else None,
        kernel.bytes_per_call,
        kernel.name,
        kernel.phase,
        kernel.module or WHOLE_MODEL,
        ", ".join(kernel.ops),
        "; ".join(kernel.sources),
        kernel.file,
    )


def _traced(
    kernel: GeneratedKernel, kernels: Kernels, fused: Sequence[GeneratedKernel]
) -> list[KernelRow]:
    """The rows of the trace that are this kernel; none if they may be another of its name."""
    alike = [one for one in fused if (one.name, one.phase) == (kernel.name, kernel.phase)]
    rows = [row for row in kernels.rows if row_key(row) == (kernel.name, kernel.phase)]
    if len(alike) == 1:
        return rows
    if sum(one.module == kernel.module for one in alike) > 1:
        return []
    return [row for row in rows if row.module == (kernel.module or WHOLE_MODEL)]
