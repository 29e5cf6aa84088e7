"""Compare two runs or files: print the report, or write it as a page or a picture."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec

from sysbench.core.compare.comparison import Comparison
from sysbench.core.compare.difference import DifferenceSide
from sysbench.core.compare.gate_rule import Gate, gate_line, gate_of
from sysbench.core.compare.nodes import limit_nodes
from sysbench.core.compare.verdict import Verdict, describe_verdict
from sysbench.core.errors import SpecError
from sysbench.core.export.exports import refuse_existing, write
from sysbench.core.export.report_document import comparison_as_markdown, comparison_page
from sysbench.core.export.text_formats import tables_as_csv
from sysbench.core.inspection.compared_sides import (
    ComparedSource,
    compare_sides,
    find_source,
    read_sides,
)
from sysbench.core.tables.brief import Brief, brief_of
from sysbench.core.tables.cells import known_columns, literal
from sysbench.core.tables.comparison_passages import Passage, passages, verdict_text
from sysbench.core.tables.table import Table
from sysbench.core.tables.tree_rows import TREES, Cut, change_tables
from sysbench.tui.commands.answers import print_brief, print_chosen
from sysbench.tui.commands.output import (
    lines_as_svg,
    page_width,
    print_answer,
    print_json,
    print_paged,
    say,
    write_text,
)
from sysbench.tui.commands.progress import decoding_progress
from sysbench.tui.commands.reading_options import DEPTH, MIN_SHARE
from sysbench.tui.commands.text_lines import (
    INDENT,
    Line,
    blank,
    indented,
    note,
    picture_line,
    prose,
    table_lines,
    titled,
)

STYLES = {
    "faster": "bold green",
    "slower": "bold red",
    "same": "bold",
    "not decidable": "bold yellow",
    "not the same computation": "bold yellow",
}
NARROW = 120
"""Below this width counts and phases are left out."""
KERNEL_DEPTH = 4
"""Levels down to the kernels; fusions go deeper."""
DEEPER = f"--depth {KERNEL_DEPTH} goes down to the kernels, --min 0 shows every row that changed"
REPORT_SUFFIXES = (".html", ".svg", ".md")
PICTURE_WIDTH = 120
MAX_NODES = 200
"""Rows of each tree and list in a JSON document without --min and --depth."""
DROPPED = ("b_blocks", "a_blocks", "phase", "b_calls", "a_calls")


def verdict_lines(
    verdict: Verdict, width: int, *, subject: str = "B", picture: bool = False
) -> Iterator[Line]:
    text = describe_verdict(verdict, subject)
    style = STYLES[verdict.verdict]
    yield from prose(literal(text.headline), width, style=style)
    for reason in text.reasons:
        yield from prose(literal(reason), width, style="dim")
    if picture and text.picture:
        yield blank()
        yield [(f"  {picture_line(text.picture)}", style)]


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    comparison: Comparison
    a: DifferenceSide
    b: DifferenceSide
    cut: Cut

    @property
    def passages(self) -> Iterator[Passage]:
        return passages(self.comparison, self.a.record, self.b.record, self.cut)


def comparison_lines(report: ComparisonReport, width: int) -> Iterator[Line]:
    comparison = report.comparison
    yield [(f"A  {literal(comparison.a)}", "")]  # not truncated, so that they can be copied
    yield [(f"B  {literal(comparison.b)}", "")]
    yield blank()
    if comparison.of_files or comparison.a == comparison.b:
        yield from prose(verdict_text(comparison).headline, width)
    else:
        yield from verdict_lines(comparison.step, width)
    for passage in report.passages:
        yield from _passage_lines(passage, report, width)
    cut, difference = report.cut, comparison.difference
    is_cut = cut.least or (cut.depth is not None and cut.depth < KERNEL_DEPTH)
    if is_cut and difference is not None and change_tables(difference, cut):
        yield from note([DEEPER], width)


def _passage_lines(passage: Passage, report: ComparisonReport, width: int) -> Iterator[Line]:
    style = ""
    if passage.name == "factors" and len(report.comparison.factors) > 1:
        style = "bold yellow"
    lines: list[Line] = []
    for text in passage.sentences:
        lines += indented(prose(literal(text), width - INDENT, hang=2, style=style))
    lines += note(map(literal, passage.notes), width)
    if passage.table is not None:
        lines += _table_lines(passage, passage.table, width)
    yield from titled(literal(passage.title), lines)


def _table_lines(passage: Passage, table: Table, width: int) -> list[Line]:
    if table.name not in TREES:
        return table_lines(table, width)
    drop = DROPPED if width < NARROW else ()
    columns = known_columns(table)
    return table_lines(table, width, columns=columns, drop=drop, perturbed=passage.perturbed)


def read_report(a: ComparedSource, b: ComparedSource) -> ComparisonReport:
    sides = read_sides(a, b)
    comparison, _ = compare_sides(*sides)
    return ComparisonReport(comparison, *sides, Cut(depth=DEPTH, least=MIN_SHARE))


def check_output(path: Path, *, force: bool) -> None:
    """
    Raises:
        SpecError: Another suffix, or the file exists and ``force`` is false.
    """
    if path.suffix not in REPORT_SUFFIXES:
        raise SpecError("output", str(path), f"a name that ends in {', '.join(REPORT_SUFFIXES)}")
    refuse_existing([path], force=force)


def write_report(report: ComparisonReport, path: Path, *, force: bool = False) -> Path:
    """Write the report in the format of the path's suffix.

    Raises:
        SpecError: Another suffix, or the file cannot be written.
    """
    check_output(path, force=force)
    if path.suffix == ".html":
        sides = report.a.record, report.b.record
        written = comparison_page(report.comparison, *sides, report.passages)
    elif path.suffix == ".svg":
        title = f"compare {report.comparison.a} {report.comparison.b}"
        written = lines_as_svg([*comparison_lines(report, PICTURE_WIDTH)], title)
    else:
        written = comparison_as_markdown(report.comparison, report.passages)
    return write(path, written.encode())


def _change_tables(report: ComparisonReport) -> list[Table]:
    difference = report.comparison.difference
    return change_tables(difference, report.cut) if difference else []


def _head(comparison: Comparison) -> dict[str, object]:
    names = ("a", "b", "verdict", "why", "change", "change_low", "change_high")
    return {name: getattr(comparison, name) for name in names}


def _whole(comparison: Comparison) -> dict[str, object]:
    return {"truncated": False, **msgspec.to_builtins(comparison)}


def _bounded(comparison: Comparison) -> dict[str, object]:
    """Return the document with the largest changes of each tree, and the first rows of lists."""
    difference, memory = comparison.difference, comparison.memory
    if difference is not None:
        difference = msgspec.structs.replace(
            difference,
            time=difference.time and limit_nodes(difference.time, MAX_NODES),
            memory=difference.memory and limit_nodes(difference.memory, MAX_NODES),
            steps=difference.steps[:MAX_NODES],
        )
    if memory is not None:
        memory = msgspec.structs.replace(
            memory,
            rows=memory.rows[:MAX_NODES],
            modules=memory.modules[:MAX_NODES],
            origins=memory.origins[:MAX_NODES],
        )
    shown = msgspec.structs.replace(comparison, difference=difference, memory=memory)
    return {"truncated": shown != comparison, **msgspec.to_builtins(shown)}


def _brief(report: ComparisonReport, gate: Gate | None) -> Brief:
    comparison, passed = report.comparison, [*report.passages]
    text = verdict_text(comparison)
    sides = {"A": report.a.record, "B": report.b.record}
    return brief_of(
        f"{comparison.a} {comparison.b}",
        [
            text.headline,
            *text.reasons,
            gate_line(gate) if gate else "",
            *(sentence for passage in passed for sentence in (*passage.sentences, *passage.notes)),
        ],
        numbers=_head(comparison),
        tables=[passage.table for passage in passed if passage.table],
        missing={
            f"{side} {block}": record.missing[block]
            for side, record in sides.items()
            for block in ("timing", "kernels", "memory")
            if block in record.missing
        },
        following=[comparison.step.next, gate.next if gate else ""],
    )


def print_comparison(arguments: argparse.Namespace) -> int:
    """Return the gate's exit code, or 0 if both sides could be read."""
    out = Path(arguments.output) if arguments.output else None
    if out is not None:
        if arguments.csv or arguments.md:
            raise SpecError("output", str(out), "without --csv and --md: its suffix is the format")
        check_output(out, force=arguments.force)
    sources = find_source(arguments.a), find_source(arguments.b)
    with decoding_progress() as progress:
        a, b = read_sides(*sources, progress.show)
    comparison, known = compare_sides(a, b, smallest=arguments.smallest)
    gate = None
    if arguments.gate is not None:
        if comparison.of_files:
            raise SpecError("--gate", arguments.gate, "for two runs: a file has no rounds to judge")
        if a.record.id == b.record.id:
            raise SpecError("B", b.record.id, "another run than A: a gate judges B against A")
        gate = gate_of(a.record, b.record, comparison.step, arguments.gate, known)
    is_full = arguments.csv or arguments.md or (out is not None and out.suffix == ".md")
    depth, least = (None, 0.0) if is_full else (DEPTH, MIN_SHARE)
    cut = Cut(
        depth=depth if arguments.depth is None else arguments.depth,
        least=least if arguments.min is None else arguments.min,
    )
    report = ComparisonReport(comparison, a, b, cut)
    has_all = arguments.min is not None or arguments.depth is not None
    document = {**(_whole if has_all else _bounded)(comparison), "gate": gate}
    if out is not None:
        write_report(report, out, force=arguments.force)
        print_answer({**document, "paths": [str(out)]}, out, json=arguments.json)
    elif arguments.brief:
        first = [[(gate_line(gate), "")]] if gate else []
        lines = chain(first, comparison_lines(report, page_width()))
        print_brief(arguments, _brief(report, gate), lines)
    elif print_chosen(arguments, lambda: _change_tables(report), _head(comparison)):
        pass
    elif arguments.json:
        print_json(document)
    elif arguments.md:
        write_text(comparison_as_markdown(comparison, report.passages))
    elif arguments.csv:
        write_text(tables_as_csv(_change_tables(report)).decode())
    else:
        print_paged(comparison_lines(report, page_width()), page=not arguments.no_pager)
    if gate is None:
        return 0
    if not (arguments.json or arguments.brief):
        # Never wrapped, for scripts that search for it; to stderr if stdout is CSV.
        if arguments.csv:
            say(gate_line(gate), to_stderr=True)
        else:
            write_text(f"\n{gate_line(gate)}\n")
    return gate.exit_code
