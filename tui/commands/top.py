"""`top`: show GPUs, processes and the host now."""

from __future__ import annotations

import argparse

from sysbench.tui.commands.arguments import add_wide, examples, parse_count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the machine now: GPUs with load, memory, power, clocks and what lowers them; the\n"
        "processes on each; CPU, memory and disks of the host; what ran beside the last run.\n"
        "On a terminal it opens the workstation at this screen; in a pipe it prints once."
    )
    parser.epilog = examples(
        ("sysbench-tui top", "the screen; it is also F9"),
        ("sysbench-tui top --once", "print once"),
        ("sysbench-tui top --json | jq '.gpus.rows[].utilization'", ""),
    )
    parser.add_argument("--once", action="store_true", help="print once, also on a terminal")
    parser.add_argument(
        "-n",
        "--limit",
        type=parse_count,
        metavar="N",
        help="list at most N processes of the host (default: 10, with --json 30)",
    )
    add_wide(parser, "the tables")
