"""Print one section of a run in full, as lines or as JSON."""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Iterator, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.errors import DamagedFileError, SpecError
from sysbench.core.export.report_document import run_tables
from sysbench.core.formatting import format_bytes
from sysbench.core.inspection.decoding import bundled_run
from sysbench.core.memory.oom import out_of_memory
from sysbench.core.record.record import Kernels, Record
from sysbench.core.record.steps import MarkedSteps, TracedCollective
from sysbench.core.runs.artifacts import layer_rows, logs_of
from sysbench.core.runs.related import compile_break_even, runs_with_other_steps
from sysbench.core.runs.run_directory import RunDirectory, find_run, load_record
from sysbench.core.spec.command_line import measuring_command
from sysbench.core.storage import last_bytes, open_regular
from sysbench.core.tables.cells import literal
from sysbench.core.tables.context import findings_table
from sysbench.core.tables.host_tables import NOTE as RANGES_NOTE
from sysbench.core.tables.host_tables import (
    annotations_table,
    calls_table,
    functions_table,
    steps_notes,
    steps_table,
)
from sysbench.core.tables.kernel_tables import COLLECTIVES_NOTE, collectives_table
from sysbench.core.tables.listing import KEY, choose, listings, row_facts, row_keys
from sysbench.core.tables.section_tables import SectionSource, tables_in
from sysbench.core.tables.sections import SECTIONS
from sysbench.core.tables.table import QUANTITY, Table, facts
from sysbench.core.tables.tree_rows import tree_table
from sysbench.core.tables.trust import coverage_words, is_perturbed, steps_words
from sysbench.core.trace.attention_kernels import Answer
from sysbench.core.trace.module_tree import TreeNode, from_share, kernel_tree, matching, to_depth
from sysbench.core.trace.questions import questions_of
from sysbench.core.trace.roofline import roof_points
from sysbench.tui.commands.answers import (
    cannot_answer,
    min_share_of,
    print_chosen,
    print_record_brief,
    print_table_lines,
    row_choice,
)
from sysbench.tui.commands.arguments import imported_file, refuse_file_choice, refuse_wide_report
from sysbench.tui.commands.output import page_width, print_json, print_paged
from sysbench.tui.commands.reading_options import OF_FILES
from sysbench.tui.commands.run_report import (
    category_section,
    findings_lines,
    full_report,
    full_table,
    kernel_warnings,
    memory_section,
    perturbed_columns,
    rounds_section,
    timing_section,
)
from sysbench.tui.commands.text_lines import Line, blank, indented, note, prose, table_lines, titled

MAX_STEPS = 12
MAX_COLLECTIVES = 8
MAX_RANGES = 10
MAX_CALLS = 6


class TreeOptions(msgspec.Struct, frozen=True, kw_only=True):
    depth: int | None = None
    min_share: float = 0.0
    match: re.Pattern[str] | None = None


def tree_options(arguments: argparse.Namespace) -> TreeOptions:
    """Return the options for the tree.

    Raises:
        SpecError: An option without ``--section tree``.
    """
    options = {"depth": arguments.depth, "match": arguments.match}
    for name, value in options.items():
        if value is not None and arguments.section != "tree":
            raise SpecError(f"--{name}", value, "requires --section tree")
    return TreeOptions(
        depth=arguments.depth,
        min_share=min_share_of(arguments),
        match=_pattern(arguments.match) if arguments.match is not None else None,
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise SpecError("--match", text, f"not a regular expression: {error}") from None


def tree_of(run: RunDirectory, record: Record, options: TreeOptions) -> TreeNode | None:
    """Return the requested part of the run's tree; None if the run was not traced.

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


def steps_section(marked: MarkedSteps, width: int, limit: int = MAX_STEPS) -> Iterator[Line]:
    """Yield the marked steps; if there are many, only the longest."""
    table = steps_table(marked)
    if len(table.rows) > limit + 1:
        longest = sorted(range(len(marked.rows)), key=lambda row: -marked.rows[row].ns)[:limit]
        rows = [table.rows[row] for row in sorted(longest)]
        title = f"{table.title}; the {limit} longest"
        table = msgspec.structs.replace(table, rows=(*rows, table.rows[-1]), title=title)
    idle = [name for name in table.columns if name.endswith("_ns") and name in table.headings]
    drop = ("name", "host_ns", "unattributed_ns", "requests", "kernels", *reversed(idle), "share")
    yield from titled(table.title, table_lines(table, width, drop=drop))
    yield from note(steps_notes(marked), width)


def collectives_section(
    rows: Sequence[TracedCollective], width: int, limit: int = MAX_COLLECTIVES
) -> Iterator[Line]:
    table = collectives_table(rows)
    shown = msgspec.structs.replace(table, rows=table.rows[:limit])
    drop = ("which", "group", "max_ns", "algorithm_gbs", "min_ns", "mean_ns", "name", "dtype")
    yield from titled(table.title, table_lines(shown, width, drop=drop))
    yield from note([COLLECTIVES_NOTE], width)


def host_sections(kernels: Kernels, width: int) -> Iterator[Line]:
    side = kernels.host
    if side is None:
        return
    for table, limit in (
        (annotations_table(kernels, side), MAX_RANGES),
        (functions_table(kernels, side), MAX_RANGES),
        (calls_table(side), MAX_CALLS),
    ):
        if not table.rows:
            continue
        shown = _first_rows(table, limit)
        yield from titled(shown.title, table_lines(shown, width))
        if table.name == "annotations":
            yield from note([RANGES_NOTE], width)


def _first_rows(table: Table, limit: int) -> Table:
    """Return the first rows; the title contains their number and the section with all."""
    if len(table.rows) <= limit + 1:
        return table
    title = f"{table.title}; {limit} of {len(table.rows):,} rows (--section {table.name})"
    return msgspec.structs.replace(table, rows=table.rows[:limit], title=title)


def answers_of(record: Record) -> list[Answer]:
    """Return the answers from this run and from runs of the same spec with other steps."""
    return questions_of(record, runs_with_other_steps(record)) if record.kernels else []


def kernel_head(record: Record, width: int) -> Iterator[Line]:
    assert record.kernels is not None
    yield from kernel_warnings(record.kernels, width)
    yield from note(coverage_words(record.kernels), width)
    yield from note(steps_words(record), width)


_SHOWN_WITHOUT_ROWS = (
    *("origins", "largest", "telemetry", "environment", "nvtx", "nsys-devices"),
    *("nsys-kernel-sum", "nsys-copy-sum"),
)
"""Tables that are shown even without rows."""


def section_as_json(run: RunDirectory, record: Record, section: str, options: TreeOptions) -> Any:
    """Return the record's block of that name, or the data of a section that is not a block.

    ``log`` contains the lines of each pass, ``steps`` the marked steps of an imported file,
    ``annotations``, ``python`` and ``api`` its host tables, ``tree`` the root node, ``oom`` the
    out-of-memory block with the most detail.
    """
    match section:
        case "log":
            return {name: _end_of(run, path) for name, path in _logs(run, record)}
        case "rounds":
            return record.timing and record.timing.rounds
        case "tree":
            return tree_of(run, record, options)
        case "steps":
            return record.kernels and record.kernels.marked_steps
        case "collectives" | "copies":
            return record.kernels and getattr(record.kernels, section)
        case "annotations" | "python" | "api":
            return tables_in(section, SectionSource(record=record))
        case "questions":
            return answers_of(record)
        case "roofline":
            return roof_points(record.kernels, by_phase=True) if record.kernels else None
        case "oom":
            pass_and_oom = out_of_memory(record)
            return pass_and_oom and pass_and_oom[1]
        case _:
            return getattr(record, section)


def section_lines(
    run: RunDirectory,
    record: Record,
    section: str,
    width: int,
    page: int,
    options: TreeOptions,
) -> Iterator[Line]:
    """Yield the section: tables at most ``width`` cells wide, prose at most ``page``."""
    block = SECTIONS[section].block
    if block and getattr(record, block) is None:
        reason = record.missing.get(block, "it was not measured")
        yield from prose(f"no {section} in run {record.id}: {literal(reason)}", page)
        return
    source = SectionSource(record=record, worth=compile_break_even(record))
    tables = {table.name: table for table in tables_in(section, source, _SHOWN_WITHOUT_ROWS)}

    def in_full(*names: str) -> Iterator[Line]:
        for name in names:
            if name in tables:
                yield from full_table(tables[name], width)

    timing, kernels, memory = record.timing, record.kernels, record.memory
    covered: tuple[str, ...] = ()
    match section:
        case "timing" if timing:
            yield from timing_section(timing, width)
            covered = ("timing",)
        case "rounds" if timing and not timing.rounds:
            text = f"run {record.id} was timed by one process and has no rounds"
            yield from prose(text, page)
        case "rounds" if timing:
            yield from rounds_section(timing, width)
            covered = ("rounds",)
        case "kernels" if kernels:
            yield from kernel_head(record, page)
            table = tables["kernels"]
            perturbed = perturbed_columns(kernels, table)
            yield from titled(table.title, table_lines(table, width, perturbed=perturbed))
            yield from category_section(kernels, width)
            covered = ("kernels", "categories")
        case "steps" if kernels and (marked := kernels.marked_steps):
            yield from steps_section(marked, width, len(marked.rows))
            covered = ("steps",)
        case "steps":
            yield from prose("no step markers found in this file", page)
        case "annotations" | "python" | "api" if not tables:
            yield from prose(f"no {section} here: only imported files have them", page)
        case "collectives" if kernels and (rows := kernels.collectives):
            yield from collectives_section(rows, width, len(rows))
            covered = ("collectives",)
        case "collectives":
            yield from prose("no GPU collectives", page)
        case "tree" if kernels:
            tree = tree_of(run, record, options)
            assert tree is not None
            table = tree_table(tree, perturbed=is_perturbed(kernels))
            perturbed = perturbed_columns(kernels, table)
            yield from kernel_head(record, page)
            yield blank()
            yield from prose(literal(table.title), page, style="bold")
            yield from table_lines(table, width, perturbed=perturbed)
        case "questions":
            yield from kernel_head(record, page)
            for answer in answers_of(record):
                yield blank()
                yield from prose(answer.question, page, style="bold")
                yield from indented(prose(literal(answer.sentence), page - 2))
                yield from ([(f"  $ {command}", "dim")] for command in answer.commands)
            covered = ("questions",)
        case "memory" if memory:
            yield from in_full("memory")
            yield from memory_section(memory, page)
            yield from in_full("devices")
            covered = ("memory", "ledger", "card", "devices")
        case "oom" if not tables:
            yield from prose(f"no pass of run {record.id} ran out of memory", page)
        case "findings":
            if not record.findings:
                yield from prose("no finding: no rule fired on this run", page)
            yield from findings_lines(record.findings, page)
            covered = ("findings",)
        case "log":
            for name, path in _logs(run, record):
                literal_lines = ([(literal(line), "")] for line in _lines_of(run, path))
                yield from titled(f"{name}: {path}", literal_lines)
    yield from in_full(*(name for name in tables if name not in covered))


def _logs(run: RunDirectory, record: Record) -> Iterator[tuple[str, Path]]:
    return ((name, path) for name, path in logs_of(run, record) if path.is_file())


def _lines_of(run: RunDirectory, path: Path) -> Iterator[str]:
    """Yield the lines of a log; undecodable bytes are replaced, and very long lines are split."""
    try:
        with io.TextIOWrapper(open_regular(path, run.path), "utf-8", "replace") as file:
            while line := file.readline(MAX_LINE_CHARACTERS):
                yield line.rstrip("\n")
    except DamagedFileError as error:
        yield f"not read: {error}"


def _end_of(run: RunDirectory, path: Path) -> list[str]:
    """Return the lines of a log; of a long one only the last, with a note."""
    omitted_bytes = path.stat().st_size - MAX_LOG_BYTES
    if omitted_bytes <= 0:
        return list(_lines_of(run, path))
    lines = last_bytes(path, MAX_LOG_BYTES, inside=run.path).decode("utf-8", "replace")
    return [f"… the first {format_bytes(omitted_bytes)} are in {path}", *lines.splitlines()]


MAX_LINE_CHARACTERS = 2**16
MAX_LOG_BYTES = 2**24
"""Most of a log that one JSON document holds; as text it is printed whole, piece by piece."""


def section_document(
    run: RunDirectory, record: Record, section: str, options: TreeOptions
) -> dict[str, Any]:
    """Return the section's data as `section_as_json` does, beside its tables with keys.

    A list is ``rows``. Without data ``cannot_answer`` has the reason and the command that records
    it.
    """
    block = SECTIONS[section].block
    if block and getattr(record, block) is None:
        reason = record.missing.get(block, "it was not measured")
        return cannot_answer(reason, measuring_command(run.header().spec, block))
    data = section_as_json(run, record, section, options)
    tables = listings(section_tables(run, record, section, options))
    if data is None or isinstance(data, list):
        rows = msgspec.to_builtins(data or [])
        if section == "findings":
            keys = row_keys(findings_table(record))
            rows = [{**row, KEY: key} for row, key in zip(rows, keys, strict=True)]
        return {"rows": rows, "tables": tables}
    fields = data if isinstance(data, dict) else msgspec.to_builtins(data)
    return {**fields, "tables": tables}


def section_tables(
    run: RunDirectory, record: Record, section: str | None, options: TreeOptions
) -> list[Table]:
    if section is None:
        return run_tables(record)
    tree = tree_of(run, record, options) if section == "tree" else None
    others = runs_with_other_steps(record) if section == "questions" and record.kernels else ()
    source = SectionSource(record, others, compile_break_even(record), tree)
    return tables_in(section, source)


def print_row(
    arguments: argparse.Namespace, record: Record, tables: Sequence[Table], tree: TreeNode | None
) -> None:
    whole = [tree_table(tree) if tree and table.name == "tree" else table for table in tables]
    found = row_facts(whole, arguments.row)
    finding = next(
        (one for one in record.findings if arguments.row == f"findings:{one.rule}"), None
    )
    if arguments.json:
        cells = dict(zip(found.row.column(QUANTITY), found.row.column("value"), strict=True))
        print_json(
            {
                KEY: arguments.row,
                "title": found.row.title,
                "row": cells,
                "numbers": finding.numbers if finding else {},
                "tables": listings(found.related, row_choice(arguments)),
            }
        )
        return
    known = tuple(row for row in found.row.rows if row[1] not in (None, ""))
    shown = [msgspec.structs.replace(found.row, columns=(QUANTITY, "value"), rows=known)]
    if finding and finding.numbers:
        shown.append(facts("numbers", "Its numbers", finding.numbers))
    related = choose(found.related, row_choice(arguments))
    print_table_lines(arguments, [*shown, *related], page_width(in_full=True, wide=arguments.wide))


def show(arguments: argparse.Namespace) -> int:
    file = imported_file(arguments.run)
    bundled = bundled_run(file) if file else None
    if file and not bundled:
        return _show_file(arguments)
    refuse_file_choice(arguments)
    refuse_wide_report(arguments)
    options = tree_options(arguments)
    run = bundled or find_run(arguments.run)
    record = load_record(run)
    section = arguments.section
    if arguments.row:
        print_row(arguments, record, run_tables(record), tree_of(run, record, options))
        return 0
    if arguments.brief:
        print_record_brief(arguments, record, record.id)
        return 0
    head = {"id": record.id, "status": record.status, "missing": record.missing}
    if print_chosen(arguments, lambda: section_tables(run, record, section, options), head):
        return 0
    if arguments.json:
        print_json(section_document(run, record, section, options) if section else record)
    elif section:
        width, page = page_width(in_full=True, wide=arguments.wide), page_width()
        lines = section_lines(run, record, section, width, page, options)
        print_paged(dropwhile(lambda line: not line, lines), page=not arguments.no_pager)
    else:
        print_paged(full_report(run, record, page_width()), page=not arguments.no_pager)
    return 0


def _show_file(arguments: argparse.Namespace) -> int:
    """Show an imported file like `inspect` with its default options."""
    from sysbench.tui.commands.inspect_report import show_file  # lazy: import cycle

    if arguments.section not in (None, *OF_FILES):
        raise SpecError("--section", arguments.section, f"a file has {', '.join(OF_FILES)}")
    defaults = {"csv": False, "md": False, "peak": None, "memory_limit": 0, "merged": None}
    return show_file(argparse.Namespace(**vars(arguments) | defaults, file=arguments.run))
