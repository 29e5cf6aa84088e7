"""`window`: trace the next steps of a watched command."""

from __future__ import annotations

import argparse

from sysbench.tui.commands.arguments import add_run_argument, examples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Trace the next steps of a command that `watch` started, with torch.profiler. The tables\n"
        "of kernels are in its report when it has ended."
    )
    parser.epilog = examples(("sysbench-tui window last --steps 3", ""))
    add_run_argument(parser)
    parser.add_argument(
        "--steps", type=int, default=3, metavar="N", help="steps to trace (default: 3)"
    )
