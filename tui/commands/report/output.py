"""Output to stdout: one JSON document, or lines that suit a terminal or a pipe."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from .layout import Line

PIPE_WIDTH = 100
UNCUT = 10_000


def write(text: str) -> None:
    """Write text to stdout; once its reader has left (``| head``), drop it."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        _forget_reader()


def flush() -> None:
    """Flush the buffer, so that no error is left for the interpreter's exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_reader()


def _forget_reader() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: object) -> None:
    """Print exactly one JSON document."""
    write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def page_width(*, cut: bool = True) -> int:
    """Columns to fill: the terminal's; in a pipe ``$COLUMNS`` or 100, or all if not ``cut``."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    if not cut:
        return UNCUT
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdigit() and int(columns) >= 40 else PIPE_WIDTH


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines, with their styles on a terminal, else as plain text."""
    if sys.stdout.isatty():
        _print_styled(lines)
        return
    for line in lines:
        write("".join(text for text, _ in line).rstrip() + "\n")


def _print_styled(lines: Iterable[Line]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    for line in lines:
        # Nothing is wrapped or cut here: tables fit already, and commands are for copying.
        console.print(Text.assemble(*line), soft_wrap=True)
