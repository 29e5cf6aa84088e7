"""`gate`: compare a run with a baseline, for CI."""

from __future__ import annotations

import argparse
from pathlib import Path

from sysbench.tui.commands.arguments import (
    RUN_HELP,
    complete_with,
    examples,
    share_above_zero,
    share_of_one,
)

MARGIN = 0.03


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare a run with a baseline: fail if its step is slower by more than a margin. Without\n"
        "RUN the baseline's spec is measured again, each round in a fresh process. A baseline of\n"
        "another machine or spec is reported as not comparable."
    )
    parser.epilog = examples(
        ("sysbench-tui gate main", "measure 6 rounds and compare"),
        ("sysbench-tui gate main --margin 2% --repeat 12", "a smaller margin takes more rounds"),
        ("sysbench-tui gate main last", "compare an existing run"),
        ("sysbench-tui gate main --file gate.json --md", "for a pull request"),
        ("sysbench-tui gate main --across torch", "after an upgrade of torch"),
    )
    name = parser.add_argument(
        "name", metavar="NAME", help="the baseline, see `sysbench-tui baseline`"
    )
    complete_with(name, "baseline")
    run = parser.add_argument(
        "run", metavar="RUN", nargs="?", help=f"{RUN_HELP} (default: measure the spec again)"
    )
    complete_with(run, "run")
    parser.add_argument(
        "--margin",
        type=share_of_one,
        default=MARGIN,
        metavar="P",
        help="allowed slowdown (default: 3%%)",
    )
    parser.add_argument(
        "--smallest",
        type=share_above_zero,
        metavar="P",
        help="smallest difference that matters to the verdict (default: 1%%)",
    )
    parser.add_argument(
        "--repeat", type=int, metavar="N", help="rounds to measure without RUN (default: 6)"
    )
    parser.add_argument(
        "--file", type=Path, metavar="PATH", help="read the baseline from this file"
    )
    parser.add_argument(
        "--across",
        action="append",
        default=[],
        choices=("torch", "threads"),
        help="compare although this differs; repeatable",
    )
    parser.add_argument("--md", action="store_true", help="print Markdown, for a pull request")
    parser.add_argument(
        "--no-wait", action="store_true", help="fail if another run holds the device"
    )
