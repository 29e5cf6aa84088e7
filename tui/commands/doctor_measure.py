"""`doctor --measure`: the measurement with its progress, and the rates as lines."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from sysbench.core.formatting import counted, format_count, significant
from sysbench.core.machine.devices import find_cuda, resolve_device
from sysbench.core.record.device_rates import UNITS, DeviceRates, Load
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.kept_rates import (
    RateRow,
    RatesReport,
    kept_rates,
    rates_report,
    save_rates,
    sentences,
)
from sysbench.core.runs.rates_measurement import ROUNDS, RateFound, RateRound, measure_rates
from sysbench.core.tables.cells import literal
from sysbench.core.tables.table import Column, Table, tabulate
from sysbench.tui.commands.layout import Line, blank, labelled, prose, table_lines
from sysbench.tui.commands.output import cancelled_by_signals, page_width, print_json, print_lines
from sysbench.tui.commands.progress import Fold, Progress

_COLUMN = 16


def measure_devices(arguments: argparse.Namespace) -> int:
    """Measure, keep and print; 0 with rates, 130 when cancelled."""
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
        reports.append(rates_report(rates, before=before, sisters=sisters))
    # A cancelled measurement has fewer rounds than its tests take: the last whole one stands.
    whole = [] if cancel.is_set() else found
    for rates in whole:
        save_rates(rates)
    if arguments.json:
        print_json(reports)
    else:
        print_lines(rates_lines(reports, page_width(), kept=bool(whole), cancelled=cancel.is_set()))
    return 130 if cancel.is_set() else 0


def _every(gpus: int) -> list[str]:
    return [f"cuda:{number}" for number in range(gpus)] or ["cpu"]


def _line(item: RateRound | RateFound) -> str:
    """A round that begins, or a rate that it has found."""
    if isinstance(item, RateRound):
        return f"{item.device}, process {item.number} of {item.rounds}"
    rate = item.rate
    return f"  {rate.name:<16} {rate_text(rate.name, rate.value):>14}  {rate.work}"


def rates_lines(
    reports: Sequence[RatesReport], width: int, *, kept: bool, cancelled: bool
) -> Iterator[Line]:
    """All lines of the devices.

    Args:
        reports: A device each.
        width: Columns to fill.
        kept: Whether some were kept for later runs.
        cancelled: Whether the measurement was stopped before its end.
    """
    for report in reports:
        yield from _device(report, width)
        yield blank()
    if not reports:
        yield from prose("stopped before any process had ended: nothing was kept", width)
    elif kept:
        text = "kept for these devices: roofs and MFU of later runs rest on them"
        yield from prose(text, width, style="dim")
    elif cancelled:
        yield from prose("stopped on request: not kept", width, style="dim")


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
        text = f"other work was under way, load average {rates.load_average:.1f}: "
        text += "the device may do more than this; measure it again on an idle machine"
        yield from _labelled("! doubt", text, width)
    if rates.load is not None:
        yield from _labelled("in products", _load(rates.load), width)
    for sentence in sentences(report):
        yield from _labelled("differs", literal(sentence), width)
    if (report.past or report.sisters) and not sentences(report):
        text = "no difference from "
        text += "its last measurement" if report.past else "the other devices of its name"
        yield from _labelled("differs", f"{text} is decided by these processes", width)
    if rates.missing:
        reasons = (f"{name} ({reason})" for name, reason in rates.missing.items())
        yield from _labelled("n/a", literal("; ".join(reasons)), width)


def _labelled(label: str, text: str, width: int) -> Iterator[Line]:
    yield from labelled(label, text, width, column=_COLUMN)


def _load(load: Load) -> str:
    parts = []
    if load.sm_clock_mhz is not None:
        of = f" of {load.sm_clock_max_mhz:.0f}" if load.sm_clock_max_mhz else ""
        least = f", {load.sm_clock_least_mhz:.0f} at least" if load.sm_clock_least_mhz else ""
        parts.append(f"SM clock {load.sm_clock_mhz:.0f}{of} MHz{least}")
    if load.power_watts is not None:
        limit = f" of {load.power_limit_watts:.0f}" if load.power_limit_watts else ""
        parts.append(f"{load.power_watts:.0f}{limit} W")
    if load.temperature_celsius is not None:
        parts.append(f"{load.temperature_celsius:.0f} °C at most")
    if load.reasons:
        parts.append(f"clock held by: {', '.join(load.reasons)}")
    return "; ".join([*parts, f"{counted(load.samples, 'sample')} of NVML"])


def rate_text(name: str, value: float) -> str:
    """A rate with its unit: ``612 TFLOP/s``, ``3.2 TB/s``, ``4.1 µs``."""
    unit = UNITS[name]
    if unit == "s":
        return f"{significant(value * 1e6, 3)} µs"
    return f"{format_count(value)}{unit}"


def rates_table(report: RatesReport) -> Table:
    """One row a rate: the median of the processes, their range, and the vendor's figure."""
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
        title=f"What {rates.device} can do: {rates.name}",
    )


def _range(row: RateRow) -> str:
    least, most = sorted((row.least, row.most))
    return f"{rate_text(row.name, least)} … {rate_text(row.name, most)}"


def _quoted(row: RateRow) -> str | None:
    return rate_text(row.name, row.quoted) if row.quoted is not None else None
