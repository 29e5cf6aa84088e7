"""Tables that every cell has of its own, for a study that puts them under each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import fsum
from typing import Any

from ...analysis.compare import break_even
from ...analysis.kernels.questions import by_name, questions_of
from ...record.record import Kernels, Nsys, Record
from ...runs.related import COMPILE_KEYS
from ...tables.kernels import question_table
from ...tables.memory import largest_table, ledger_table
from ...tables.numerics import accumulation_table, dtypes_table
from ...tables.table import Row, Table
from ..accounting import accounting_table
from ..saved import saved_table

Detail = Callable[[Record, Sequence[Record]], Table | None]
"""Of one cell's record; the second argument are those of all cells."""


def kernel_summary(record: Record, _: Sequence[Record]) -> Table | None:
    """The columns of nsys' "CUDA GPU Kernel Summary", the longest first.

    From the nsys pass where it ran. Else one step of the trace pass, operators on the CPU:
    medians and deviations of single calls are not in its rows and stay empty.
    """
    if record.nsys is not None:
        rows = tuple(_as_nsys_has_it(record.nsys))
    elif record.kernels is not None:
        rows = tuple(_as_traced(record.kernels))
    else:
        return None
    return Table(
        name="kernels",
        title="Kernels by name",
        columns=(
            *("Time %", "Total Time (ms)", "Instances", "Avg (us)", "Med (us)"),
            *("Min (us)", "Max (us)", "StdDev (us)", "Name"),
        ),
        rows=rows,
    )


def _as_nsys_has_it(nsys: Nsys) -> Iterator[Row]:
    for row in nsys.kernel_summary:
        yield (
            *(100 * row.share, row.total_ns / 1e6, row.instances, row.mean_ns / 1e3),
            *(row.median_ns / 1e3, row.min_ns / 1e3, row.max_ns / 1e3, row.std_ns / 1e3),
            row.name,
        )


def _as_traced(kernels: Kernels) -> Iterator[Row]:
    whole = fsum(row.exclusive_ns for row in kernels.rows) or 1.0
    for one in by_name(kernels.rows):
        alike = [row for row in kernels.rows if row.name == one.name]
        least, most = min(row.min_ns for row in alike), max(row.max_ns for row in alike)
        mean_us = one.ns / one.calls / 1e3 if one.calls else None
        yield (
            *(100 * one.ns / whole, one.ns / 1e6, one.calls, mean_us, None),
            *(least / 1e3, most / 1e3, None, one.name),
        )


def questions(record: Record, records: Sequence[Record]) -> Table | None:
    """The handout's questions; cells with another kind of step answer where this has none."""
    mine = record.spec | {"step": ""}
    others = [one for one in records if one.spec | {"step": ""} == mine and one.id != record.id]
    return question_table(questions_of(record, others))


def compilation(record: Record, records: Sequence[Record]) -> Table | None:
    """What compiling took, and after how many steps it has paid against the eager cell."""
    block = record.compile
    if block is None:
        return None
    worth = break_even(record, _eager(record, records), "the eager cell has no value")
    return Table(
        name="compilation",
        title="Compilation",
        columns=(
            *("Cold (s)", "Warm (s)", "First step (ms)", "Graphs", "Graph breaks", "Recompiles"),
            *("Compiled", "Saved (ms)", "Break-even steps, cold", "Break-even steps, warm", "Why"),
        ),
        rows=(
            (
                *(block.cold_seconds, block.warm_seconds, block.first_step_ms, block.graphs),
                *(sum(block.graph_breaks.values()), block.recompiles, block.extent),
                *(worth.saved_ms, worth.steps_cold, worth.steps_warm),
                "; ".join(dict.fromkeys(worth.missing.values())),
            ),
        ),
    )


def _eager(record: Record, records: Sequence[Record]) -> Record | None:
    """The cell of the same spec without torch.compile."""
    mine = _without_compile(record)
    eager = (one for one in records if one.spec["compile"] == "off")
    return next((one for one in eager if _without_compile(one) == mine), None)


def _without_compile(record: Record) -> dict[str, Any]:
    """The spec without the keys of torch.compile, which an eager run has and does not use."""
    return {key: value for key, value in record.spec.items() if key not in COMPILE_KEYS}


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
