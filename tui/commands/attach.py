"""`attach`: follow a live run, or an experiment, from any terminal until it ends."""

from __future__ import annotations

import argparse

from sysbench.tui.commands.arguments import add_run_argument, examples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Follow a run or an experiment of `ab` from any terminal. Ctrl+C stops following; the\n"
        "run goes on."
    )
    parser.epilog = examples(("sysbench-tui attach last", ""))
    add_run_argument(parser)
