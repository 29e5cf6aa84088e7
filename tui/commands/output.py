"""What goes to stdout: one JSON document, or lines that suit a terminal or a pipe."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable

import msgspec

from .layout import Line

PIPE_WIDTH = 100
UNCUT = 10_000


def print_json(value: object) -> None:
    """Exactly one JSON document."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(text.decode() + "\n")


def page_width(*, cut: bool = True) -> int:
    """Columns to fill: the terminal's; in a pipe ``$COLUMNS`` or 100, or all if not ``cut``."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    if not cut:
        return UNCUT
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdigit() and int(columns) >= 40 else PIPE_WIDTH


def print_lines(lines: Iterable[Line]) -> None:
    """Lines with their styles on a terminal, and plain text anywhere else."""
    if sys.stdout.isatty():
        _print_styled(lines)
        return
    for line in lines:
        sys.stdout.write("".join(text for text, _ in line).rstrip() + "\n")


def _print_styled(lines: Iterable[Line]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    for line in lines:
        text = Text.assemble(*line, no_wrap=True, overflow="ellipsis")
        console.print(text, soft_wrap=False)
