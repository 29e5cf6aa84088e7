"""`list`: list all runs of this machine, newest first."""

from __future__ import annotations

import argparse

from sysbench.tui.commands.arguments import add_wide, examples, parse_count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List runs. With words, only runs whose id, model, settings, name or note contain all of\n"
        "them."
    )
    parser.epilog = examples(
        ("sysbench-tui list", ""),
        ("sysbench-tui list large bf16", "only these"),
        ("sysbench-tui list --json | jq '.rows[0].median_ms'", ""),
        ("sysbench-tui list --trash", "runs that `rm` or the Library deleted"),
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="show runs with all these words")
    parser.add_argument("-n", "--limit", type=parse_count, metavar="N", help="show the newest N")
    add_wide(parser, "the list, and show all columns")
    parser.add_argument("--trash", action="store_true", help="list the deleted runs instead")
