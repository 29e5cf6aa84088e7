"""`doctor --noise`: measure this machine's noise, say where it comes from and what to do."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..arguments import add_settings
from ..report.output import page_width, print_json, print_lines
from ..spec_arguments import parse_settings

if TYPE_CHECKING:
    from ....core.spec.spec import RunSpec

MINUTES = 3.0


def add_noise_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--noise`` and the options that need it."""
    group = parser.add_argument_group("the machine's noise")
    group.add_argument(
        "--noise",
        action="store_true",
        help="compare a spec with itself, in fresh processes, and keep the noise floor that "
        "comparisons use",
    )
    group.add_argument(
        "--minutes",
        type=_minutes,
        metavar="M",
        help=f"time of the measurement (default: {MINUTES:g})",
    )
    meaning = (
        "measure another spec (default: tiny on a CPU, cs336-2025/small on a GPU, "
        "2 seconds a process)"
    )
    add_settings(group, "--set", meaning)


def mistake(arguments: argparse.Namespace) -> str:
    """What is wrong with the options together; empty if nothing is."""
    given = {
        "--minutes": arguments.minutes is not None,
        "--set": bool(arguments.settings),
    }
    lonely = [name for name, is_given in given.items() if is_given]
    if lonely and not arguments.noise:
        return f"{', '.join(lonely)}: only with --noise"
    return ""


def measure_noise(arguments: argparse.Namespace) -> int:
    """Measure and print; 0 with a floor, 130 when cancelled, 1 without a floor."""
    from ....core.runs.ab.noise_doctor import Examined, examine_noise
    from ....core.runs.job_directory import Cancellation
    from ..report.progress import Progress
    from ..report.signals import cancelled_by_signals
    from .progress import NoiseFold
    from .report import examined_lines

    spec = _spec(arguments.settings)
    minutes = arguments.minutes or MINUTES
    cancel = Cancellation()
    result: Examined | None = None
    with cancelled_by_signals(cancel), Progress(NoiseFold(), json=arguments.json) as progress:
        progress.say(
            f"{spec.model} on {spec.device} against itself for {minutes:g} minutes; "
            "Ctrl+C ends it, and 8 rounds are enough to keep"
        )
        for item in examine_noise(spec, minutes=minutes, cancel=cancel):
            if isinstance(item, Examined):
                result = item
            else:
                progress.show(item)
    assert result is not None  # it comes last, whatever happened
    if arguments.json:
        print_json(result)
    else:
        print_lines(examined_lines(result, page_width()))
    if result.ending == "cancelled":
        return 130
    return 0 if result.floor is not None else 1


def _spec(settings: list[str]) -> RunSpec:
    """The spec that is measured: the device's default one with the user's changes.

    Raises:
        SpecError: Naming the key at fault.
    """
    from ....core.machine.devices import resolve_device
    from ....core.runs.ab.noise_doctor import ROUND_SECONDS, default_model
    from ....core.spec.resolve import resolved
    from ....core.spec.spec import DIMENSION_NAMES, parse_spec

    changes = parse_settings(settings)
    asked = parse_spec({key: changes[key] for key in ("device",) if key in changes})
    defaults: dict[str, object] = {"max_seconds": ROUND_SECONDS}
    if not changes.keys() >= set(DIMENSION_NAMES) and "workload" not in changes:
        defaults["model"] = default_model(resolve_device(asked.device))
    return resolved(parse_spec(defaults | changes))


def _minutes(text: str) -> float:
    """Minutes above 0, up to a day.

    Raises:
        argparse.ArgumentTypeError: Anything else.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1440:
        raise argparse.ArgumentTypeError(f"{text!r}: minutes, above 0 and up to 1440")
    return value
