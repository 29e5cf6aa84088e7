"""Decode an imported file or a folder of ranks, and print its tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, dropwhile
from pathlib import Path

import msgspec

from sysbench.core.errors import NotFoundError
from sysbench.core.export.exports import refuse_existing
from sysbench.core.export.report_document import inspection_as_markdown, inspection_tables
from sysbench.core.export.text_formats import tables_as_markdown
from sysbench.core.inspection.decoding import Decoding, bundled_run
from sysbench.core.inspection.inspection import Inspection
from sysbench.core.inspection.ranks_folder import FolderDecoding, FolderError, merge_traces
from sysbench.core.inspection.reading import under_peak
from sysbench.core.machine.peaks import parse_peak
from sysbench.core.ranks.rank_rows import Ranks
from sysbench.core.spec.command_line import measuring_command
from sysbench.core.tables.brief import Brief, brief_of
from sysbench.core.tables.cells import literal
from sysbench.core.tables.kernel_tables import top_kernels
from sysbench.core.tables.memory_tables import largest_alike_table
from sysbench.core.tables.overview import overview
from sysbench.core.tables.ranks_tables import ranks_notes, ranks_tables
from sysbench.core.tables.section_tables import SectionSource, tables_in
from sysbench.core.tables.sections import SECTIONS
from sysbench.core.tables.table import Table, folded, select
from sysbench.core.trace.roofline import roof_points
from sysbench.core.watch.supervise_job import job_spec
from sysbench.tui.commands.answers import (
    cannot_answer,
    print_brief,
    print_chosen,
    print_record_brief,
    section_csv,
)
from sysbench.tui.commands.arguments import refuse_wide_report
from sysbench.tui.commands.output import page_width, print_json, print_paged, write_text
from sysbench.tui.commands.progress import decoding_progress
from sysbench.tui.commands.reading_options import RANKS
from sysbench.tui.commands.report_sections import (
    collectives_section,
    host_sections,
    print_row,
    section_document,
    section_lines,
    show,
    steps_section,
    tree_of,
    tree_options,
)
from sysbench.tui.commands.run_report import (
    KERNEL_ROWS,
    LARGEST_ROWS,
    category_section,
    findings_lines,
    full_table,
    kernel_warnings,
    memory_section,
    nsys_section,
    overview_section,
)
from sysbench.tui.commands.text_lines import (
    INDENT,
    Line,
    blank,
    indented,
    note,
    prose,
    table_lines,
    titled,
)
from sysbench.tui.text import KIND_WORDS, file_text, folder_text

NEEDS = {
    "steps": "no step markers found in this file",
    "collectives": "no GPU ran one",
    "annotations": "the program opened no range of its own (record_function, NVTX)",
    "python": "it has no Python stacks of launches (with_stack=True)",
    "api": "it has no GPU runtime calls (for an nsys export: --section nsys)",
}
"""Why a file may lack a section."""

OF_FOLDERS = (RANKS, "steps", "collectives", "memory")


def inspection_lines(inspection: Inspection, width: int) -> Iterator[Line]:
    yield [(literal(inspection.file), "bold")]  # not truncated, so that it can be copied
    yield from prose(file_text(inspection), width)
    yield blank()
    answer = overview(inspection.as_record())
    yield from overview_section(answer, width)
    yield from findings_lines((*answer.further, *answer.warnings), width)
    if (kernels := inspection.kernels) and not kernels.is_empty:
        if kernels.marked_steps:
            yield from steps_section(kernels.marked_steps, width)
        table = top_kernels(kernels, KERNEL_ROWS, placed=kernels.source == "kernels")
        if not kernels.lacks_kernels:  # the overview begins with the reason
            yield from kernel_warnings(kernels, width)
        yield from titled(table.title, table_lines(table, width, total=True))
        explained = {"kernels"} if kernels.lacks_kernels else set()  # by the overview
        reasons = [why for key, why in kernels.missing.items() if key not in explained]
        yield from note(map(literal, reasons), width)
        yield from category_section(kernels, width)
        if kernels.collectives:
            yield from collectives_section(kernels.collectives, width)
        if inspection.ranks:
            yield from _tables_of_ranks(inspection.ranks, width)
        yield from host_sections(kernels, width)
    if nsys := inspection.nsys:
        yield from nsys_section(nsys, width)
    if memory := inspection.memory:
        yield from memory_section(memory, width)
        shown = largest_alike_table(memory, LARGEST_ROWS)
        # Without owners all categories are alike.
        shown = select(shown, [name for name in shown.columns if name != "category"])
        yield from full_table(shown, width, drop=("block_bytes",))


def show_file(arguments: argparse.Namespace) -> int:
    refuse_wide_report(arguments)
    if Path(arguments.file).is_dir():
        return _show_folder(arguments)
    if arguments.merged:
        raise NotFoundError(f"--merged requires a folder of ranks, and {arguments.file} is a file")
    if bundled_run(Path(arguments.file)):
        return _show_bundle(arguments)
    options = tree_options(arguments)
    peak = parse_peak(arguments.peak) if arguments.peak else None
    decoding = Decoding(
        Path(arguments.file),
        arguments.memory_limit,
        arguments.device,
        arguments.steps,
        Path(arguments.capture) if arguments.capture else None,
    )
    with decoding_progress() as progress:
        inspection = decoding.run(progress.show)
    if peak:
        inspection = under_peak(inspection, peak)
    run, record, section = decoding.entry.as_run, inspection.as_record(), arguments.section
    if section == RANKS:
        return _show_ranks_of_file(arguments, inspection)
    try:
        _require(inspection, section)
    except NotFoundError as error:
        if arguments.json:
            block = SECTIONS[section].block
            print_json(cannot_answer(str(error), measuring_command(job_spec(["COMMAND"]), block)))
        raise

    def tables() -> list[Table]:
        by_section = inspection_tables(inspection, tree_of(run, record, options))
        return [table for name in _chosen(section, by_section) for table in by_section[name]]

    def document() -> object:
        return section_document(run, record, section, options) if section else inspection

    if getattr(arguments, "row", None):
        print_row(arguments, record, tables(), tree_of(run, record, options))
        return 0
    if arguments.brief:
        print_record_brief(arguments, record, inspection.file)
        return 0
    head = {name: getattr(inspection, name) for name in ("kind", "file", "missing")}
    if print_chosen(arguments, tables, head):
        return 0

    if section:
        width, page = page_width(in_full=True, wide=arguments.wide), page_width()
        lines = section_lines(run, record, section, width, page, options)
    else:
        lines = inspection_lines(inspection, page_width())
    markdown = tables_as_markdown if section else partial(inspection_as_markdown, inspection)
    _print(arguments, tables, markdown, document, lines)
    return 0


def _show_bundle(arguments: argparse.Namespace) -> int:
    """Show the run of a bundle as `show` does."""
    file = arguments.file
    if arguments.section and arguments.section not in SECTIONS:
        raise NotFoundError(f"no {arguments.section} in {file}: it is a bundle of a run")
    for name in ("md", "csv", "peak"):
        if getattr(arguments, name):
            raise NotFoundError(
                f"--{name} is not for the bundle of a run: `sysbench-tui export {file} csv` or "
                "`md` writes its tables"
            )
    return show(argparse.Namespace(**{"row": None, **vars(arguments), "run": file}))


def _show_ranks_of_file(arguments: argparse.Namespace, inspection: Inspection) -> int:
    ranks = inspection.ranks
    if arguments.steps:
        raise NotFoundError("--section ranks covers a whole file: leave out --steps")
    if ranks is None:
        raise NotFoundError(
            "--section ranks requires a folder of ranks, or a file with collectives of several "
            f"devices: {inspection.file} has them of at most one"
        )
    width = page_width(in_full=True, wide=arguments.wide)
    by_section = ranks_tables(ranks)
    lines = chain.from_iterable(ranks_section_lines(ranks, name, width) for name in by_section)
    tables = [table for name in by_section for table in by_section[name]]
    if print_chosen(arguments, lambda: tables, {"file": inspection.file}):
        return 0
    _print(arguments, lambda: tables, tables_as_markdown, lambda: ranks.rows, lines)
    return 0


def _chosen(section: str | None, by_section: Mapping[str, object]) -> Iterable[str]:
    return [name for name in by_section if section in (None, name)]


def _print(
    arguments: argparse.Namespace,
    tables: Callable[[], list[Table]],
    markdown: Callable[[list[Table]], str],
    document: Callable[[], object],
    lines: Iterator[Line],
) -> None:
    if arguments.md:
        write_text(markdown(tables()))
    elif arguments.csv:
        write_text(section_csv(arguments, tables()))
    elif arguments.json:
        print_json(document())
    else:
        if arguments.section:
            lines = dropwhile(lambda line: not line, lines)
        print_paged(lines, page=not arguments.no_pager)


def _show_folder(arguments: argparse.Namespace) -> int:
    folder, section = Path(arguments.file), arguments.section
    refused = [
        name
        for name in ("steps", "capture", "peak", "depth", "match")
        if getattr(arguments, name) is not None
    ]
    if refused:
        flag = f"--{refused[0].replace('_', '-')}"
        raise FolderError(f"{flag} requires a single file of {folder}")
    if arguments.merged:
        refuse_existing([Path(arguments.merged)], force=True)
    with decoding_progress() as progress:
        decoding = FolderDecoding(folder, arguments.memory_limit, arguments.device)
        ranks = decoding.run(lambda path, step: progress.show(step))
        tables = ranks_tables(ranks)
        if section and section not in tables:
            reason = f": it has {', '.join(tables)}" if section in OF_FOLDERS else " for ranks"
            reason = f"no {section} in the folder {folder}{reason}"
            if arguments.json:
                print_json(cannot_answer(reason, ""))
            raise NotFoundError(reason)
        if arguments.merged:
            merge_traces(
                folder, ranks, Path(arguments.merged), progress.show, arguments.memory_limit
            )
    if section:
        lines = ranks_section_lines(ranks, section, page_width(in_full=True, wide=arguments.wide))
    else:
        lines = ranks_lines(ranks, page_width())
    chosen = [table for name in _chosen(section, tables) for table in tables[name]]
    if arguments.brief:
        print_brief(arguments, _brief_of_ranks(ranks, chosen), lines)
        return 0
    head = {"folder": ranks.folder, "missing": ranks.missing}
    if print_chosen(arguments, lambda: chosen, head):
        return 0
    document = getattr(ranks, "rows" if section == RANKS else section) if section else ranks
    _print(arguments, lambda: chosen, tables_as_markdown, lambda: document, lines)
    return 0


def _brief_of_ranks(ranks: Ranks, tables: Iterable[Table]) -> Brief:
    return brief_of(
        ranks.folder,
        [folder_text(ranks), *ranks_notes(ranks)],
        numbers=msgspec.structs.asdict(ranks),
        tables=tables,
        findings=ranks.findings,
        missing=ranks.missing,
    )


def _require(inspection: Inspection, section: str | None) -> None:
    """
    Raises:
        NotFoundError: The file has no data for this section.
    """
    if section is None or section == "findings":
        return
    block = SECTIONS[section].block
    if getattr(inspection, block) is None:
        reason = inspection.missing.get(block, f"it is a {KIND_WORDS[inspection.kind]}")
        raise NotFoundError(f"no {section} in {inspection.file}: {reason}")
    source = SectionSource(record=inspection.as_record())
    if section in NEEDS and inspection.kernels and not tables_in(section, source):
        raise NotFoundError(f"no {section} in {inspection.file}: {NEEDS[section]}")
    if section == "roofline" and inspection.kernels and not roof_points(inspection.kernels):
        why = inspection.kernels.missing
        reason = why.get("flops", "no operator's bytes are known")
        raise NotFoundError(f"no {section} in {inspection.file}: {reason}")


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
    yield from findings_lines(ranks.findings, width)
    yield from _tables_of_ranks(ranks, width)


def _tables_of_ranks(ranks: Ranks, width: int) -> Iterator[Line]:
    for section, (table, *_) in ranks_tables(ranks).items():
        shown = table
        if section == "steps":
            summed = [name for name in table.columns if name.endswith("_ns")]
            shown = folded(table, STEPS_SHOWN, "step", summed)
        drop: tuple[str, ...] = DROPPED.get(section, ())
        if ranks.one_clock:  # the file is the device or process
            drop = (*(name for name in drop if name != "file"), "clock_ahead_ns")
        lines = table_lines(shown, width, drop=drop)
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
        yield from indented(prose(literal(text), width - INDENT, style="dim"))
