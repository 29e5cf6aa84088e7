"""A comparison as passages: sentences and a table each, the same for every printer and page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from sysbench.core.compare.comparison import Comparison, describe_factors
from sysbench.core.compare.difference import DifferenceSide
from sysbench.core.compare.nodes import Difference
from sysbench.core.compare.verdict import VerdictText, describe_verdict
from sysbench.core.formatting import counted, format_bytes, milliseconds
from sysbench.core.memory.peak_difference import MemoryDifference
from sysbench.core.record.record import Record
from sysbench.core.tables.cells import SIGNED
from sysbench.core.tables.table import Column, Table, tabulate
from sysbench.core.tables.timing_tables import energy_table
from sysbench.core.tables.tree_rows import Cut, change_tables, step_tables
from sysbench.core.tables.trust import is_perturbed
from sysbench.core.tables.verdict_sides import factor_table

LARGEST_CHANGES = 10
"""Rows of a short report's tables that are not a tree."""
LEDGERS = "ledger-difference"
"""Left out, since the tree of rows contains it."""
CHANGE_TIMES = ("change_ns", "a_ns", "b_ns")
NO_VERDICT = "No verdict: a file has no timing pass."


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One part of a comparison.

    Attributes:
        name: Unique in the comparison.
        notes: Reservations, after the sentences.
        perturbed: Columns whose times tracing changed too much to trust them.
    """

    name: str
    title: str
    sentences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    table: Table | None = None
    perturbed: tuple[str, ...] = ()


def verdict_text(comparison: Comparison) -> VerdictText:
    """Return the verdict, or the reason why there is none."""
    if comparison.a == comparison.b:
        what = "file" if comparison.of_files else "run"
        return VerdictText("=", f"Nothing differs: A and B are the same {what}.", (), "")
    if comparison.of_files:
        return VerdictText("?", NO_VERDICT, (), "")
    return describe_verdict(comparison.step)


def doubtful_sentences(a: Record, b: Record) -> Iterator[str]:
    """Yield what is doubtful in an imported file of either side."""
    for side, record in (("A", a), ("B", b)):
        yield from (f"{side}: {found.verdict}" for found in record.findings if found.is_health)


def passages(
    comparison: Comparison, a: Record, b: Record, cut: Cut | None = None
) -> Iterator[Passage]:
    """Yield all below the verdict; nothing for a run compared with itself.

    Args:
        cut: Rows of trees; with a ``least`` other tables are short, too.
    """
    if comparison.a == comparison.b:
        return
    if doubts := tuple(doubtful_sentences(a, b)):
        yield Passage(name="health", title="Doubtful in the files", sentences=doubts)
    if not comparison.of_files:
        factors, procedure = comparison.factors, comparison.procedure
        yield Passage(
            name="factors",
            title="What differs",
            sentences=(describe_factors(factors),),
            table=factor_table(factors) if factors else None,
        )
        if procedure:
            yield _of_table(factor_table(procedure, name="procedure", title="Measured differently"))
    if comparison.phases:
        yield _of_table(_medians(comparison))
    if None not in (comparison.a_peak_bytes, comparison.b_peak_bytes):
        yield _of_table(_peaks(comparison))
    energies = {"A": comparison.a_energy, "B": comparison.b_energy}
    if any(energies.values()):
        yield _of_table(energy_table(energies))
    if any(_reasons(record) for record in (a, b)):
        sentences = tuple(f"{side}: {_contents(record)}" for side, record in (("A", a), ("B", b)))
        yield Passage(name="contents", title="What each side has", sentences=sentences)
    if comparison.difference is not None:
        kernels = (DifferenceSide(record).kernels for record in (a, b))
        is_slowed = any(side is not None and is_perturbed(side) for side in kernels)
        yield from _of_difference(comparison.difference, cut or Cut(), is_slowed=is_slowed)
    for table in difference_tables(comparison.memory) if comparison.memory else ():
        if table.name != LEDGERS and table.rows:
            yield _of_table(_shortened(table, cut))


def _of_difference(difference: Difference, cut: Cut, *, is_slowed: bool) -> Iterator[Passage]:
    if difference.summary:
        yield Passage(
            name="changes",
            title="What changed",
            sentences=tuple(difference.summary),
            notes=tuple(difference.notes),
        )
    for table in step_tables(difference.steps):
        yield _of_table(_shortened(table, cut))
    for table in change_tables(difference, cut):
        marked = CHANGE_TIMES if is_slowed and table.name == "time-difference" else ()
        yield replace(_of_table(table), perturbed=marked)


def _of_table(table: Table) -> Passage:
    return Passage(name=table.name, title=table.title, table=table)


def _shortened(table: Table, cut: Cut | None) -> Table:
    more = len(table.rows) - LARGEST_CHANGES
    if cut is None or not cut.least or more <= 0:
        return table
    is_ranked = table.name != "step-difference"
    words = f"{more} smaller ones omitted" if is_ranked else f"the first {LARGEST_CHANGES}"
    return msgspec.structs.replace(
        table, rows=table.rows[:LARGEST_CHANGES], title=f"{table.title}; {words}"
    )


def _medians(comparison: Comparison) -> Table:
    rows = tuple(
        (phase.name, phase.a_ms, phase.b_ms, *_change(phase.a_ms, phase.b_ms))
        for phase in comparison.phases
    )
    columns = ("phase", "A_ms", "B_ms", "change_ms", "over_a")
    return Table(name="phases", title="Medians", columns=columns, rows=rows)


def _peaks(comparison: Comparison) -> Table:
    a, b = comparison.a_peak_bytes, comparison.b_peak_bytes
    columns = ("A_bytes", "B_bytes", "change_bytes", "over_a")
    return Table(
        name="peaks", title="Peak allocated", columns=columns, rows=((a, b, *_change(a, b)),)
    )


def _change(a: float | None, b: float | None) -> tuple[float | None, float | None]:
    """Return the change in absolute terms and relative to A."""
    if a is None or b is None:
        return None, None
    return b - a, b / a - 1 if a else None


def _contents(record: Record) -> str:
    """``step 73.33 ms; no memory: this run has no memory pass``."""
    kernels = DifferenceSide(record).kernels
    texts = []
    if record.timing:
        texts.append(f"untraced step {milliseconds(record.timing.step.median_ms)}")
    if kernels:
        marked = len(kernels.marked_steps.rows) if kernels.marked_steps else 0
        words = f" ({counted(marked, 'marked step')})" if marked else ""
        texts.append(f"traced {kernels.whole} {milliseconds(kernels.step_ms)}{words}")
    if record.memory:
        size = format_bytes(record.memory.peak_allocated_bytes)
        is_state = record.memory.is_state
        texts.append(f"{size} {record.memory.moment}" if is_state else f"peak {size}")
    return "; ".join([*texts, *_reasons(record)]) + "."


def _reasons(record: Record) -> list[str]:
    """What a record lacks for a comparison, each with its reason if it has one."""
    has = {
        # That a file has no timing is the verdict's reason.
        "timing": record.timing or not record.spec,
        "kernels": DifferenceSide(record).kernels,
        "memory": record.memory,
    }
    missing = record.missing
    return [
        f"no {block}: {missing[block]}" if missing.get(block) else f"no {block}"
        for block, content in has.items()
        if not content
    ]


CHANGE_COLUMNS: tuple[Column[Any], ...] = (
    Column("change_bytes", lambda row: row.b_bytes - row.a_bytes, unit=f"{SIGNED}bytes"),
    Column("a_bytes", heading="A"),
    Column("b_bytes", heading="B"),
)
"""Of a `RowChange` or an `OriginChange`."""


def difference_tables(difference: MemoryDifference) -> list[Table]:
    """Return three tables, largest change first; empty if nothing differs."""
    return [
        tabulate(
            difference.rows,
            *CHANGE_COLUMNS,
            "name",
            name="ledger-difference",
            title="Ledgers at the two peaks: what differs",
        ),
        tabulate(
            difference.modules,
            *CHANGE_COLUMNS,
            Column("kind", lambda row: row.kind.removesuffix("_bytes")),
            Column("module", "name"),
            name="module-difference",
            title="Modules, own and children's: what differs",
        ),
        tabulate(
            difference.origins,
            *CHANGE_COLUMNS,
            Column("a_blocks", heading="A blocks", priority=12),
            Column("b_blocks", heading="B blocks", priority=11),
            "category",
            Column("phase", priority=10),
            Column("stack", lambda row: " < ".join(row.stack), is_flexible=True),
            name="stack-difference",
            title="Stacks at the two peaks: what differs",
        ),
    ]
