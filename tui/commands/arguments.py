"""Arguments that several commands share. Import-light, so that --help stays fast."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from sysbench.core.errors import SpecError
from sysbench.core.formatting import parse_bytes, parse_ratio

WORDS = "words"
"""Destination of words that may appear between options."""
RUN_HELP = "id of a run, a unique part of it, `last`, `last~1` (the one before), or its directory"
PYTHON_HELP = (
    "Python interpreter or virtual environment that has torch (default: $SYSBENCH_PYTHON, else "
    "this program's own; an active virtual environment if only it has torch)"
)
EXIT_CODES = "exit codes: 0 done, 1 a run failed, 2 bad input, 130 cancelled"
READING_CODES = (
    "exit codes: 0 done, for any result; 1 a file cannot be read or written, 2 bad input,\n"
    "130 interrupted"
)
GATE_CODES = (
    "exit codes of a gate: 0 within the margin, 3 a regression, 4 not decidable, 1 a run failed\n"
    "or cannot be read, 2 bad input, 130 cancelled"
)


class Arguments(Protocol):
    """A parser or a group."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """See `argparse.ArgumentParser.add_argument`."""


def complete_with(action: argparse.Action, kind: str) -> None:
    """Let shells complete an argument to ``file`` or to a kind of `completions.KINDS`."""
    # shtab reads this attribute.
    vars(action)["complete"] = (
        kind
        if kind == "file"
        else {
            "bash": f"_sysbench_tui_{kind}",
            "zsh": f"_sysbench_tui_words {kind}",
            "fish": f"(_sysbench_tui_words {kind})",
        }
    )


def examples(*lines: tuple[str, str]) -> str:
    """Format example commands, each with a note or ""."""
    width = max((len(command) for command, note in lines if note), default=0)
    rows = (f"  {command:<{width}}  {note}".rstrip() for command, note in lines)
    return "examples:\n" + "\n".join(rows)


def add_flag(parser: Arguments, name: str, meaning: str) -> None:
    parser.add_argument(name, action="store_true", help=meaning)


def add_no_wait(parser: Arguments) -> None:
    add_flag(parser, "--no-wait", "fail if another run holds the device")


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    complete_with(parser.add_argument("run", metavar="RUN", help=RUN_HELP), "run")


def add_settings(parser: Arguments, flag: str, meaning: str) -> None:
    """Add a repeatable ``KEY=VALUE`` option for `parse_settings`; ``--set-b`` is ``settings_b``."""
    action = parser.add_argument(
        flag,
        dest=flag.removeprefix("--").replace("set", "settings", 1).replace("-", "_"),
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=meaning,
    )
    complete_with(action, "setting")


def add_table_formats(parser: argparse.ArgumentParser) -> None:
    printed = parser.add_mutually_exclusive_group()
    add_flag(printed, "--md", "print the tables as Markdown")
    add_flag(printed, "--csv", "print the tables as CSV, not rounded")


def add_wide(parser: argparse.ArgumentParser, tables: str) -> None:
    add_flag(
        parser,
        "--wide",
        f"do not truncate {tables} (default: terminal width, or 120 columns in a pipe)",
    )


def refuse_wide_report(arguments: argparse.Namespace) -> None:
    """
    Raises:
        SpecError: ``--wide`` without ``--section``.
    """
    if arguments.wide and arguments.section is None:
        raise SpecError("--wide", "given", "requires --section NAME")


def add_no_pager(parser: argparse.ArgumentParser) -> None:
    add_flag(parser, "--no-pager", "print long output directly instead of opening $PAGER or less")


def imported_file(run: str) -> Path | None:
    """The path of an imported file named instead of a run, else None; ``last`` is always a run."""
    path = Path(run)
    return path if path.is_file() and not re.fullmatch(r"last(~\d+)?", run) else None


def refuse_file_choice(arguments: argparse.Namespace) -> None:
    """
    Raises:
        SpecError: An option of `add_file_choice` was given for a run.
    """
    for name in ("device", "steps", "capture"):
        if getattr(arguments, name) is not None:
            raise SpecError(f"--{name}", "given", "only for imported files")


def add_file_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        type=int,
        metavar="N",
        help="device to show if the file has several (default: the busiest; of a snapshot, the one "
        "that ran out of memory, else the one with the most bytes)",
    )
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument(
        "--step", type=one_step, dest="steps", metavar="N", help="show only this marked step"
    )
    steps.add_argument(
        "--steps", type=steps_range, metavar="N-M", help="show only these marked steps"
    )
    capture = parser.add_argument(
        "--capture",
        metavar="FILE",
        help="trace in which the replayed CUDA graphs were captured; adds their\n"
        "operators, modules and FLOPs",
    )
    complete_with(capture, "file")


def one_step(text: str) -> tuple[int, int]:
    """Parse ``3`` as the range ``3-3``."""
    return steps_range(f"{text}-{text}")


def steps_range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a step or a range of steps, such as 3 or 2-5"
        )
    return int(match[1]), int(match[2])


def add_tree_options(parser: argparse.ArgumentParser) -> None:
    tree = parser.add_argument_group("options of --section tree")
    tree.add_argument("--depth", type=parse_count, metavar="N", help="show N levels below the step")
    tree.add_argument(
        "--match",
        metavar="REGEX",
        help="show only nodes whose path (module, /operator, /kernel) matches",
    )


def add_row_options(parser: argparse.ArgumentParser) -> None:
    rows = parser.add_argument_group("rows of the tables")
    rows.add_argument("--top", type=parse_count, metavar="N", help="show the first N rows")
    rows.add_argument(
        "--fields", type=column_names, default=(), metavar="A,B", help="show only these columns"
    )
    rows.add_argument(
        "--min-share",
        metavar="P",
        help="leave out rows with a smaller share, such as 1%% or 0.01; the tree combines them",
    )


def add_brief(parser: argparse.ArgumentParser) -> None:
    add_flag(parser, "--brief", "print a summary: at most 30 lines, or with --json 4 KiB")


def column_names(text: str) -> tuple[str, ...]:
    """Parse ``a,b``."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def parse_count(text: str) -> int:
    """Parse an integer >= 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: an integer, 0 or more")
    return int(text)


def output_path(text: str) -> str:
    """Return the name of a file or folder to write; ``-`` is none."""
    if text == "-":
        raise argparse.ArgumentTypeError("'-' is not standard output: name a file, such as ./-.md")
    return text


def size_bytes(text: str) -> int:
    """Parse a size such as ``24GiB`` to bytes."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def share_of_one(text: str) -> float:
    """Parse a share of one, such as ``1%`` or ``0.01``."""
    try:
        share = parse_ratio(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a share between 0 and 1, such as 1% or 0.01")
    return share


def share_above_zero(text: str) -> float:
    share = share_of_one(text)
    if not share:
        raise argparse.ArgumentTypeError(f"{text!r}: above 0, such as 1% or 0.01")
    return share


def split_commands(words: Sequence[str]) -> list[list[str]]:
    """Split words at each ``--``: those before the first, then one list for each command."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts
