"""`ab`: measure two specs alternately in fresh processes until the comparison is decided."""

from __future__ import annotations

import argparse

from sysbench.core.compare.verdict import MIN_EFFECT
from sysbench.tui.commands.arguments import (
    add_brief,
    add_settings,
    complete_with,
    examples,
    share_above_zero,
    share_of_one,
)

MAX_MINUTES = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure A and B in pairs of fresh processes that take turns, until B is faster, slower,\n"
        "or the same within the smallest difference that matters. Where both do not fit the\n"
        "device, one process measures at a time, in blocks of four (ABBA or BAAB at random).\n"
        "The plan and the progress go to stderr, the report to stdout. Both sides are ordinary\n"
        "runs, and --resume continues an experiment that was stopped.\n"
        "After --, A and B are two commands, and each time one runs to its end is a round: its\n"
        "figure is the median step that `watch` would record, or the wall time."
    )
    parser.epilog = examples(
        ("sysbench-tui ab eager.toml compiled.toml", "two files"),
        ("sysbench-tui ab last --set-b compile=default", "the newest run's spec, one change"),
        ("sysbench-tui ab tiny tiny", "A against A: shows the machine's noise"),
        ("sysbench-tui ab base.toml new.toml --gate 3% --md", "for a pull request"),
        ("sysbench-tui ab --resume last", "continue after a stop or a kill"),
        ("sysbench-tui ab -- 'python a.py' -- 'python b.py'", "two commands"),
    )
    spec_help = "a TOML file, a saved profile, a model, or a run (its id, a part of it, `last`)"
    a = parser.add_argument(
        "a", nargs="?", metavar="A", help=f"{spec_help}; a run's spec is measured again"
    )
    b = parser.add_argument(
        "b", nargs="?", metavar="B", help="spec to compare with A (default: A with --set-b)"
    )
    complete_with(a, "side")
    complete_with(b, "side")
    meaning = "change one key of both specs; repeatable (`run --help` lists the keys)"
    add_settings(parser, "--set", meaning)
    add_settings(parser, "--set-b", "change one key of B only; repeatable")
    parser.add_argument(
        "--python-b",
        metavar="PATH",
        help="Python interpreter for B, for example with another torch",
    )
    parser.add_argument(
        "--smallest",
        type=share_above_zero,
        metavar="SHARE",
        help=f"smallest difference that matters (default: {100 * MIN_EFFECT:g}%%)",
    )
    parser.add_argument(
        "--max-minutes",
        type=_minutes,
        metavar="M",
        help=f"start no pair or block of rounds after M minutes (default: {MAX_MINUTES:g})",
    )
    parser.add_argument(
        "--gate",
        type=share_of_one,
        metavar="SHARE",
        help="stop when B is known to be slower by more than this (exit 3) or not (exit 0)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="random seed for the order of the rounds"
    )
    parser.add_argument(
        "--one-at-a-time",
        action="store_true",
        help="measure no pairs, but one process at a time in blocks of four",
    )
    parser.add_argument(
        "--metric",
        choices=("steps", "wall"),
        help="of two commands: median steps or wall times (default: steps if there are any)",
    )
    parser.add_argument("--resume", metavar="ID", help="continue this experiment, or `last`")
    parser.add_argument(
        "--detach", action="store_true", help="start the experiment and return at once"
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="fail if another run holds the device"
    )
    parser.add_argument("--md", action="store_true", help="print the report as Markdown")
    add_brief(parser)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: minutes, above 0")
    return minutes
