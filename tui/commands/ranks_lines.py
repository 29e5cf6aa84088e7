"""The output of `inspect FOLDER` as lines: the ranks side by side."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.core.ranks.rank_rows import Ranks
from sysbench.core.tables.cells import literal
from sysbench.core.tables.ranks_tables import ranks_notes, ranks_tables
from sysbench.core.tables.table import folded
from sysbench.tui.commands.layout import INDENT, Line, blank, prose, table_lines, titled
from sysbench.tui.commands.run_report import finding_lines, full_table
from sysbench.tui.text import folder_text

STEPS_SHOWN = 12
DROPPED = {
    "ranks": (
        *("file", "last", "matched", "collectives", "exposed_ns", "bounded_ns"),
        *("clock_spread_ns", "device", "clock_error_ns", "exposed_share", "late_ns"),
    ),
    "collectives": ("group", "most_waiting_ns", "algorithm_gbs"),
    "memory": ("baseline_bytes", "file"),
}


def ranks_lines(ranks: Ranks, width: int) -> Iterator[Line]:
    yield [(literal(ranks.folder), "bold")]
    yield from prose(folder_text(ranks), width)
    for finding in ranks.findings:
        yield blank()
        yield from finding_lines(finding, width)
    for section, (table, *_) in ranks_tables(ranks).items():
        shown = table
        if section == "steps":
            summed = [name for name in table.columns if name.endswith("_ns")]
            shown = folded(table, STEPS_SHOWN, "step", summed)
        lines = table_lines(shown, width, drop=DROPPED.get(section, ()))
        yield from titled(table.title, lines)
        if section == "ranks":
            yield from _notes(ranks, width)
    if not ranks.rows:
        yield from _notes(ranks, width)


def ranks_section_lines(ranks: Ranks, section: str, width: int) -> Iterator[Line]:
    for table in ranks_tables(ranks)[section]:
        yield from full_table(table, width)
    if section == "ranks":
        yield from _notes(ranks, width)


def _notes(ranks: Ranks, width: int) -> Iterator[Line]:
    for text in ranks_notes(ranks):
        for line in prose(literal(text), width - INDENT, style="dim"):
            yield [(" " * INDENT, ""), *line]
