"""`compare`: run or file B against run or file A."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...core.errors import SpecError
from .arguments import (
    RUN_HELP,
    add_no_pager,
    add_table_formats,
    count,
    examples,
    share_above_zero,
    share_of_one,
)
from .report.output import page_width, print_json, print_paged, say, write

if TYPE_CHECKING:
    from ...core.analysis.compare import Comparison
    from ...core.analysis.verdict.gate import Gate
    from ...core.analysis.verdict.records import Known
    from ...core.tables.difference.tree import Cut
    from .report.compared_sides import ReadSide
    from .report.layout import Line

DEPTH = 2
LEAST = 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two sides, and the part of the rows to show."""
    parser.description = (
        "Compare B against A: the verdict on the step time, peak memory, every factor in which\n"
        "the two specs differ, and the change of the traced step and of the peak, row by row. A\n"
        "verdict rests on processes, not on steps: `run --repeat` measures several, `ab` measures\n"
        "both specs in turn. Each side is a run, or a file that `inspect` reads."
    )
    parser.epilog = examples(
        ("sysbench-tui compare 1204 1211", "parts of ids are enough"),
        ("sysbench-tui compare 1204 1211 --depth 4 --min 0.1%", "down to the kernels"),
        ("sysbench-tui compare before.json.gz after.json.gz", "two traces of anyone"),
        ("sysbench-tui compare 1204 trace.json.gz --json | jq .difference.summary", ""),
        ("sysbench-tui compare 1204 1211 --gate 3%", "for a script: may B be 3 % slower?"),
    )
    parser.add_argument("a", metavar="A", help=f"{RUN_HELP}; or a file")
    parser.add_argument("b", metavar="B", help="the run or file that is compared against A")
    add_table_formats(parser)
    add_no_pager(parser)
    parser.add_argument(
        "--depth",
        type=count,
        metavar="N",
        help=f"so many levels of rows: category, module, operator, kernel; category, phase, stack "
        f"(default: {DEPTH}; of --csv and --md: all)",
    )
    parser.add_argument(
        "--min",
        type=share_of_one,
        metavar="P",
        help=f"sum up rows that make up less of all changes (default: {LEAST:.0%}%; of --csv and "
        "--md: 0)",
    )
    parser.add_argument(
        "--gate",
        type=share_of_one,
        metavar="MARGIN",
        help="exit with 3 if B is slower than A by more than this, 4 if that is not decidable: 3%%",
    )
    parser.add_argument(
        "--smallest",
        type=share_above_zero,
        metavar="P",
        help="smallest difference that matters to the verdict (default: 1%%, or that of the "
        "experiment that measured both)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Compare; the gate's exit code, without one 0 when both sides could be read."""
    import msgspec

    from ...core.analysis.compare import compare
    from ...core.analysis.difference.difference import difference
    from ...core.analysis.verdict.gate import gate_line
    from ...core.analysis.verdict.records import NOTHING_KNOWN
    from ...core.analysis.verdict.verdict import SMALLEST
    from ...core.export.inspection import tables_as_markdown
    from ...core.export.text_formats import table_as_csv, tables_as_tidy_csv
    from ...core.runs.ab.known import known_noise
    from ...core.runs.ab.report import shared_experiment
    from ...core.tables.difference.tree import Cut, change_tables
    from .report.compared_sides import read_side

    a, b = read_side(arguments.a), read_side(arguments.b)
    found = difference(a, b)
    known = NOTHING_KNOWN if a.is_file or b.is_file else known_noise(a.record, b.record)
    experiment = shared_experiment(a.record, b.record)
    smallest = arguments.smallest or (experiment.experiment().smallest if experiment else SMALLEST)
    comparison = compare(a.record, b.record, known, smallest=smallest)
    comparison = msgspec.structs.replace(comparison, difference=found)
    gate = _gate(a, b, comparison, arguments.gate, known)
    whole = bool(arguments.csv or arguments.md)
    cut = Cut(
        depth=(None if whole else DEPTH) if arguments.depth is None else arguments.depth,
        least=(0.0 if whole else LEAST) if arguments.min is None else arguments.min,
    )
    if arguments.json:
        print_json({**msgspec.to_builtins(comparison), "gate": gate})
    elif arguments.md:
        write(tables_as_markdown(change_tables(found, cut)))
    elif arguments.csv:
        tables = change_tables(found, cut)
        only = len(tables) == 1
        write((table_as_csv(tables[0]) if only else tables_as_tidy_csv(tables)).decode())
    else:
        lines = _lines(comparison, (a, b), cut, page_width())
        print_paged(lines, page=not arguments.no_pager)
    if gate is None:
        return 0
    if not arguments.json:
        # Never wrapped, for scripts that look for it; kept out of a table that a program reads.
        if arguments.csv:
            say(gate_line(gate), to_stderr=True)
        else:
            write(f"\n{gate_line(gate)}\n")
    return gate.exit_code


def _gate(
    a: ReadSide, b: ReadSide, comparison: Comparison, margin: float | None, known: Known
) -> Gate | None:
    from ...core.analysis.verdict.gate import gate_of

    if margin is None:
        return None
    if a.is_file or b.is_file:
        raise SpecError("--gate", margin, "for two runs: a file has no rounds to judge")
    if a.record.id == b.record.id:
        raise SpecError("B", b.record.id, "another run than A: a gate judges B against A")
    return gate_of(a.record, b.record, comparison.step, margin, known)


def _lines(
    comparison: Comparison, sides: tuple[ReadSide, ReadSide], cut: Cut, width: int
) -> Iterator[Line]:
    from ...core.tables.trust import is_perturbed
    from .report.comparison import comparison_lines, difference_lines, memory_lines

    of_files = any(side.is_file for side in sides)
    yield from comparison_lines(comparison, width, of_files=of_files)
    if comparison.a != comparison.b and comparison.difference is not None:
        perturbed = any(side.kernels and is_perturbed(side.kernels) for side in sides)
        yield from difference_lines(comparison.difference, cut, width, perturbed=perturbed)
        yield from memory_lines(comparison, width)
