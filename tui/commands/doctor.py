"""`doctor`: check the environment, and measure noise and peak rates."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sysbench.core.errors import InterpreterError, SpecError
from sysbench.core.machine.devices import resolve_device, sample_of, torch_facts
from sysbench.core.machine.doctor_check import Check
from sysbench.core.tables.cells import literal
from sysbench.tui.commands.arguments import add_flag, add_settings, examples
from sysbench.tui.commands.output import page_width, print_json, print_lines

if TYPE_CHECKING:
    from sysbench.tui.commands.text_lines import Line

_STYLES = {"ok": "green", "warning": "yellow", "missing": "red"}
_STATUS = 9
_COLUMN = 24
"""Minimum width of the label."""


def declare_doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check the GPU, driver, torch, nsys, permissions, the terminal and the home folder;\n"
        "with --noise measure run-to-run variation on this machine and its causes;\n"
        "with --measure measure peak rates: matrix products, memory, transfers, launches."
    )
    parser.epilog = examples(
        ("sysbench-tui doctor", ""),
        ("sysbench-tui doctor --noise", "3 minutes, on an otherwise idle machine"),
        ("sysbench-tui doctor --measure", "use measured rates for roofline and MFU"),
    )
    _add_noise_arguments(parser)
    _add_rate_arguments(parser)


def _add_noise_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the machine's noise")
    add_flag(
        group,
        "--noise",
        "measure run-to-run variation on this machine and its causes; the result is saved "
        "for comparisons",
    )
    group.add_argument(
        "--minutes",
        type=_minutes,
        metavar="M",
        help="duration of the measurement (default: 3)",
    )
    meaning = (
        "measure another spec (default: tiny on a CPU, cs336-2025/small on a GPU, "
        "2 seconds per process)"
    )
    add_settings(group, "--set", meaning)


def _add_rate_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the devices can do")
    add_flag(
        group,
        "--measure",
        "measure matrix products, memory, transfers and launches in fresh processes; "
        "roofline and MFU then use these rates",
    )
    group.add_argument(
        "--device",
        action="append",
        dest="rate_devices",
        metavar="DEVICE",
        help="cpu or cuda:N; repeatable (default: every GPU, or the CPU)",
    )
    group.add_argument(
        "--rounds", type=_rounds, metavar="N", help="processes per device (default: 6)"
    )


def _mistake(arguments: argparse.Namespace) -> str:
    needs = {
        "--minutes": (arguments.minutes is not None, "noise"),
        "--set": (bool(arguments.settings), "noise"),
        "--device": (bool(arguments.rate_devices), "measure"),
        "--rounds": (arguments.rounds is not None, "measure"),
    }
    for measurement in ("noise", "measure"):
        used = [
            name for name, (is_given, needed) in needs.items() if is_given and needed == measurement
        ]
        if used and not getattr(arguments, measurement):
            return f"{', '.join(used)}: only with --{measurement}"
    if arguments.measure and arguments.noise:
        return "--measure and --noise: one at a time"
    return ""


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1440:
        raise argparse.ArgumentTypeError(f"{text!r}: minutes, above 0 and up to 1440")
    return value


def _rounds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r}: an integer from 1 to 100")
    return int(text)


def main(arguments: argparse.Namespace) -> int:
    """Print the checks; return 0 even if a tool is missing.

    With ``--noise`` or ``--measure`` measure instead, with the exit codes of a run.
    """
    if wrong := _mistake(arguments):
        raise SpecError("doctor", wrong, "see `sysbench-tui doctor --help`")
    if arguments.noise:
        from sysbench.tui.commands.doctor_reports import measure_noise  # lazy: --help stays fast

        return measure_noise(arguments)
    if arguments.measure:
        from sysbench.tui.commands.doctor_reports import measure_devices  # lazy: --help stays fast

        return measure_devices(arguments)
    from sysbench.core.machine.doctor_checks import examine  # lazy: --help stays fast

    checks = [*examine(), *_default_device_checks()]
    if arguments.json:
        print_json(checks)
    else:
        column = max(_COLUMN, *(_STATUS + len(check.name) + 1 for check in checks))
        print_lines(line for check in checks for line in _lines(check, page_width(), column))
    return 0


def _default_device_checks() -> list[Check]:
    from sysbench.core.experiments.noise import noise_check  # lazy: --help stays fast
    from sysbench.core.machine.read_environment import cpu_model  # lazy: --help stays fast
    from sysbench.core.runs.kept_rates import rates_check  # lazy: --help stays fast

    try:
        device, torch, now_ns = resolve_device("auto"), torch_facts()["version"], time.time_ns()
    except InterpreterError:
        return []  # already reported by a check
    sample = sample_of(device)
    name = sample.name if sample else cpu_model()
    return [rates_check(device, torch, now_ns), noise_check(name, torch, now_ns)]


def _lines(check: Check, width: int, column: int) -> Iterator[Line]:
    from sysbench.tui.commands.text_lines import labelled  # lazy: rich

    label = f"{check.status:<{_STATUS}}{check.name}"
    style = _STYLES[check.status]
    yield from labelled(label, literal(check.found), width, column=column, label_style=style)
    for name, text in (("costs", check.costs), ("do", check.remedy)):
        if text:
            yield from labelled("", f"{name}: {literal(text)}", width, column=column, style="dim")
