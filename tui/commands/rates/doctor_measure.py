"""The options of `doctor --measure`, the measurement with its progress, and its exit code."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..report.output import page_width, print_json, print_lines

if TYPE_CHECKING:
    from ....core.record.rates import DeviceRates
    from ....core.runs.rates.measure import RateFound, RateRound


def add_rate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the measurement."""
    group = parser.add_argument_group("what the devices can do")
    group.add_argument(
        "--measure",
        action="store_true",
        help="measure matrix products, memory, transfers and launches in fresh processes, and "
        "keep them: roofs and MFU then rest on them, with the data sheet beside",
    )
    group.add_argument(
        "--device",
        action="append",
        dest="rate_devices",
        metavar="DEVICE",
        help="cpu or cuda:N; repeatable (default: every GPU, or the CPU)",
    )
    group.add_argument(
        "--rounds", type=_rounds, metavar="N", help="processes of each device (default: 6)"
    )


def rate_mistake(arguments: argparse.Namespace) -> str:
    """What is wrong with the options together; empty if nothing is."""
    given = {"--device": bool(arguments.rate_devices), "--rounds": arguments.rounds is not None}
    lonely = [name for name, is_given in given.items() if is_given]
    if lonely and not arguments.measure:
        return f"{', '.join(lonely)}: only with --measure"
    if arguments.measure and arguments.noise:
        return "--measure and --noise: one at a time"
    return ""


def measure_devices(arguments: argparse.Namespace) -> int:
    """Measure, keep and print; 0 with rates, 130 when cancelled."""
    from ....core.analysis.rates import report_of
    from ....core.machine.devices import find_cuda, resolve_device
    from ....core.machine.null_gpu import is_null
    from ....core.record.rates import DeviceRates
    from ....core.runs.job_directory import Cancellation
    from ....core.runs.rates.measure import ROUNDS, measure_rates
    from ....core.runs.rates.store import keep_rates, kept_rates
    from ..report.progress import Fold, Progress
    from ..report.signals import cancelled_by_signals
    from .report import report_lines

    asked = arguments.rate_devices or _every(len(find_cuda()[0]))
    devices = list(dict.fromkeys(resolve_device(device) for device in asked))
    cancel = Cancellation()
    found: list[DeviceRates] = []
    with cancelled_by_signals(cancel), Progress(Fold[object](), json=arguments.json) as progress:
        for item in measure_rates(devices, rounds=arguments.rounds or ROUNDS, cancel=cancel):
            if isinstance(item, DeviceRates):
                found.append(item)
            else:
                progress.say(_line(item))
    reports = []
    for rates in found:
        earlier = kept_rates(rates.key)
        sisters = [other for other in found if other is not rates and other.name == rates.name]
        before = earlier[-1] if earlier else None
        reports.append(report_of(rates, before=before, sisters=sisters))
    # A cancelled measurement has fewer rounds than its tests take: the last whole one stands.
    whole = [] if cancel.is_set() else [rates for rates in found if not is_null(rates.name)]
    for rates in whole:
        keep_rates(rates)
    if arguments.json:
        print_json(reports)
    else:
        print_lines(
            report_lines(reports, page_width(), kept=bool(whole), cancelled=cancel.is_set())
        )
    return 130 if cancel.is_set() else 0


def _every(gpus: int) -> list[str]:
    return [f"cuda:{number}" for number in range(gpus)] or ["cpu"]


def _line(item: RateRound | RateFound) -> str:
    """A round that begins, or a rate that it has found."""
    from ....core.runs.rates.measure import RateRound  # loaded with the measurement
    from .report import rate_text

    if isinstance(item, RateRound):
        return f"{item.device}, process {item.number} of {item.rounds}"
    rate = item.rate
    return f"  {rate.name:<16} {rate_text(rate.name, rate.value):>14}  {rate.work}"


def _rounds(text: str) -> int:
    """Processes, 1 to 100.

    Raises:
        argparse.ArgumentTypeError: Anything else.
    """
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 to 100")
    return int(text)
