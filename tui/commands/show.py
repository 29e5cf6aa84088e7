"""`show`: print the report of a run, or one section in full."""

from __future__ import annotations

import argparse

from sysbench.core.tables.sections import SECTIONS
from sysbench.tui.commands.arguments import (
    add_brief,
    add_file_choice,
    add_no_pager,
    add_run_argument,
    add_tree_options,
    add_wide,
    examples,
)


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
        ("sysbench-tui show last --section kernels --top 5 --fields name,share,calls", ""),
        ("sysbench-tui show 20261121-1204 --json", "the record"),
    )
    add_run_argument(parser)
    parser.add_argument("--section", choices=SECTIONS, help="print only this section, in full")
    parser.add_argument(
        "--row",
        metavar="KEY",
        help="print all about one row; `--section NAME --json` has the `key` of each",
    )
    add_wide(parser, "a section")
    add_brief(parser)
    add_no_pager(parser)
    add_file_choice(parser)
    add_tree_options(parser)
