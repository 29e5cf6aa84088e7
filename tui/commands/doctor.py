"""`doctor`: the tools and devices here, the missing ones, and the cost of each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...core.machine.doctor.check import Check
from ...core.tables.cells import literal
from .arguments import examples
from .report.output import page_width, print_json, print_lines

if TYPE_CHECKING:
    from .report.layout import Line

_STYLES = {"ok": "green", "warning": "yellow", "missing": "red"}
_COLUMN = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command; it takes no arguments."""
    parser.description = (
        "Look at the GPU, driver, torch, nsys, permissions, the terminal and the home."
    )
    parser.epilog = examples(("sysbench-tui doctor", ""))


def main(arguments: argparse.Namespace) -> int:
    """Print the checks; always 0, since a missing tool is an answer, not a failure."""
    from ...core.machine.doctor.checks import examine

    checks = examine()
    if arguments.json:
        print_json(checks)
    else:
        print_lines(line for check in checks for line in _lines(check, page_width()))
    return 0


def _lines(check: Check, width: int) -> Iterator[Line]:
    from .report.layout import labelled

    label = f"{check.status:<8} {check.name}"
    style = _STYLES[check.status]
    yield from labelled(label, literal(check.found), width, column=_COLUMN, label_style=style)
    for name, text in (("costs", check.costs), ("do", check.remedy)):
        if text:
            yield from labelled("", f"{name}: {literal(text)}", width, column=_COLUMN, style="dim")
