"""`window`: trace the next steps of a watched command, or count its memory in them."""

from __future__ import annotations

import argparse

from sysbench.tui.commands.arguments import add_run_argument, examples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Trace the next steps of a command that `watch` started, with torch.profiler. The tables\n"
        "of kernels are in its report when it has ended. With --memory they are not traced: who\n"
        "holds memory is counted at the end of each phase."
    )
    parser.epilog = examples(
        ("sysbench-tui window last --steps 3", ""),
        ("sysbench-tui window last --memory 3", "a ledger, modules, and what grows"),
    )
    add_run_argument(parser)
    parser.add_argument(
        "--steps", type=int, default=3, metavar="N", help="steps to trace (default: 3)"
    )
    parser.add_argument(
        "--memory",
        type=int,
        metavar="N",
        help="count who holds memory in the next N steps, instead of tracing them",
    )
