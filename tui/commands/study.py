"""`study`: run the cells of a grid, show its tables, list the studies."""

from __future__ import annotations

import argparse

from sysbench.tui.commands.arguments import (
    add_settings,
    complete_with,
    examples,
    output_path,
)

FORMATS = ("md", "csv", "json", "html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments; ``show`` and ``list`` are actions instead of a study's name."""
    parser.description = (
        "Run every cell of a study that has no value yet, each in fresh processes, and print\n"
        "its tables. Finished cells are kept; out of memory counts as a value.\n"
        "docs/studies.md describes the format."
    )
    parser.epilog = examples(
        ("sysbench-tui study list", "the known experiments"),
        ("sysbench-tui study precision --variant small", "on a CPU"),
        ("sysbench-tui study e2e --only model=large --dry-run", "forecast only"),
        ("sysbench-tui study show e2e --format html -o e2e.html", ""),
        ("sysbench-tui study e2e --slurm partition=gpu,gres=gpu:1,time=30", "one job per cell"),
    )
    name = parser.add_argument(
        "name",
        metavar="NAME|FILE",
        help="name of a study, or a TOML file; or the actions show NAME, list",
    )
    target = parser.add_argument("target", nargs="?", metavar="NAME", help="the study to show")
    complete_with(name, "study")
    complete_with(target, "study")
    parser.add_argument("--variant", default="", help="variant of the study, such as small")
    meaning = "replace an axis (values separated by commas) or a fixed key; repeatable"
    add_settings(parser, "--set", meaning)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="AXIS=VALUE",
        help="run only these values of an axis (separated by commas); repeatable",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        metavar="N",
        help="rounds of the whole grid; comparisons need 6 or more",
    )
    parser.add_argument(
        "--max-minutes", type=float, metavar="M", help="start no cell after M minutes"
    )
    parser.add_argument(
        "--slurm",
        action="append",
        nargs="?",
        const="",
        metavar="KEY=VALUE,…",
        help="run each cell as a job of a Slurm array, with these options of sbatch; repeatable",
    )
    parser.add_argument("--retry", action="store_true", help="run failed cells once more")
    parser.add_argument(
        "--yes",
        action="store_true",
        help="start a study of more than 10 minutes without asking; a pipe is never asked",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show the cells and a forecast, run nothing"
    )
    parser.add_argument("--format", choices=FORMATS, default="", help="output format of show")
    parser.add_argument(
        "-o", "--output", type=output_path, metavar="PATH", help="file for the output of show"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def main(arguments: argparse.Namespace) -> int:
    from sysbench.tui.commands.study_actions import run_action  # lazy: --help stays fast

    return run_action(arguments)
