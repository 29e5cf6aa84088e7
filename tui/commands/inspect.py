"""`inspect`: a foreign chrome trace, memory snapshot or nsys export, or a folder of ranks."""

from __future__ import annotations

import argparse
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.core.errors import NotFoundError
from sysbench.core.machine.peaks import parse_peak
from sysbench.core.tables.sections import INSPECTED, SECTIONS
from sysbench.tui.commands.arguments import (
    add_file_choice,
    add_no_pager,
    add_table_formats,
    add_tree_options,
    add_wide,
    complete_with,
    examples,
    refuse_wide_report,
    size_bytes,
)
from sysbench.tui.commands.output import page_width, print_json, print_paged, write_text

if TYPE_CHECKING:
    from sysbench.core.inspection.inspection import Inspection


NEEDS = {
    "steps": "no step markers found in this file",
    "collectives": "no GPU ran one",
    "annotations": "the program opened no range of its own (record_function, NVTX)",
    "python": "it has no Python stacks of launches (with_stack=True)",
    "api": "it has no GPU runtime calls (for an nsys export: --section nsys)",
}
"""Sections of kernels that not every file has, and why one is absent."""


OF_FILES = ("findings", *INSPECTED)
"""The sections of ``--section``."""
RANKS = "ranks"
"""The section that a folder has beside those of `OF_FOLDERS`."""
OF_FOLDERS = (RANKS, "steps", "collectives", "memory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file, the options of decoding, and the parts to show."""
    parser.description = (
        "Analyse a Chrome trace of torch.profiler (.json, .json.gz), a CUDA memory snapshot\n"
        "(pickle) or an nsys export (SQLite). The format is detected from the content. A\n"
        "separate process with a memory limit decodes the file, and the result is cached.\n"
        "For a folder with one file per rank it compares the ranks; their clocks are aligned\n"
        "by common collectives."
    )
    parser.epilog = examples(
        ("sysbench-tui inspect trace.json.gz", ""),
        ("sysbench-tui inspect trace.json.gz --section tree --depth 4", ""),
        ("sysbench-tui inspect trace.json.gz --section steps", ""),
        ("sysbench-tui inspect trace.json.gz --steps 2-5", ""),
        ("sysbench-tui inspect trace.json.gz --section roofline --peak 989.4,3350", ""),
        ("sysbench-tui inspect snapshot.pickle --json | jq .memory.ledger", ""),
        ("sysbench-tui inspect report.sqlite --section kernels --csv > kernels.csv", ""),
        ("sysbench-tui inspect run.json.gz --capture capture.json.gz", "for CUDA graphs"),
        ("sysbench-tui inspect traces/ --merged all.json.gz", ""),
        ("sysbench-tui export trace.json.gz csv", "a CSV file for each table"),
    )
    file = parser.add_argument(
        "file", metavar="FILE", help="a file, or a folder of ranks; never modified"
    )
    complete_with(file, "file")
    parser.add_argument(
        "--section", choices=(*OF_FILES, RANKS), help="print only this section, in full"
    )
    add_table_formats(parser)
    add_wide(parser, "a section")
    add_no_pager(parser)
    parser.add_argument(
        "--peak",
        metavar="TFLOPS[,GB/S]",
        help="peak TFLOP/s and GB/s of the device, for the roofline (default: table of GPUs)",
    )
    parser.add_argument(
        "--memory-limit",
        type=size_bytes,
        default=0,
        metavar="SIZE",
        help="memory limit for decoding (default: half of this machine's, at most 16GiB)",
    )
    add_file_choice(parser)
    parser.add_argument(
        "--merged",
        metavar="OUT",
        help="for a folder: also write one merged trace on one clock, for Perfetto "
        "(.json or .json.gz)",
    )
    add_tree_options(parser)


def main(arguments: argparse.Namespace) -> int:
    """Show the file; 0 when it could be read."""
    from sysbench.core.export.inspected_file import (
        inspection_as_markdown,
        inspection_tables,
        tables_as_markdown,
    )
    from sysbench.core.export.text_formats import table_as_csv, tables_as_tidy_csv
    from sysbench.core.inspection.decoding import Decoding
    from sysbench.core.inspection.reading import under_peak
    from sysbench.tui.commands.inspect_report import decoding_progress, inspection_lines
    from sysbench.tui.commands.report_sections import (
        section_as_json,
        section_lines,
        tree_of,
        tree_options,
    )

    refuse_wide_report(arguments)
    if Path(arguments.file).is_dir():
        return _show_folder(arguments)
    for flag, given in (
        ("--section ranks", arguments.section == RANKS),
        ("--merged", arguments.merged),
    ):
        if given:
            raise NotFoundError(
                f"{flag} requires a folder of ranks, and {arguments.file} is a file"
            )
    options = tree_options(arguments)
    peak = parse_peak(arguments.peak) if arguments.peak else None
    decoding = Decoding(
        Path(arguments.file),
        arguments.memory_limit,
        arguments.device,
        arguments.steps,
        Path(arguments.capture) if arguments.capture else None,
    )
    with decoding_progress() as show:
        inspection = decoding.run(show)
    if peak:
        inspection = under_peak(inspection, peak)
    run, record, section = decoding.entry.as_run, inspection.as_record(), arguments.section
    _require(inspection, section)
    if arguments.csv or arguments.md:
        sections = inspection_tables(inspection, tree_of(run, record, options))
        tables = [
            table
            for name in ([section] if section else sections)
            for table in sections.get(name, ())
        ]
        if arguments.md:
            write_text(
                tables_as_markdown(tables)
                if section
                else inspection_as_markdown(inspection, tables)
            )
        else:
            # The table that a section is named after is the section; a file without a section,
            # and one without such a table, is all tables, a value a line.
            tables = [table for table in tables if table.name == section] or tables
            only = len(tables) == 1
            write_text((table_as_csv(tables[0]) if only else tables_as_tidy_csv(tables)).decode())
    elif arguments.json:
        print_json(section_as_json(run, record, section, options) if section else inspection)
    elif section:
        width, page = page_width(in_full=True, wide=arguments.wide), page_width()
        lines = section_lines(run, record, section, width, page, options)
        print_paged(dropwhile(lambda line: not line, lines), page=not arguments.no_pager)
    else:
        print_paged(inspection_lines(inspection, page_width()), page=not arguments.no_pager)
    return 0


def _show_folder(arguments: argparse.Namespace) -> int:
    """Show a folder of ranks; 0 when they could be read."""
    from sysbench.core.export.inspected_file import tables_as_markdown
    from sysbench.core.export.text_formats import table_as_csv, tables_as_tidy_csv
    from sysbench.core.inspection.ranks_folder import FolderError, merge_traces
    from sysbench.core.inspection.ranks_reading import FolderDecoding
    from sysbench.core.tables.ranks_tables import ranks_tables
    from sysbench.tui.commands.inspect_report import decoding_progress
    from sysbench.tui.commands.ranks_lines import ranks_lines, ranks_section_lines

    folder, section = Path(arguments.file), arguments.section
    refused = [
        name
        for name in ("steps", "capture", "peak", "depth", "match", "min_share")
        if getattr(arguments, name) is not None
    ]
    if refused:
        flag = f"--{refused[0].replace('_', '-')}"
        raise FolderError(f"{flag} requires a single file of {folder}")
    with decoding_progress() as show:
        decoding = FolderDecoding(folder, arguments.memory_limit, arguments.device)
        ranks = decoding.run(lambda path, step: show(step))
        tables = ranks_tables(ranks)
        if section and section not in tables:
            reason = f": it has {', '.join(tables)}" if section in OF_FOLDERS else " of ranks"
            raise NotFoundError(f"no {section} in the folder {folder}{reason}")
        if arguments.merged:
            merge_traces(folder, ranks, Path(arguments.merged), show, arguments.memory_limit)
    chosen = [table for name in ([section] if section else tables) for table in tables[name]]
    if arguments.md:
        write_text(tables_as_markdown(chosen))
    elif arguments.csv:
        # As of a file: the table that a section is named after is the section.
        named = [table for table in chosen if table.name == section] or chosen
        only = len(named) == 1
        write_text((table_as_csv(named[0]) if only else tables_as_tidy_csv(named)).decode())
    elif arguments.json:
        print_json(getattr(ranks, "rows" if section == RANKS else section) if section else ranks)
    elif section:
        width = page_width(in_full=True, wide=arguments.wide)
        lines = dropwhile(lambda line: not line, ranks_section_lines(ranks, section, width))
        print_paged(lines, page=not arguments.no_pager)
    else:
        print_paged(ranks_lines(ranks, page_width()), page=not arguments.no_pager)
    return 0


def _require(inspection: Inspection, section: str | None) -> None:
    """Refuse a section for which the file has no data."""
    from sysbench.core.trace.roofline import roof_points
    from sysbench.tui.text import KIND_WORDS

    if section is None or section == "findings":
        return
    block = SECTIONS[section].block
    if getattr(inspection, block) is None:
        reason = inspection.missing.get(block, f"it is a {KIND_WORDS[inspection.kind]}")
        raise NotFoundError(f"no {section} in {inspection.file}: {reason}")
    if section in NEEDS and inspection.kernels and _is_empty(inspection, section):
        raise NotFoundError(f"no {section} in {inspection.file}: {NEEDS[section]}")
    if section == "roofline" and inspection.kernels and not roof_points(inspection.kernels):
        why = inspection.kernels.missing
        reason = why.get("flops", "no operator's bytes are known")
        raise NotFoundError(f"no {section} in {inspection.file}: {reason}")


def _is_empty(inspection: Inspection, section: str) -> bool:
    from sysbench.core.tables.sections import SectionSource

    return not SECTIONS[section].tables(SectionSource(record=inspection.as_record()))
