"""Arguments that several commands share. Nothing heavy is imported here."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, Protocol

from sysbench.core.errors import SpecError
from sysbench.core.formatting import parse_bytes, parse_ratio

WORDS = "words"
"""Name of the words that a command takes wherever they stand between its options."""
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
    "exit codes of a gate: 0 same or better, 3 a regression, 4 not decidable, 1 a run failed\n"
    "or cannot be read, 2 bad input, 130 cancelled"
)


class Arguments(Protocol):
    """A parser, or a group of one."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """Add an argument, as argparse does."""


def complete_with(action: argparse.Action, kind: str) -> None:
    """Let shells complete an argument to ``file``, or to a kind of `shell.completions.KINDS`."""
    # shtab reads the attribute, by shell.
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
    """The examples at the end of a help: commands, each with a note or ""."""
    width = max((len(command) for command, note in lines if note), default=0)
    rows = (f"  {command:<{width}}  {note}".rstrip() for command, note in lines)
    return "examples:\n" + "\n".join(rows)


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``RUN``, as `find_run` takes it."""
    complete_with(parser.add_argument("run", metavar="RUN", help=RUN_HELP), "run")


def add_settings(parser: Arguments, flag: str, meaning: str) -> None:
    """Add a repeatable ``KEY=VALUE``, read by `parse_settings`: ``--set-b`` as ``settings_b``."""
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
    """Add ``--md`` and ``--csv``, which exclude each other."""
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--md", action="store_true", help="print the tables as Markdown")
    printed.add_argument("--csv", action="store_true", help="print the tables as CSV, not rounded")


def add_wide(parser: argparse.ArgumentParser, tables: str) -> None:
    """Add ``--wide``, with the tables that it widens."""
    parser.add_argument(
        "--wide",
        action="store_true",
        help=f"do not truncate {tables} (default: terminal width, or 120 columns in a pipe)",
    )


def refuse_wide_report(arguments: argparse.Namespace) -> None:
    """Refuse ``--wide`` for a report, whose tables are cut to the page on purpose.

    Raises:
        SpecError: It was given without a section.
    """
    if arguments.wide and arguments.section is None:
        raise SpecError("--wide", "given", "requires --section NAME")


def add_no_pager(parser: argparse.ArgumentParser) -> None:
    """Add ``--no-pager``, for `report.output.print_paged`."""
    parser.add_argument(
        "--no-pager",
        action="store_true",
        help="print long output directly instead of opening $PAGER or less",
    )


def imported_file(run: str) -> Path | None:
    """The path of an imported file named instead of a run, else None; ``last`` is always a run."""
    path = Path(run)
    return path if path.is_file() and not re.fullmatch(r"last(~\d+)?", run) else None


def refuse_file_choice(arguments: argparse.Namespace) -> None:
    """Refuse the options of `add_file_choice` for a run.

    Raises:
        SpecError: One of them was given.
    """
    for name in ("device", "steps", "capture"):
        if getattr(arguments, name) is not None:
            raise SpecError(f"--{name}", "given", "only for imported files")


def add_file_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options for imported files: device, steps, and a capture to join."""
    parser.add_argument(
        "--device",
        type=int,
        metavar="N",
        help="device to show if the file has several (default: the busiest)",
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
    """A step's number, as first and last of a range.

    Raises:
        argparse.ArgumentTypeError: Not a number.
    """
    return steps_range(f"{text}-{text}")


def steps_range(text: str) -> tuple[int, int]:
    """The first and the last number of ``2-5``.

    Raises:
        argparse.ArgumentTypeError: Not two numbers in order.
    """
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a step or a range of steps, such as 3 or 2-5"
        )
    return int(match[1]), int(match[2])


def add_tree_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `report.kernel_sections.tree_options` reads."""
    tree = parser.add_argument_group("options of --section tree")
    tree.add_argument("--depth", type=parse_count, metavar="N", help="show N levels below the step")
    tree.add_argument(
        "--match",
        metavar="REGEX",
        help="show only nodes whose path (module, /operator, /kernel) matches",
    )
    tree.add_argument(
        "--min-share",
        metavar="P",
        help="combine nodes that take less of the step, such as 1%% or 0.01",
    )


def parse_count(text: str) -> int:
    """A whole number, 0 or more.

    Raises:
        argparse.ArgumentTypeError: Anything else.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number, 0 or more")
    return int(text)


def size_bytes(text: str) -> int:
    """Bytes of a size such as ``24GiB``.

    Raises:
        argparse.ArgumentTypeError: No size.
    """
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def share_of_one(text: str) -> float:
    """A share of one, written ``1%`` or ``0.01``.

    Raises:
        argparse.ArgumentTypeError: No share of one.
    """
    try:
        share = parse_ratio(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a share between 0 and 1, such as 1% or 0.01")
    return share


def share_above_zero(text: str) -> float:
    """A share of one, but not zero.

    Raises:
        argparse.ArgumentTypeError: No share of one, or zero.
    """
    share = share_of_one(text)
    if not share:
        raise argparse.ArgumentTypeError(f"{text!r}: above 0, such as 1% or 0.01")
    return share
