"""`compare`: run or file B against run or file A."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.core.errors import NotFoundError, SpecError
from sysbench.tui.commands.arguments import (
    RUN_HELP,
    add_no_pager,
    add_table_formats,
    complete_with,
    examples,
    parse_count,
    share_above_zero,
    share_of_one,
)
from sysbench.tui.commands.output import page_width, print_json, print_paged, say, write_text

if TYPE_CHECKING:
    from sysbench.core.compare.comparison import Comparison
    from sysbench.core.compare.difference import DifferenceSide
    from sysbench.core.tables.difference_rows_tree import Cut
    from sysbench.tui.commands.layout import Line

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
    a = parser.add_argument("a", metavar="A", help=f"{RUN_HELP}; or a file")
    b = parser.add_argument("b", metavar="B", help="the run or file that is compared against A")
    complete_with(a, "run")
    complete_with(b, "run")
    add_table_formats(parser)
    add_no_pager(parser)
    parser.add_argument(
        "--depth",
        type=parse_count,
        metavar="N",
        help=f"show N levels of rows: category, module, operator, kernel; category, phase, stack "
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

    from sysbench.core.compare.compared_records import NOTHING_KNOWN
    from sysbench.core.compare.comparison import compare
    from sysbench.core.compare.difference import difference
    from sysbench.core.compare.gate_rule import gate_line, gate_of
    from sysbench.core.compare.verdict import MIN_EFFECT
    from sysbench.core.experiments.experiment_report import shared_experiment
    from sysbench.core.experiments.known import known_noise
    from sysbench.core.export.inspected_file import tables_as_markdown
    from sysbench.core.export.text_formats import table_as_csv, tables_as_tidy_csv
    from sysbench.core.tables.difference_rows_tree import Cut, change_tables

    (a, a_is_file), (b, b_is_file) = _read_side(arguments.a), _read_side(arguments.b)
    of_files = a_is_file or b_is_file
    found = difference(a, b)
    known = NOTHING_KNOWN if of_files else known_noise(a.record, b.record)
    experiment = shared_experiment(a.record, b.record)
    smallest = arguments.smallest or (
        experiment.experiment().smallest if experiment else MIN_EFFECT
    )
    comparison = compare(a.record, b.record, known, smallest=smallest)
    comparison = msgspec.structs.replace(comparison, difference=found)
    gate = None
    if arguments.gate is not None:
        if of_files:
            raise SpecError("--gate", arguments.gate, "for two runs: a file has no rounds to judge")
        if a.record.id == b.record.id:
            raise SpecError("B", b.record.id, "another run than A: a gate judges B against A")
        gate = gate_of(a.record, b.record, comparison.step, arguments.gate, known)
    whole = bool(arguments.csv or arguments.md)
    cut = Cut(
        depth=(None if whole else DEPTH) if arguments.depth is None else arguments.depth,
        least=(0.0 if whole else LEAST) if arguments.min is None else arguments.min,
    )
    if arguments.json:
        print_json({**msgspec.to_builtins(comparison), "gate": gate})
    elif arguments.md:
        write_text(tables_as_markdown(change_tables(found, cut)))
    elif arguments.csv:
        tables = change_tables(found, cut)
        only = len(tables) == 1
        write_text((table_as_csv(tables[0]) if only else tables_as_tidy_csv(tables)).decode())
    else:
        lines = _lines(comparison, (a, b), cut, page_width(), of_files=of_files)
        print_paged(lines, page=not arguments.no_pager)
    if gate is None:
        return 0
    if not arguments.json:
        # Never wrapped, for scripts that look for it; kept out of a table that a program reads.
        if arguments.csv:
            say(gate_line(gate), to_stderr=True)
        else:
            write_text(f"\n{gate_line(gate)}\n")
    return gate.exit_code


def _read_side(text: str) -> tuple[DifferenceSide, bool]:
    """The run of that name, or the file at that path, and whether it is a file.

    The record of a file has an empty spec, and the path as it was given for its id.

    Raises:
        NotFoundError: Neither a run nor a file.
        ForeignFileError: The file cannot be read.
    """
    import msgspec

    from sysbench.core.compare.difference import DifferenceSide
    from sysbench.core.inspection.decoding import Decoding
    from sysbench.core.runs.artifacts import layer_rows
    from sysbench.core.runs.run_directory import find_run
    from sysbench.core.runs.stored_records import load_record
    from sysbench.tui.commands.inspect_report import decoding_progress

    path = Path(text)
    if path.is_file():
        decoding = Decoding(path)
        with decoding_progress() as show:
            inspection = decoding.run(show)
        record = msgspec.structs.replace(inspection.as_record(), id=text)
        return DifferenceSide(record, layer_rows(decoding.entry.as_run, record)), True
    try:
        run = find_run(text)
    except NotFoundError as error:
        raise NotFoundError(f"{error}; nor is there a file of that name") from None
    record = load_record(run)
    return DifferenceSide(record, layer_rows(run, record)), False


def _lines(
    comparison: Comparison,
    sides: tuple[DifferenceSide, DifferenceSide],
    cut: Cut,
    width: int,
    *,
    of_files: bool,
) -> Iterator[Line]:
    from sysbench.core.tables.trust import is_perturbed
    from sysbench.tui.commands.comparison_report import (
        comparison_lines,
        difference_lines,
        memory_lines,
    )

    yield from comparison_lines(comparison, width, of_files=of_files)
    if comparison.a != comparison.b and comparison.difference is not None:
        perturbed = any(side.kernels and is_perturbed(side.kernels) for side in sides)
        yield from difference_lines(comparison.difference, cut, width, perturbed=perturbed)
        yield from memory_lines(comparison, width)
