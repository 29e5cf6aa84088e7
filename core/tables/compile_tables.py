"""Tables of torch.compile: facts, gaps and generated kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sysbench.core.compare.comparison import BreakEven
from sysbench.core.formatting import counted, significant
from sysbench.core.record.record import Compile, GeneratedKernel, KernelRow, Kernels, Record
from sysbench.core.tables.table import Cell, Column, Table, attributes, facts, tabulate
from sysbench.core.trace.classify import WHOLE_MODEL
from sysbench.core.trace.provenance import row_key

EXTENTS = {
    "whole": "whole: every frame became a graph",
    "part": "in part: the rest ran eagerly, see the table of gaps",
    "none": "nothing: this is an eager run",
}


def compile_tables(record: Record, worth: BreakEven | None = None) -> list[Table]:
    if record.compile is None:
        return []
    tables = [compile_table(record.compile, worth), gaps_table(record.compile)]
    if record.kernels:
        tables.append(generated_table(record.kernels))
    return [table for table in tables if table.rows]


def compile_table(block: Compile, worth: BreakEven | None = None) -> Table:
    """What was compiled, how long it took, and the break-even step count."""
    values: dict[str, Cell] = {
        "compiled": EXTENTS[block.extent] if block.extent else None,
        **attributes(block, "mode", "backend", "scope", "first_step_ms", "compile_seconds"),
        **{f"of these {name}": value for name, value in block.parts_seconds.items()},
        **attributes(block, "cold_seconds", "warm_seconds", "cache_hits", "cache_misses", "graphs"),
        "graph_breaks": sum(block.graph_breaks.values()),
        **attributes(block, "recompiles", "fell_back"),
    }
    missing = {"compiled": "the record is of an earlier version", **block.missing}
    if block.cache_hits is None:
        missing["cache_hits"] = missing["cache_misses"] = "Inductor's cache was not asked"
    if worth is not None:
        values |= _worth(worth)
        missing |= {_WORTH[key]: reason for key, reason in worth.missing.items()}
    return facts("compile", "Compilation: what torch.compile did", values, missing)


def caches_in_words(block: Compile) -> str:
    """Describe the caches of ``compile_seconds``: ``with empty caches, 3.2 s with full ones``."""
    if block.cold_seconds is not None:
        how = "with empty caches"
        if block.warm_seconds is not None:
            how += f", {significant(block.warm_seconds, 3)} s with full ones"
        return how
    if block.warm_seconds is not None:
        return "with full caches"
    if block.cache_misses:
        return f"{counted(block.cache_hits or 0, 'graph')} from the cache, {block.cache_misses} not"
    return "without a cache"


_WORTH = {
    "compiled_ms": "compiled step_ms",
    "eager_ms": "eager step_ms",
    "eager_run": "eager run",
    "saved_ms": "saved per step_ms",
    "speed_up": "eager over compiled",
    "steps_cold": "break-even steps, cold",
    "steps_warm": "break-even steps, warm",
    "tested": "compiled against eager",
}


def _worth(worth: BreakEven) -> dict[str, Cell]:
    values = {key: getattr(worth, key) for key in _WORTH}
    return {
        label: values[key]
        for key, label in _WORTH.items()
        if values[key] not in (None, "") or key in worth.missing
    }


@dataclass(frozen=True, slots=True)
class _Gap:
    """A part that did not become one whole graph, compiled once."""

    what: str
    count: int
    place: str | None
    reason: str
    code: str | None = None


def gaps_table(block: Compile) -> Table:
    """Graph breaks, recompiles and eager parts."""
    return tabulate(
        _gaps(block),
        Column("what", about="graph break, recompile limit, or another gap"),
        Column("count", about="number of occurrences"),
        Column("place", about="file and line"),
        Column("reason", about="reason that the compiler gives"),
        Column("code", about="source line"),
        name="compile_gaps",
        title="Gaps: what broke a graph, compiled again, or ran eagerly",
    )


def _gaps(block: Compile) -> Iterator[_Gap]:
    for graph_break in block.breaks:
        yield _Gap(
            "graph break",
            graph_break.count,
            graph_break.place,
            graph_break.reason,
            graph_break.code,
        )
    for recompile in block.recompiled:
        yield _Gap("recompile", 1, recompile.place, recompile.guard)
    breaks = {(graph_break.place, graph_break.reason) for graph_break in block.breaks}
    for eager in block.eager_parts:
        if (eager.place, eager.reason) not in breaks:
            yield _Gap(eager.cause, 1, eager.place, eager.reason)
    for reason, count in block.cudagraph_skips.items():
        yield _Gap("no CUDA graph", count, None, reason)


@dataclass(frozen=True, slots=True)
class _Generated:
    """A generated kernel and its rows in the trace."""

    kernel: GeneratedKernel
    traced: list[KernelRow]

    @property
    def exclusive_ns(self) -> float | None:
        return sum(row.exclusive_ns for row in self.traced) if self.traced else None

    @property
    def calls(self) -> float | None:
        return sum(row.calls for row in self.traced) if self.traced else None


def generated_table(kernels: Kernels) -> Table:
    """Generated kernels with their time in the traced step."""
    fused = [kernel for kernel in kernels.generated if kernel.fused]
    rows = [_Generated(kernel, _trace_rows(kernel, kernels, fused)) for kernel in fused]
    return tabulate(
        sorted(rows, key=lambda row: -(row.exclusive_ns or 0.0)),
        "exclusive_ns",
        "calls",
        Column(
            "per_call_bytes", "kernel.bytes_per_call", about="bytes that one call reads and writes"
        ),
        Column("name", "kernel.name"),
        Column("phase", "kernel.phase"),
        Column("module", lambda row: row.kernel.module or WHOLE_MODEL),
        Column("ops", lambda row: ", ".join(row.kernel.ops)),
        Column(
            "sources",
            lambda row: "; ".join(row.kernel.sources),
            about="lines of the model in the kernel",
        ),
        Column("file", "kernel.file", about="file of the generated code"),
        name="generated",
        title="Generated kernels: what each is made of, bytes as the compiler counts them",
    )


def _trace_rows(
    kernel: GeneratedKernel, kernels: Kernels, fused: Sequence[GeneratedKernel]
) -> list[KernelRow]:
    """Return the trace rows of this kernel; empty if another kernel of the same name may own
    them."""
    namesakes = [
        other for other in fused if (other.name, other.phase) == (kernel.name, kernel.phase)
    ]
    rows = [row for row in kernels.rows if row_key(row) == (kernel.name, kernel.phase)]
    if len(namesakes) == 1:
        return rows
    if sum(other.module == kernel.module for other in namesakes) > 1:
        return []
    return [row for row in rows if row.module == (kernel.module or WHOLE_MODEL)]
