"""Compare two runs or files: verdict, factors, figures of both, and rows that changed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import msgspec

from sysbench.core.compare.compared_records import NOTHING_KNOWN
from sysbench.core.compare.comparison import Comparison, compare, describe_factors
from sysbench.core.compare.difference import DifferenceSide, difference
from sysbench.core.compare.gate_rule import gate_line, gate_of
from sysbench.core.compare.nodes import Difference
from sysbench.core.compare.verdict import MIN_EFFECT, Verdict, describe_verdict
from sysbench.core.errors import NotFoundError, SpecError
from sysbench.core.experiments.experiment_report import shared_experiment
from sysbench.core.experiments.known import known_noise
from sysbench.core.export.text_formats import tables_as_csv, tables_as_markdown
from sysbench.core.inspection.decoding import Decoding
from sysbench.core.runs.artifacts import layer_rows
from sysbench.core.runs.run_directory import find_run
from sysbench.core.runs.stored_records import load_record
from sysbench.core.tables.cells import columns_of, literal
from sysbench.core.tables.difference_rows_tree import Cut, change_tables
from sysbench.core.tables.memory_tables import difference_tables
from sysbench.core.tables.table import Table
from sysbench.core.tables.trust import is_perturbed
from sysbench.core.tables.verdict_sides import factor_table
from sysbench.tui.commands.compare import DEPTH, MIN_SHARE
from sysbench.tui.commands.layout import (
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
from sysbench.tui.commands.output import page_width, print_json, print_paged, say, write_text
from sysbench.tui.commands.progress import decoding_progress

LARGEST_CHANGES = 10
LEDGERS = "ledger-difference"
"""Left out, since the tree of rows contains it."""
STYLES = {
    "faster": "bold green",
    "slower": "bold red",
    "same": "bold",
    "not decidable": "bold yellow",
    "not the same computation": "bold yellow",
}
TIMES = ("change_ns", "a_ns", "b_ns")
NARROW = 120
"""Below this width counts and phases are left out."""
KERNEL_DEPTH = 4
"""Levels down to the kernels; fusions go deeper."""
DEEPER = f"--depth {KERNEL_DEPTH} goes down to the kernels, --min 0 shows every row that changed"
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


def comparison_lines(comparison: Comparison, width: int, *, of_files: bool) -> Iterator[Line]:
    yield [(f"A  {literal(comparison.a)}", "")]  # not truncated, so that they can be copied
    yield [(f"B  {literal(comparison.b)}", "")]
    yield blank()
    if comparison.a == comparison.b:
        yield from prose(
            f"Nothing differs: A and B are the same {'file' if of_files else 'run'}.", width
        )
        return
    has_peaks = None not in (comparison.a_peak_bytes, comparison.b_peak_bytes)
    if of_files:
        yield from prose("No verdict: a file has no timing pass.", width)
    else:
        yield from verdict_lines(comparison.step, width)
        yield blank()
        style = "bold yellow" if len(comparison.factors) > 1 else ""
        yield from prose(literal(describe_factors(comparison.factors)), width, style=style)
        for title, factors in (
            ("What differs", comparison.factors),
            ("Measured differently", comparison.procedure),
        ):
            if factors:
                yield from titled(title, table_lines(factor_table(factors), width))
        if comparison.phases:
            yield from titled("Medians", table_lines(_phases(comparison), width))
    if has_peaks or not of_files:
        yield from titled("Peak allocated", table_lines(_peaks(comparison), width))


def difference_lines(
    difference: Difference, cut: Cut, width: int, *, perturbed: bool
) -> Iterator[Line]:
    """Yield the summary, its notes, and the rows that changed.

    Args:
        perturbed: Whether tracing changed a side's step too much to trust its times.
    """
    texts = [prose(literal(text), width - INDENT, hang=2) for text in difference.summary]
    if texts:
        yield from titled("What changed", indented(chain.from_iterable(texts)))
    yield from note(map(literal, difference.notes), width)
    yield from note(map(literal, difference.missing.values()), width)
    tables = change_tables(difference, cut)
    for table in tables:
        marked = TIMES if perturbed and "change_ns" in table.columns else ()
        contents = columns_of(table)
        columns = [name for name in table.shown if not contents[name].is_blank(unknown=True)]
        drop = DROPPED if width < NARROW else ()
        lines = table_lines(table, width, columns=columns, drop=drop, perturbed=marked)
        yield from titled(literal(table.title), lines)
    if tables and (cut.least or (cut.depth is not None and cut.depth < KERNEL_DEPTH)):
        yield from note([DEEPER], width)


def memory_lines(comparison: Comparison, width: int) -> Iterator[Line]:
    for table in difference_tables(comparison.memory) if comparison.memory else ():
        if table.name != LEDGERS and table.rows:
            shown = msgspec.structs.replace(table, rows=table.rows[:LARGEST_CHANGES])
            more = len(table.rows) - len(shown.rows)
            title = f"{table.title}; {more} smaller ones omitted" if more else table.title
            yield from titled(title, table_lines(shown, width))


def _phases(comparison: Comparison) -> Table:
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


def print_comparison(arguments: argparse.Namespace) -> int:
    """Return the gate's exit code, or 0 if both sides could be read."""
    (a, a_is_file), (b, b_is_file) = _read_side(arguments.a), _read_side(arguments.b)
    of_files = a_is_file or b_is_file
    change = difference(a, b)
    known = NOTHING_KNOWN if of_files else known_noise(a.record, b.record)
    experiment = shared_experiment(a.record, b.record)
    smallest = arguments.smallest or (
        experiment.experiment().smallest if experiment else MIN_EFFECT
    )
    comparison = compare(a.record, b.record, known, smallest=smallest)
    comparison = msgspec.structs.replace(comparison, difference=change)
    gate = None
    if arguments.gate is not None:
        if of_files:
            raise SpecError("--gate", arguments.gate, "for two runs: a file has no rounds to judge")
        if a.record.id == b.record.id:
            raise SpecError("B", b.record.id, "another run than A: a gate judges B against A")
        gate = gate_of(a.record, b.record, comparison.step, arguments.gate, known)
    depth, least = (None, 0.0) if arguments.csv or arguments.md else (DEPTH, MIN_SHARE)
    cut = Cut(
        depth=depth if arguments.depth is None else arguments.depth,
        least=least if arguments.min is None else arguments.min,
    )
    if arguments.json:
        print_json({**msgspec.to_builtins(comparison), "gate": gate})
    elif arguments.md:
        write_text(tables_as_markdown(change_tables(change, cut)))
    elif arguments.csv:
        write_text(tables_as_csv(change_tables(change, cut)).decode())
    else:
        lines = _lines(comparison, (a, b), cut, page_width(), of_files=of_files)
        print_paged(lines, page=not arguments.no_pager)
    if gate is None:
        return 0
    if not arguments.json:
        # Never wrapped, for scripts that search for it; to stderr if stdout is CSV.
        if arguments.csv:
            say(gate_line(gate), to_stderr=True)
        else:
            write_text(f"\n{gate_line(gate)}\n")
    return gate.exit_code


def _read_side(text: str) -> tuple[DifferenceSide, bool]:
    """Read a run or a file; return also whether it is a file.

    The record of a file has an empty spec and the path as its id.

    Raises:
        NotFoundError: Neither a run nor a file.
        ForeignFileError: The file cannot be read.
    """
    path = Path(text)
    if path.is_file():
        decoding = Decoding(path)
        with decoding_progress() as progress:
            inspection = decoding.run(progress.show)
        record = msgspec.structs.replace(inspection.as_record(), id=text)
        return DifferenceSide(record, layer_rows(decoding.entry.as_run, record)), True
    try:
        run = find_run(text)
    except NotFoundError as error:
        raise NotFoundError(f"{error}; no file has that name") from None
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

    yield from comparison_lines(comparison, width, of_files=of_files)
    if comparison.a != comparison.b and comparison.difference is not None:
        perturbed = any(side.kernels and is_perturbed(side.kernels) for side in sides)
        yield from difference_lines(comparison.difference, cut, width, perturbed=perturbed)
        yield from memory_lines(comparison, width)
