"""`doctor --measure`: measure peak rates and print them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from sysbench.core.formatting import counted, format_count, significant
from sysbench.core.machine.devices import find_cuda, resolve_device
from sysbench.core.record.device_rates import UNITS, DeviceRates, Load
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.kept_rates import (
    ROUNDS,
    RateFound,
    RateRound,
    RateRow,
    RatesReport,
    kept_rates,
    measure_rates,
    rates_report,
    save_rates,
    sentences,
)
from sysbench.core.tables.cells import literal
from sysbench.core.tables.table import Column, Table, tabulate
from sysbench.tui.commands.output import cancelled_by_signals, page_width, print_json, print_lines
from sysbench.tui.commands.progress import Fold, Progress
from sysbench.tui.commands.text_lines import Line, blank, labelled, prose, table_lines

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


def _line(item: RateRound | RateFound) -> str:
    if isinstance(item, RateRound):
        return f"{item.device}, process {item.number} of {item.rounds}"
    rate = item.rate
    return f"  {rate.name:<16} {rate_text(rate.name, rate.value):>14}  {rate.work}"


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
        (
            Column("rate", lambda row: row.name),
            Column("measured", lambda row: rate_text(row.name, row.median)),
            Column("range", _range),
            Column("processes", lambda row: row.rounds),
            Column("data_sheet", _quoted, is_optional=True),
            Column("of_data_sheet", lambda row: row.of_quoted, unit="share", is_optional=True),
            Column("work", lambda row: row.work),
        ),
        name="rates",
        title=f"Measured rates of {rates.device}: {rates.name}",
    )


def _range(row: RateRow) -> str:
    low, high = sorted((row.least, row.most))
    return f"{rate_text(row.name, low)} … {rate_text(row.name, high)}"


def _quoted(row: RateRow) -> str | None:
    return rate_text(row.name, row.quoted) if row.quoted is not None else None
