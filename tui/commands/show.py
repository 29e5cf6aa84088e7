"""`show`: print the report of a run, or one section in full."""

from __future__ import annotations

import argparse
from itertools import dropwhile

from sysbench.core.errors import SpecError
from sysbench.core.runs.run_directory import find_run
from sysbench.core.tables.sections import SECTIONS
from sysbench.tui.commands.arguments import (
    add_file_choice,
    add_no_pager,
    add_run_argument,
    add_tree_options,
    add_wide,
    examples,
    imported_file,
    refuse_file_choice,
    refuse_wide_report,
)
from sysbench.tui.commands.inspect import OF_FILES
from sysbench.tui.commands.output import page_width, print_json, print_paged


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the report of a run. --section prints every row of one section, and --wide does\n"
        "not truncate names. Instead of a run you can name a file that `inspect` reads."
    )
    parser.epilog = examples(
        ("sysbench-tui show last", ""),
        ("sysbench-tui show last --section kernels --wide | grep softmax", ""),
        ("sysbench-tui show last --section tree --depth 4 --min-share 1%", ""),
        ("sysbench-tui show last --section tree --match 'attention.*exp'", ""),
        ("sysbench-tui show 20261121-1204 --json", "the record"),
    )
    add_run_argument(parser)
    parser.add_argument("--section", choices=SECTIONS, help="print only this section, in full")
    add_wide(parser, "a section")
    add_no_pager(parser)
    add_file_choice(parser)
    add_tree_options(parser)


def main(arguments: argparse.Namespace) -> int:
    from sysbench.core.runs.stored_records import load_record  # lazy: --help stays fast
    from sysbench.tui.commands import report_sections as sections  # lazy: --help stays fast
    from sysbench.tui.commands.run_report import full_report  # lazy: --help stays fast

    if imported_file(arguments.run):
        return _show_file(arguments)
    refuse_file_choice(arguments)
    refuse_wide_report(arguments)
    options = sections.tree_options(arguments)
    run = find_run(arguments.run)
    record = load_record(run)
    section = arguments.section
    if arguments.json:
        print_json(sections.section_as_json(run, record, section, options) if section else record)
    elif section:
        width, page = page_width(in_full=True, wide=arguments.wide), page_width()
        lines = sections.section_lines(run, record, section, width, page, options)
        print_paged(dropwhile(lambda line: not line, lines), page=not arguments.no_pager)
    else:
        print_paged(full_report(run, record, page_width()), page=not arguments.no_pager)
    return 0


def _show_file(arguments: argparse.Namespace) -> int:
    """Show an imported file like `inspect` with its default options."""
    from sysbench.tui.commands.inspect_report import show_file  # lazy: --help stays fast

    if arguments.section not in (None, *OF_FILES):
        raise SpecError("--section", arguments.section, f"a file has {', '.join(OF_FILES)}")
    defaults = {"csv": False, "md": False, "peak": None, "memory_limit": 0, "merged": None}
    return show_file(argparse.Namespace(**vars(arguments) | defaults, file=arguments.run))
