"""`watch`: run a training command unchanged and record its steps."""

from __future__ import annotations

import argparse

from sysbench.tui.commands.arguments import add_brief, examples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run any command unchanged and record the steps of the training in it: waiting for input,\n"
        "forward, backward, optimizer, memory. Its output, exit code and signals are its own.\n"
        "Every Python process of it that imports torch is recorded; its code does not change."
    )
    parser.epilog = examples(
        ("sysbench-tui watch -- python train.py --lr 1e-4", ""),
        ("sysbench-tui watch -- torchrun --nproc-per-node 2 train.py", "two ranks"),
        ("sysbench-tui watch --pid 4711", "a process that runs already, Python 3.14 or later"),
        ("sysbench-tui attach last", "follow it from another terminal"),
        ("sysbench-tui show last --section job", "its steps"),
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print no report after the command has ended"
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="print the report to stderr even if that is not a terminal",
    )
    add_brief(parser)
    parser.add_argument(
        "--window",
        metavar="STEP:COUNT",
        default="",
        help="trace COUNT steps after that step, for the tables of kernels; `window` does it later",
    )
    parser.add_argument(
        "--memory",
        metavar="STEP:COUNT",
        default="",
        help="count who holds memory in COUNT steps after that step, at the end of each phase",
    )
    parser.add_argument(
        "--step-on",
        metavar="MODULE:FUNCTION",
        default="",
        help="let each call of this function be a step, for loops without an optimizer",
    )
    parser.add_argument(
        "--pid",
        type=int,
        metavar="N",
        help="record the steps of this process from now on; Ctrl+C stops watching, not the process",
    )
    parser.add_argument("command_words", metavar="COMMAND", nargs=argparse.REMAINDER)
