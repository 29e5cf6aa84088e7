"""A comparison as passages, the same for every printer and page, and tables of its sides."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from sysbench.core.compare.comparison import Comparison, Factor, describe_factors
from sysbench.core.compare.conditions import Condition
from sysbench.core.compare.difference import DifferenceSide
from sysbench.core.compare.nodes import Difference
from sysbench.core.compare.statistics import median_interval
from sysbench.core.compare.verdict import VerdictText, describe_verdict
from sysbench.core.formatting import counted, format_bytes, milliseconds
from sysbench.core.record.record import Record
from sysbench.core.record.timing import Energy, Round
from sysbench.core.tables.cells import one_figure
from sysbench.core.tables.memory_tables import difference_tables
from sysbench.core.tables.table import Column, Table, columns_for, tabulate
from sysbench.core.tables.timing_tables import ENERGY, JOULES, energy_table
from sysbench.core.tables.tree_rows import Cut, change_tables, step_tables
from sysbench.core.tables.trust import is_perturbed

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


CAUSE, PROCEDURE = "may be the cause", "only how long it was measured"
_MIN_ROUNDS = 6  # fewer have no 95 % interval of their median


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a verdict.

    Attributes:
        name: ``A`` or ``B``.
        run: Id of its run.
        rounds: All its processes, also excluded ones.
        loss: Loss of the first step, if known.
        energy: Of a step of its run, if it was measured.
    """

    name: str
    run: str
    rounds: Sequence[Round]
    loss: float | None
    energy: Energy | None = None

    @property
    def medians_ms(self) -> list[float]:
        """Step medians of the processes that count."""
        return [row.median_ms for row in self.rounds if row.counts and row.median_ms is not None]


def sides_table(sides: Sequence[Side], subject: str = "Step") -> Table:
    """One row per side: median and spread of its rounds, of which each is one of ``subject``."""
    fewest = min((len(side.medians_ms) for side in sides), default=0)
    if fewest >= _MIN_ROUNDS:
        spread = "with its 95 % interval"
    else:
        spread = f"with their range: fewer than {_MIN_ROUNDS} have no 95 % interval"
    columns = columns_for(
        Side,
        Column("side", "name"),
        Column(
            "median_ms",
            lambda side: statistics.median(side.medians_ms) if side.medians_ms else None,
            about="median of the rounds that count",
        ),
        Column("ci_low_ms", lambda side: _ends(side.medians_ms, fewest)[0], heading="low ms"),
        Column("ci_high_ms", lambda side: _ends(side.medians_ms, fewest)[1], heading="high ms"),
        Column("rounds", lambda side: len(side.medians_ms), about="rounds that count"),
        Column(
            "left_out",
            lambda side: len(side.rounds) - len(side.medians_ms),
            about="rounds that do not count",
        ),
        Column(
            "loss_start",
            "loss",
            heading="first loss",
            format="{:.6g}",
            about="loss of the first step",
        ),
        Column("run", about="id of the run"),
        Column(
            "joules_per_step",
            lambda side: side.energy.joules_per_step if side.energy else None,
            format=JOULES,
            about=ENERGY["joules_per_step"],
            is_optional=True,
        ),
    )
    return tabulate(sides, columns, name="sides", title=f"{subject}: median of the rounds {spread}")


FACTOR_COLUMNS = {
    "factor": "setting or fact that differs",
    "A": "value of side A",
    "B": "value of side B",
    "what": "whether it may be the cause",
}
"""Columns of `factor_table`, each with a sentence."""


def factor_table(
    factors: Sequence[Factor],
    procedure: Sequence[Factor] | None = None,
    *,
    name: str = "factors",
    title: str = "What differs",
    names: tuple[str, str] = ("A", "B"),
) -> Table:
    """Settings and facts in which two runs differ.

    Args:
        factors: Possible causes.
        procedure: Differences that cannot be causes; adds a column that separates both.
    """
    rows: list[tuple[str, ...]] = [
        (row.name, one_figure(row.name, row.a), one_figure(row.name, row.b))
        for row in (*factors, *(procedure or ()))
    ]
    columns: tuple[str, ...] = ("factor", *names)
    if procedure is not None:
        columns = (*columns, "what")
        what = [CAUSE] * len(factors) + [PROCEDURE] * len(procedure)
        rows = [(*row, kind) for row, kind in zip(rows, what, strict=True)]
    return Table(name=name, title=title, columns=columns, rows=tuple(rows), about=FACTOR_COLUMNS)


def conditions_table(conditions: Sequence[Condition]) -> Table:
    """Machine conditions during the rounds; (!) marks notable ones."""
    columns: tuple[Column[Condition], ...] = (
        Column(
            "condition",
            lambda row: f"{row.name} (!)" if row.warns else row.name,
            about="condition; (!) if it differs",
        ),
        Column("A", "a", about="value of side A"),
        Column("B", "b", about="value of side B"),
        Column("seen", "text", about="observation in both sides"),
    )
    return tabulate(conditions, columns, name="conditions", title="Conditions of the rounds")


def left_out_table(sides: Sequence[Side]) -> Table:
    """Excluded rounds with their reasons, in order of measurement."""
    rows = sorted(
        ((side.name, row) for side in sides for row in side.rounds if not row.counts),
        key=lambda pair: pair[1].started_ns,
    )
    columns: tuple[Column[tuple[str, Round]], ...] = (
        Column("side", lambda pair: pair[0]),
        Column("round", lambda pair: pair[1].index),
        Column("block", lambda pair: None if pair[1].block is None else pair[1].block + 1),
        Column("median_ms", lambda pair: pair[1].median_ms),
        Column(
            "why",
            lambda pair: pair[1].disturbed or pair[1].outcome,
            about="reason why the round does not count",
        ),
    )
    return tabulate(rows, columns, name="left_out", title="Rounds that do not count")


def _ends(medians_ms: Sequence[float], fewest: int) -> tuple[float | None, float | None]:
    """Return the interval if all sides have one, else the range; None for one round."""
    if len(medians_ms) < 2:
        return None, None
    if fewest < _MIN_ROUNDS:
        return min(medians_ms), max(medians_ms)
    return median_interval(medians_ms)
