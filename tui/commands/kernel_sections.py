"""The kernel parts of a report: tables, tree and answers, under coverage and perturbation."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.formatting import parse_ratio
from sysbench.core.record.record import Kernels, Record
from sysbench.core.record.steps import MarkedSteps, TracedCollective
from sysbench.core.runs.artifacts import layer_rows
from sysbench.core.runs.related import runs_with_other_steps
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.cells import literal
from sysbench.core.tables.collectives_tables import NOTE, collectives_table
from sysbench.core.tables.host_tables import (
    NOTE as RANGES_NOTE,
)
from sysbench.core.tables.host_tables import annotations_table, calls_table, functions_table
from sysbench.core.tables.kernel_tables import kernel_table
from sysbench.core.tables.steps_tables import steps_notes, steps_table
from sysbench.core.tables.table import Table
from sysbench.core.tables.tree_rows import tree_table
from sysbench.core.tables.trust import coverage_words, is_perturbed, steps_words
from sysbench.core.trace.attention_kernels import Answer
from sysbench.core.trace.module_tree import (
    TreeNode,
    from_share,
    kernel_tree,
    matching,
    to_depth,
)
from sysbench.core.trace.questions import questions_of
from sysbench.tui.commands.layout import Line, blank, note, prose, table_lines, titled
from sysbench.tui.commands.run_report import category_section, kernel_warnings, perturbed_columns

MOST_STEPS = 12
MOST_COLLECTIVES = 8
MOST_RANGES = 10
MOST_CALLS = 6


class TreeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the tree to print; everything by default."""

    depth: int | None = None
    min_share: float = 0.0
    match: re.Pattern[str] | None = None


def tree_options(arguments: argparse.Namespace) -> TreeOptions:
    """Parse the options of `show` for the tree.

    Raises:
        SpecError: One that cannot be read, or one without ``--section tree``.
    """
    given = {"depth": arguments.depth, "match": arguments.match, "min-share": arguments.min_share}
    for name, value in given.items():
        if value is not None and arguments.section != "tree":
            raise SpecError(f"--{name}", value, "belongs to --section tree")
    return TreeOptions(
        depth=arguments.depth,
        min_share=_share(arguments.min_share or "0"),
        match=_pattern(arguments.match) if arguments.match is not None else None,
    )


def _share(text: str) -> float:
    try:
        share = parse_ratio(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise SpecError("--min-share", text, "a part of the step, such as 1% or 0.01")
    return share


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise SpecError("--match", text, f"not a regular expression: {error}") from None


def tree_of(run: RunDirectory, record: Record, options: TreeOptions) -> TreeNode | None:
    """The requested part of the run's tree; None when the run was not traced.

    Raises:
        SpecError: Nothing in the tree matches.
    """
    kernels = layer_rows(run, record)
    if kernels is None:
        return None
    tree = kernel_tree(kernels, record.memory)
    if options.match is not None:
        matched = matching(tree, options.match.search)
        if matched is None:
            raise SpecError("--match", options.match.pattern, "nothing in the tree matches")
        tree = matched
    tree = from_share(tree, options.min_share)
    return tree if options.depth is None else to_depth(tree, options.depth)


def tree_section(record: Record, tree: TreeNode, width: int, page: int) -> Iterator[Line]:
    """One indented line for each node; columns without a known value are left out."""
    assert record.kernels is not None
    table = tree_table(tree, perturbed=is_perturbed(record.kernels))
    yield from kernel_head(record, page)
    perturbed = perturbed_columns(record.kernels, table)
    lines = table_lines(table, width, perturbed=perturbed)
    yield blank()
    yield from prose(literal(table.title), page, style="bold")
    yield from lines


def steps_section(marked: MarkedSteps, width: int, most: int = MOST_STEPS) -> Iterator[Line]:
    """The marked steps, the odd ones among them named; of many the longest, in order."""
    table = steps_table(marked)
    if len(table.rows) > most + 1:
        longest = sorted(range(len(marked.rows)), key=lambda at: -marked.rows[at].ns)[:most]
        rows = [table.rows[at] for at in sorted(longest)]
        title = f"{table.title}; the {most} longest"
        table = msgspec.structs.replace(table, rows=(*rows, table.rows[-1]), title=title)
    idle = [name for name in table.columns if name.endswith("_ns") and name in table.headings]
    drop = ("name", "host_ns", "unattributed_ns", "requests", "kernels", *reversed(idle), "share")
    yield from titled(table.title, table_lines(table, width, drop=drop))
    yield from note(steps_notes(marked), width)


def collectives_section(
    rows: Sequence[TracedCollective], width: int, most: int = MOST_COLLECTIVES
) -> Iterator[Line]:
    """The collectives that take longest, and what their times have in them."""
    table = collectives_table(rows)
    shown = msgspec.structs.replace(table, rows=table.rows[:most])
    drop = ("which", "group", "max_ns", "algorithm_gbs", "min_ns", "mean_ns", "name", "dtype")
    yield from titled(table.title, table_lines(shown, width, drop=drop))
    yield from note([NOTE], width)


def host_sections(kernels: Kernels, width: int) -> Iterator[Line]:
    """The longest of a file's annotations, Python functions and calls of the runtime."""
    side = kernels.host
    if side is None:
        return
    for table, most in (
        (annotations_table(kernels, side), MOST_RANGES),
        (functions_table(kernels, side), MOST_RANGES),
        (calls_table(side), MOST_CALLS),
    ):
        if not table.rows:
            continue
        shown = _first_rows(table, most)
        yield from titled(shown.title, table_lines(shown, width))
        if table.name == "annotations":
            yield from note([RANGES_NOTE], width)


def _first_rows(table: Table, most: int) -> Table:
    """The first rows; the title says how many there are, and where they all are."""
    if len(table.rows) <= most + 1:
        return table
    title = f"{table.title}; {most} of {len(table.rows):,} rows (--section {table.name})"
    return msgspec.structs.replace(table, rows=table.rows[:most], title=title)


def answers_of(record: Record) -> list[Answer]:
    """The answers from this run, and from others of its spec in the library."""
    return questions_of(record, runs_with_other_steps(record)) if record.kernels else []


def questions_section(record: Record, answers: Sequence[Answer], width: int) -> Iterator[Line]:
    """Each question with its sentence, and the commands that would measure missing values."""
    yield from kernel_head(record, width)
    for answer in answers:
        yield blank()
        yield from prose(answer.question, width, style="bold")
        yield from [[("  ", ""), *line] for line in prose(literal(answer.sentence), width - 2)]
        for command in answer.commands:
            yield [(f"  $ {command}", "dim")]


def kernels_section(record: Record, width: int, page: int) -> Iterator[Line]:
    """Every row, then the categories."""
    assert record.kernels is not None
    table = kernel_table(record.kernels)
    perturbed = perturbed_columns(record.kernels, table)
    yield from kernel_head(record, page)
    yield from titled(table.title, table_lines(table, width, perturbed=perturbed))
    yield from category_section(record.kernels, width)


def kernel_head(record: Record, width: int) -> Iterator[Line]:
    """Warnings, the coverage of the tables, and the perturbation of the step by tracing."""
    assert record.kernels is not None
    yield from kernel_warnings(record.kernels, width)
    yield from note(coverage_words(record.kernels), width)
    yield from note(steps_words(record), width)
