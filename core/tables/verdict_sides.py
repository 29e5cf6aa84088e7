"""Tables of the two sides of a verdict: rounds, conditions, excluded rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sysbench.core.compare.comparison import Factor
from sysbench.core.compare.conditions import Condition
from sysbench.core.compare.statistics import median_interval
from sysbench.core.record.timing import Energy, Round
from sysbench.core.tables.cells import one_figure
from sysbench.core.tables.table import Column, Table, columns_for, tabulate
from sysbench.core.tables.timing_tables import ENERGY, JOULES

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
    return tabulate(
        sides, *columns, name="sides", title=f"{subject}: median of the rounds {spread}"
    )


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
    return tabulate(conditions, *columns, name="conditions", title="Conditions of the rounds")


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
    return tabulate(rows, *columns, name="left_out", title="Rounds that do not count")


def _ends(medians_ms: Sequence[float], fewest: int) -> tuple[float | None, float | None]:
    """Return the interval if all sides have one, else the range; None for one round."""
    if len(medians_ms) < 2:
        return None, None
    if fewest < _MIN_ROUNDS:
        return min(medians_ms), max(medians_ms)
    return median_interval(medians_ms)
