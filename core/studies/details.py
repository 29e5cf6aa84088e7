"""Tables of single cells, and the accounting of attention's FLOPs and saved tensors.

Letters: B batch, S context, d d_model, w bytes per number. A (B, S, S) matrix in memory counts
in full, masked half included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import fsum
from typing import Any

from sysbench.core.compare.comparison import break_even
from sysbench.core.record.memory import Oom, Origin
from sysbench.core.record.record import Kernels, Memory, Record
from sysbench.core.spec.fields import COMPILE_KEYS
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.kernel_tables import question_table
from sysbench.core.tables.memory_tables import largest_table, ledger_table
from sysbench.core.tables.numerics_tables import accumulation_table, dtypes_table
from sysbench.core.tables.table import Cell, Row, Table
from sysbench.core.trace.questions import by_name, questions_of

MATRICES_AT_ONCE = 2
"""Minimum number of (B, S, S) matrices alive in forward: softmax reads one and writes another."""


def score_bytes(spec: RunSpec) -> int:
    """Bytes of one matrix of scores: B x heads x S x S x w."""
    return spec.batch * spec.heads * spec.context**2 * spec.precision_row.compute_bytes


def score_matrices_bytes(spec: RunSpec) -> int:
    """Return a lower bound of the peak of one attention step, in bytes."""
    tensors = 4 * spec.tokens_per_step * spec.d_model * spec.precision_row.compute_bytes
    written_out = spec.attention_row.writes_scores
    return tensors + (MATRICES_AT_ONCE * score_bytes(spec) if written_out else 0)


def oom_of(record: Record) -> Oom | None:
    return next((row.oom for row in record.passes if row.oom is not None), None)


def accounting_table(record: Record, others: Sequence[Record] = ()) -> Table:
    rows: list[Row] = []
    if (oom := oom_of(record)) is not None:
        spec = RunSpec(**record.spec)
        width = spec.precision_row.compute_bytes
        shape = f"{spec.batch} × {spec.context} × {spec.d_model} × {width}"
        tensor = spec.tokens_per_step * spec.d_model * width
        scores = f"{spec.batch * spec.heads} × {spec.context}² × {width}"
        rows = [
            ("q, k, v and the output, each", f"B S d w = {shape}", tensor),
            ("one matrix of scores", f"B h S² w = {scores}", score_bytes(spec)),
            ("failed request", oom.phase, oom.requested_bytes),
            ("allocated then", "", oom.allocated_bytes),
            ("free then", "", oom.free_bytes),
        ]
    return Table(
        name="accounting",
        title="Account of a cell that ran out of memory",
        columns=("what", "formula", "bytes"),
        rows=tuple(rows),
    )


BLOCKS = "blocks"
"""Module that contains the identical blocks."""


def saved_table(record: Record) -> Table | None:
    """List operations of one block by saved bytes; shares are of the block.

    None if the blocks' activations cannot be separated: rows add up only if the activations under
    one call are all that the blocks saved.
    """
    memory, layers = record.memory, record.spec.get("layers")
    if memory is None or not layers:
        return None
    saved_bytes = next(
        (module.activation_bytes for module in memory.modules if module.module == BLOCKS), 0
    )
    rows = tuple(
        (
            *(*_operation(origin.stack), origin.blocks // layers),
            *(origin.bytes // layers, origin.bytes / saved_bytes),
        )
        for origin in _under_one_call(memory, saved_bytes)
    )
    return Table(
        name="saved",
        title="What one block saves for backward",
        columns=("operation", "called in", "tensors", "bytes", "share"),
        rows=rows,
    )


def _under_one_call(memory: Memory, saved_bytes: int) -> Sequence[Origin]:
    """Return activations under one call, a common outermost part of their stacks, with as many
    bytes as all blocks; empty if there is none."""
    activations = [origin for origin in memory.origins if origin.category == "activations"]
    bytes_by_call: Counter[tuple[str, ...]] = Counter()
    for origin in activations:
        frames = tuple(reversed(origin.stack))
        bytes_by_call.update({frames[:depth]: origin.bytes for depth in range(1, len(frames) + 1)})
    calls = [
        frames for frames, size in bytes_by_call.items() if saved_bytes and size == saved_bytes
    ]
    if not calls:
        return ()
    call = max(calls, key=len)
    return [origin for origin in activations if tuple(reversed(origin.stack))[: len(call)] == call]


def _operation(stack: Sequence[str]) -> tuple[str, str]:
    has_operation = stack[0].startswith("aten::") and len(stack) > 1
    return (stack[0], stack[1]) if has_operation else ("", stack[0])


Detail = Callable[[Record, Sequence[Record]], Table | None]
"""Makes a table of one cell's record; the second argument has the records of all cells."""


SUMMARY = (
    *("Time %", "Total Time (ms)", "Instances", "Avg (us)", "Med (us)", "Min (us)", "Max (us)"),
    *("StdDev (us)", "Name"),
)
"""Columns of nsys' "CUDA GPU Kernel Summary"."""


def kernel_summary(record: Record, _: Sequence[Record]) -> Table | None:
    """Summarise the kernels by name, longest first.

    From the nsys pass if it ran, else from one traced step, which has no medians and deviations.
    """
    rows: list[Row]
    if record.nsys is not None:
        rows = [
            (
                *(100 * row.share, row.total_ns / 1e6, row.instances),
                *map(_us, (row.mean_ns, row.median_ns, row.min_ns, row.max_ns, row.std_ns)),
                row.name,
            )
            for row in record.nsys.kernel_summary
        ]
    elif record.kernels is not None:
        rows = [*_traced_rows(record.kernels)]
    else:
        return None
    return Table(name="kernels", title="Kernels by name", columns=SUMMARY, rows=tuple(rows))


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e3


def _traced_rows(kernels: Kernels) -> Iterator[Row]:
    total_ns = fsum(row.exclusive_ns for row in kernels.rows) or 1.0
    for kernel in by_name(kernels.rows):
        namesakes = [row for row in kernels.rows if row.name == kernel.name]
        mean_ns = kernel.ns / kernel.calls if kernel.calls else None
        low_ns = min(row.min_ns for row in namesakes)
        high_ns = max(row.max_ns for row in namesakes)
        yield (
            *(100 * kernel.ns / total_ns, kernel.ns / 1e6, kernel.calls),
            *map(_us, (mean_ns, None, low_ns, high_ns, None)),
            kernel.name,
        )


def questions(record: Record, records: Sequence[Record]) -> Table | None:
    """Answer the handout's questions; cells with another kind of step fill gaps."""
    spec = record.spec | {"step": ""}
    others = [
        other for other in records if other.spec | {"step": ""} == spec and other.id != record.id
    ]
    return question_table(questions_of(record, others))


def compilation(record: Record, records: Sequence[Record]) -> Table | None:
    block = record.compile
    if block is None:
        return None
    worth = break_even(record, _eager(record, records), "the eager cell has no value")
    cells: dict[str, Cell] = {
        "Cold (s)": block.cold_seconds,
        "Warm (s)": block.warm_seconds,
        "First step (ms)": block.first_step_ms,
        "Graphs": block.graphs,
        "Graph breaks": sum(block.graph_breaks.values()),
        "Recompiles": block.recompiles,
        "Compiled": block.extent,
        "Saved (ms)": worth.saved_ms,
        "Break-even steps, cold": worth.steps_cold,
        "Break-even steps, warm": worth.steps_warm,
        "Why": "; ".join(dict.fromkeys(worth.missing.values())),
        "Compiled against eager": worth.tested or None,
    }
    return Table(
        name="compilation",
        title="Compilation",
        columns=tuple(cells),
        rows=(tuple(cells.values()),),
    )


def _eager(record: Record, records: Sequence[Record]) -> Record | None:
    def work(of: Record) -> dict[str, Any]:
        return {key: value for key, value in of.spec.items() if key not in COMPILE_KEYS}

    eager = (other for other in records if other.spec["compile"] == "off")
    return next((other for other in eager if work(other) == work(record)), None)


EACH: dict[str, Detail] = {
    "kernels": kernel_summary,
    "questions": questions,
    "compilation": compilation,
    "ledger": lambda record, _: ledger_table(record.memory) if record.memory else None,
    "largest": lambda record, _: largest_table(record.memory) if record.memory else None,
    "saved": lambda record, _: saved_table(record),
    "accounting": accounting_table,
    "accumulation": lambda record, _: (
        accumulation_table(record.numerics.accumulations) if record.numerics else None
    ),
    "dtypes": lambda record, _: dtypes_table(record.numerics.dtypes) if record.numerics else None,
}
