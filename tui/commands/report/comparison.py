"""The output of `compare` as lines."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ....core.analysis.compare import Comparison, Factor
from ....core.analysis.verdict.verdict import sentence
from ....core.tables.cells import literal, one_figure
from ....core.tables.memory import difference_tables
from ....core.tables.table import Table
from .layout import Line, blank, prose, table_lines, titled

LARGEST_CHANGES = 10
LEDGERS = "ledger-difference"
"""The table that the tree of rows repeats."""
STYLES = {
    "faster": "bold green",
    "slower": "bold red",
    "same": "bold",
    "not decidable": "bold yellow",
    "not the same computation": "bold yellow",
}


def comparison_lines(comparison: Comparison, width: int) -> Iterator[Line]:
    """The verdict, the differing factors, then the medians and the peaks of both runs."""
    yield from prose(f"A  {comparison.a}", width)
    yield from prose(f"B  {comparison.b}", width)
    yield blank()
    if comparison.a == comparison.b:
        yield from prose("Nothing differs: A and B are one run.", width)
        return
    style = STYLES[comparison.verdict]
    yield from prose(sentence(comparison.step), width, style=style)
    for reason in (comparison.why, comparison.step.next):
        if reason:
            yield from prose(literal(reason), width, style="dim")
    if len(comparison.factors) > 1:
        yield blank()
        warning = (
            f"Warning: {len(comparison.factors)} factors differ, the change has no single cause."
        )
        yield from prose(warning, width, style="bold yellow")
    if comparison.factors:
        lines = table_lines(_factors(comparison.factors), width)
        yield from titled("What differs", lines)
    else:
        yield from prose("Nothing differs: the same work on the same machine.", width)
    if comparison.procedure:
        lines = table_lines(_factors(comparison.procedure), width)
        yield from titled("Measured differently", lines)
    if comparison.phases:
        yield from titled("Medians", table_lines(_phases(comparison), width))
    yield from titled("Peak allocated", table_lines(_peaks(comparison), width))


def memory_lines(comparison: Comparison, width: int) -> Iterator[Line]:
    """The modules and stacks whose memory changed most; their sums are in the tree of rows."""
    for table in difference_tables(comparison.memory) if comparison.memory else ():
        if table.name != LEDGERS and table.rows:
            shown = msgspec.structs.replace(table, rows=table.rows[:LARGEST_CHANGES])
            more = len(table.rows) - len(shown.rows)
            title = f"{table.title}; {more} smaller ones are left out" if more else table.title
            yield from titled(title, table_lines(shown, width))


def file_lines(comparison: Comparison, width: int) -> Iterator[Line]:
    """The names of the two sides, one a file at least, of which no step was timed."""
    yield [(f"A  {literal(comparison.a)}", "")]  # whole, so that they can be copied
    yield [(f"B  {literal(comparison.b)}", "")]
    yield blank()
    if comparison.a == comparison.b:
        yield from prose("Nothing differs: A and B are one file.", width)
        return
    text = "No verdict: a file has no timing pass."
    yield from prose(text, width)
    if comparison.a_peak_bytes is not None and comparison.b_peak_bytes is not None:
        yield from titled("Peak allocated", table_lines(_peaks(comparison), width))


def _factors(factors: list[Factor]) -> Table:
    rows = tuple(
        (factor.name, one_figure(factor.name, factor.a), one_figure(factor.name, factor.b))
        for factor in factors
    )
    return Table(name="factors", title="What differs", columns=("factor", "A", "B"), rows=rows)


def _phases(comparison: Comparison) -> Table:
    rows = tuple(
        (
            *(phase.name, phase.a_ms, phase.b_ms),
            *(_difference(phase.a_ms, phase.b_ms), _share(phase.a_ms, phase.b_ms)),
        )
        for phase in comparison.phases
    )
    columns = ("phase", "A_ms", "B_ms", "change_ms", "over_a")
    return Table(name="phases", title="Medians", columns=columns, rows=rows)


def _peaks(comparison: Comparison) -> Table:
    a, b = comparison.a_peak_bytes, comparison.b_peak_bytes
    row = (a, b, _difference(a, b), _share(a, b))
    columns = ("A_bytes", "B_bytes", "change_bytes", "over_a")
    return Table(name="peaks", title="Peak allocated", columns=columns, rows=(row,))


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else b - a


def _share(a: float | None, b: float | None) -> float | None:
    return None if not a or b is None else b / a - 1
