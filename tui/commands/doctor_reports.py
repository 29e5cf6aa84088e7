"""`doctor --measure` and `doctor --noise`: measure rates and noise, and print them."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence

from sysbench.core.compare.noise_sources import NoiseSource
from sysbench.core.compare.verdict import headline
from sysbench.core.experiments.experiment_runner import (
    ExperimentEvent,
    RoundFinished,
    RoundStarting,
)
from sysbench.core.experiments.noise import NoiseFloor
from sysbench.core.experiments.noise_doctor import (
    ROUND_SECONDS,
    Examined,
    default_model,
    examine_noise,
)
from sysbench.core.formatting import (
    counted,
    format_count,
    milliseconds,
    percent,
    signed_percent,
    significant,
)
from sysbench.core.machine.devices import find_cuda, resolve_device
from sysbench.core.record.device_rates import UNITS, DeviceRates, Load, RateTimed
from sysbench.core.record.events import Noticed
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.kept_rates import (
    ROUNDS,
    RateRound,
    RateRow,
    RatesReport,
    kept_rates,
    measure_rates,
    rates_report,
    save_rates,
    sentences,
)
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import DIMENSION_NAMES, RunSpec, parse_spec
from sysbench.core.tables.cells import literal
from sysbench.core.tables.table import Column, Table, tabulate
from sysbench.tui.commands.output import cancelled_by_signals, page_width, print_json, print_lines
from sysbench.tui.commands.progress import Fold, Progress
from sysbench.tui.commands.spec_arguments import parse_settings
from sysbench.tui.commands.text_lines import Line, blank, labelled, prose, table_lines, titled
from sysbench.tui.text import interval

_COLUMN = 16


def measure_devices(arguments: argparse.Namespace) -> int:
    """Measure, save and print the rates; return 0, or 130 if cancelled."""
    gpus = [f"cuda:{number}" for number in range(len(find_cuda().devices))]
    asked = arguments.rate_devices or gpus or ["cpu"]
    devices = list(dict.fromkeys(resolve_device(device) for device in asked))
    cancel = Cancellation()
    measured: list[DeviceRates] = []
    with cancelled_by_signals(cancel), Progress(Fold[object](), json=arguments.json) as progress:
        for item in measure_rates(devices, rounds=arguments.rounds or ROUNDS, cancel=cancel):
            if isinstance(item, DeviceRates):
                measured.append(item)
            else:
                progress.say(_line(item))
    reports = []
    for rates in measured:
        earlier = kept_rates(rates.key)
        sisters = [other for other in measured if other is not rates and other.name == rates.name]
        before = earlier[-1] if earlier else None
        reports.append(rates_report(rates, before=before, sisters=sisters))
    # A cancelled measurement has too few rounds, so the previous one stays valid.
    complete = [] if cancel.is_set() else measured
    for rates in complete:
        save_rates(rates)
    if arguments.json:
        print_json(reports)
    else:
        print_lines(
            rates_lines(reports, page_width(), kept=bool(complete), cancelled=cancel.is_set())
        )
    return 130 if cancel.is_set() else 0


def _line(item: RateRound | RateTimed) -> str:
    if isinstance(item, RateRound):
        return f"{item.device}, process {item.number} of {item.rounds}"
    return f"  {item.name:<16} {rate_text(item.name, item.value):>14}  {item.work}"


def rates_lines(
    reports: Sequence[RatesReport], width: int, *, kept: bool, cancelled: bool
) -> Iterator[Line]:
    """Yield all lines; ``kept`` if the rates were saved for later runs."""
    for report in reports:
        yield from _device(report, width)
        yield blank()
    if not reports:
        yield from prose("stopped before any process ended: nothing was saved", width)
    elif kept:
        text = "saved for these devices: later runs use them for roofline and MFU"
        yield from prose(text, width, style="dim")
    elif cancelled:
        yield from prose("stopped on request: not saved", width, style="dim")


def _device(report: RatesReport, width: int) -> Iterator[Line]:
    rates = report.rates
    table = rates_table(report)
    yield [(literal(table.title), "bold")]
    yield from table_lines(table, width, drop=("work", "range", "processes"))
    threads = f", {counted(rates.threads, 'thread')}" if rates.device == "cpu" else ""
    rounds = counted(len(rates.rounds), "round")
    origin = f"{rounds} in fresh processes; torch {rates.torch}{threads}"
    yield from _labelled("from", origin, width)
    if rates.beside_others:
        text = f"other processes were running, load average {rates.load_average:.1f}: "
        text += "the rates may be too low; measure again on an idle machine"
        yield from _labelled("! warning", text, width)
    if rates.load is not None:
        yield from _labelled("in products", _load(rates.load), width)
    for sentence in sentences(report):
        yield from _labelled("differs", literal(sentence), width)
    if (report.past or report.sisters) and not sentences(report):
        text = "no significant difference from "
        text += "its last measurement" if report.past else "the other devices of its name"
        yield from _labelled("differs", text, width)
    if rates.missing:
        reasons = (f"{name} ({reason})" for name, reason in rates.missing.items())
        yield from _labelled("n/a", literal("; ".join(reasons)), width)


def _labelled(label: str, text: str, width: int) -> Iterator[Line]:
    yield from labelled(label, text, width, column=_COLUMN)


def _load(load: Load) -> str:
    parts = []
    if load.sm_clock_mhz is not None:
        of = f" of {load.sm_clock_max_mhz:.0f}" if load.sm_clock_max_mhz else ""
        least = f", minimum {load.sm_clock_least_mhz:.0f}" if load.sm_clock_least_mhz else ""
        parts.append(f"SM clock {load.sm_clock_mhz:.0f}{of} MHz{least}")
    if load.power_watts is not None:
        limit = f" of {load.power_limit_watts:.0f}" if load.power_limit_watts else ""
        parts.append(f"{load.power_watts:.0f}{limit} W")
    if load.temperature_celsius is not None:
        parts.append(f"{load.temperature_celsius:.0f} °C maximum")
    if load.reasons:
        parts.append(f"clock limited by: {', '.join(load.reasons)}")
    return "; ".join([*parts, f"{counted(load.samples, 'NVML sample')}"])


def rate_text(name: str, value: float) -> str:
    """Format a rate: ``612 TFLOP/s``, ``3.2 TB/s``, ``4.1 µs``."""
    unit = UNITS[name]
    if unit == "s":
        return f"{significant(value * 1e6, 3)} µs"
    return f"{format_count(value)}{unit}"


def rates_table(report: RatesReport) -> Table:
    rates = report.rates
    return tabulate(
        report.rows,
        Column("rate", lambda row: row.name),
        Column("measured", lambda row: rate_text(row.name, row.median)),
        Column("range", _range),
        Column("processes", lambda row: row.rounds),
        Column("data_sheet", _quoted, is_optional=True),
        Column("of_data_sheet", lambda row: row.of_quoted, unit="share", is_optional=True),
        Column("work", lambda row: row.work),
        name="rates",
        title=f"Measured rates of {rates.device}: {rates.name}",
    )


def _range(row: RateRow) -> str:
    low, high = sorted((row.least, row.most))
    return f"{rate_text(row.name, low)} … {rate_text(row.name, high)}"


def _quoted(row: RateRow) -> str | None:
    return rate_text(row.name, row.quoted) if row.quoted is not None else None


MINUTES = 3.0
_NOISE_COLUMN = 19
_GLUE = "\N{NO-BREAK SPACE}%"
_CHANGES = ("drift", "order", "clock", "neighbours", "first touch")


def measure_noise(arguments: argparse.Namespace) -> int:
    """Measure and print; return 0, 130 if cancelled, or 1 without a result."""
    spec = _noise_spec(arguments.settings)
    minutes = arguments.minutes or MINUTES
    cancel = Cancellation()
    result: Examined | None = None
    with cancelled_by_signals(cancel), Progress(NoiseFold(), json=arguments.json) as progress:
        progress.say(
            f"{spec.model} on {spec.device} against itself for {minutes:g} minutes; "
            "Ctrl+C stops it; 8 rounds are enough to save a result"
        )
        for item in examine_noise(spec, minutes=minutes, cancel=cancel):
            if isinstance(item, Examined):
                result = item
            else:
                progress.show(item)
    assert result is not None  # always the last item
    if arguments.json:
        print_json(result)
    else:
        print_lines(examined_lines(result, page_width()))
    if result.ending == "cancelled":
        return 130
    return 0 if result.floor is not None else 1


def _noise_spec(settings: list[str]) -> RunSpec:
    changes = parse_settings(settings)
    asked = parse_spec({key: changes[key] for key in ("device",) if key in changes})
    defaults: dict[str, object] = {"max_seconds": ROUND_SECONDS}
    if not changes.keys() >= set(DIMENSION_NAMES) and "workload" not in changes:
        defaults["model"] = default_model(resolve_device(asked.device))
    return resolve(parse_spec(defaults | changes))


class NoiseFold(Fold[ExperimentEvent]):
    def __init__(self) -> None:
        self._medians: list[float] = []

    def take(self, event: ExperimentEvent) -> str:
        match event:
            case RoundStarting(again=again) if again:
                return f"again: {again}"
            case RoundFinished():
                return self._round(event)
            case Noticed():
                return event.message
            case _:
                return ""

    def _round(self, finished: RoundFinished) -> str:
        row, medians = finished.round, self._medians
        if not row.counts or row.median_ms is None:
            return f"round of {finished.side} does not count: {row.disturbed or row.outcome}"
        medians.append(row.median_ms)
        text = f"round {len(medians):>3} {finished.side}  {milliseconds(row.median_ms)}"
        text += f"  {interval(row.half_width)} inside" if row.half_width else ""
        if len(medians) < 3:
            return text
        spread = statistics.stdev(medians) / statistics.fmean(medians)
        return f"{text}, {interval(spread)} between {len(medians)}"


def examined_lines(result: Examined, width: int) -> Iterator[Line]:
    """Yield all lines; never break between a number and its percent sign."""
    for line in _noise_lines(result, width):
        yield [(text.replace(_GLUE, " %"), style) for text, style in line]


def _noise_lines(result: Examined, width: int) -> Iterator[Line]:
    floor = result.floor
    if floor is None:
        yield from prose(result.detail, width)
        if result.ending == "out-of-time":
            yield from prose("measure longer: --minutes", width, style="dim")
        return
    text = f"{literal(floor.device)}: processes of one spec differ by ±{_share(floor.between)}"
    yield from prose(text, width, style="bold")
    yield from prose(_summary(floor, result), width)
    yield from titled("What this machine can detect", _finds(result, floor, width))
    yield from titled("Where the noise comes from", _sources(floor, width))
    yield from titled("What to do", _remedies(floor, width))
    yield blank()
    saved = "saved for compare, ab and gate on this device; docs/noise.md explains each line"
    yield from prose(saved, width, style="dim")


def _summary(floor: NoiseFloor, result: Examined) -> str:
    left = f", {counted(floor.left_out, 'disturbed round')} excluded" if floor.left_out else ""
    step = f", {milliseconds(floor.step_ms)} per step" if floor.step_ms is not None else ""
    ended = " (stopped on request)" if result.ending == "cancelled" else ""
    return (
        f"{literal(floor.subject)}, {floor.rounds} fresh processes in "
        f"{floor.seconds / 60:.1f} minutes{ended}{step}{left}; torch {floor.torch or 'unknown'}"
    )


def _finds(result: Examined, floor: NoiseFloor, width: int) -> Iterator[Line]:
    if floor.pair is not None:
        text = f"95 % of all pairs of these processes differ by at most {_share(floor.pair)}: with "
        text += "one process per side, smaller differences are noise"
        yield from _glued("one against one", text, width)
    if result.finds:
        differences = ", ".join(
            f"{_share(row.difference)} in {row.rounds} rounds" for row in result.finds
        )
        text = f"detects a slowdown of {differences} with 80 % power"
        yield from _glued("ab", text, width)
    if result.verdict is not None:
        text = headline(result.verdict)
        if result.verdict.differs:
            text += "; both sides are the same spec: 5 % of such comparisons end like this"
        yield from _glued("A against A", text, width)


def _sources(floor: NoiseFloor, width: int) -> Iterator[Line]:
    for source in floor.sources:
        style = "yellow" if source.found else ""
        text = f"{_figure(source)}{literal(source.how)}"
        yield from _glued(source.name, text, width, style=style)


def _glued(
    label: str,
    text: str,
    width: int,
    *,
    column: int = _NOISE_COLUMN,
    style: str = "",
    label_style: str = "dim",
) -> list[Line]:
    return labelled(
        label,
        text.replace(" %", _GLUE),
        width,
        column=column,
        style=style,
        label_style=label_style,
    )


def _figure(source: NoiseSource) -> str:
    """``±1.21 % (0.95 % to 1.66 %): ``, or ``found: +3.1 % (+1.2 % to +5.0 %): ``."""
    if source.share is None:
        return ""
    is_change = source.name in _CHANGES
    word = {True: "found, ", False: "none found, ", None: "not tested, " if is_change else ""}
    shown = _change if is_change else _share
    sign = "±" if source.name in ("between processes", "inside a process") else ""
    text = f"{word[source.found]}{sign}{shown(source.share)}"
    if source.low is not None and source.high is not None:
        text += f" ({shown(source.low)} to {shown(source.high)})"
    return f"{text}: "


def _share(share: float) -> str:
    """Format a percentage with three digits; values span five orders of magnitude."""
    return percent(share, _decimals(share))


def _change(change: float) -> str:
    return signed_percent(change, _decimals(change))


def _decimals(share: float) -> int:
    size = math.floor(math.log10(abs(100 * share))) if share else 0
    return min(5, max(0, 2 - size))


def _remedies(floor: NoiseFloor, width: int) -> Iterator[Line]:
    for remedy in floor.remedies:
        yield from _glued(remedy.name, "", width, label_style="bold")
        yield from _glued("", literal(remedy.detail), width, column=2)
    if not floor.remedies:
        yield from prose("  nothing to fix", width)
