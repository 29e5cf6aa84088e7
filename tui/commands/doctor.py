"""`doctor`: the tools and devices here, the missing ones, and the cost of each."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...core.errors import InterpreterError, SpecError
from ...core.machine.doctor.check import Check
from ...core.tables.cells import literal
from .arguments import examples
from .noise.doctor_noise import add_noise_arguments, measure_noise, mistake
from .rates.doctor_measure import add_rate_arguments, measure_devices, rate_mistake
from .report.output import page_width, print_json, print_lines

if TYPE_CHECKING:
    from .report.layout import Line

_STYLES = {"ok": "green", "warning": "yellow", "missing": "red"}
_STATUS = 9
_COLUMN = 24
"""Cells of the label where no name is longer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add the options of the noise."""
    parser.description = (
        "Look at the GPU, driver, torch, nsys, permissions, the terminal and the home;\n"
        "with --noise measure how far the times of one spec lie apart here, and why;\n"
        "with --measure what each device can do: products, memory, transfers, launches."
    )
    parser.epilog = examples(
        ("sysbench-tui doctor", ""),
        ("sysbench-tui doctor --noise", "3 minutes, on an otherwise idle machine"),
        ("sysbench-tui doctor --measure", "roofs and MFU then rest on it"),
    )
    add_noise_arguments(parser)
    add_rate_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the checks, always 0, since a missing tool is an answer, not a failure.

    With ``--noise`` or ``--measure`` measure instead, with the exit codes of a run.
    """
    if wrong := mistake(arguments) or rate_mistake(arguments):
        raise SpecError("doctor", wrong, "see `sysbench-tui doctor --help`")
    if arguments.noise:
        return measure_noise(arguments)
    if arguments.measure:
        return measure_devices(arguments)
    from ...core.machine.doctor.checks import examine

    checks = [*examine(), *_measured()]
    if arguments.json:
        print_json(checks)
    else:
        column = max(_COLUMN, *(_STATUS + len(check.name) + 1 for check in checks))
        print_lines(line for check in checks for line in _lines(check, page_width(), column))
    return 0


def _measured() -> list[Check]:
    """Rates and noise floor of the device that runs take unless they name another."""
    from ...core.machine.devices import resolve_device, sample_of, torch_facts
    from ...core.machine.environment import cpu_model
    from ...core.runs.ab.noise import noise_check
    from ...core.runs.rates.store import rates_check

    try:
        device, torch, now_ns = resolve_device("auto"), torch_facts()["version"], time.time_ns()
    except InterpreterError:
        return []  # a check says it already
    sample = sample_of(device)
    name = sample.name if sample else cpu_model()
    return [rates_check(device, torch, now_ns), noise_check(name, torch, now_ns)]


def _lines(check: Check, width: int, column: int) -> Iterator[Line]:
    from .report.layout import labelled

    label = f"{check.status:<{_STATUS}}{check.name}"
    style = _STYLES[check.status]
    yield from labelled(label, literal(check.found), width, column=column, label_style=style)
    for name, text in (("costs", check.costs), ("do", check.remedy)):
        if text:
            yield from labelled("", f"{name}: {literal(text)}", width, column=column, style="dim")
