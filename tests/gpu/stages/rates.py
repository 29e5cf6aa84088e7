"""``doctor --measure``: products, memory, transfers and launches, and what differs of sisters."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.core.export.text_formats import escaped, table_as_markdown
from sysbench.core.machine.devices import find_cuda
from sysbench.core.record.device_rates import DeviceRates
from sysbench.core.runs.kept_rates import (
    ROUNDS,
    SECONDS,
    measure_rates,
    rates_report,
    save_rates,
    sentences,
)
from sysbench.tui.commands.doctor_reports import rates_table
from tests.gpu.stages.stage import NO_TIME, Bench, header, line


def lines(bench: Bench) -> Iterator[str]:
    """Measure every device in turn; the rates are then the roofs of what follows."""
    count = len(find_cuda().devices) if bench.device != "cpu" else 0
    devices = [f"cuda:{number}" for number in range(count)] or [bench.device]
    rounds, seconds = (1, 0.01) if bench.is_quick else (ROUNDS, SECONDS)
    found = []
    for item in measure_rates(devices, rounds=rounds, seconds=seconds):
        if isinstance(item, DeviceRates):
            found.append(item)
    for rates in found:
        if bench.is_null:
            yield from header("rate", rates.device)
            yield from (line([name, NO_TIME]) for name in rates.rounds[0])
        else:
            sisters = [other for other in found if other is not rates and other.name == rates.name]
            report = rates_report(rates, before=None, sisters=sisters)
            yield table_as_markdown(rates_table(report))
            yield ""
            yield from (f"- {escaped(sentence)}" for sentence in sentences(report))
            save_rates(rates)
        yield ""
        yield from (f"- {name}: {escaped(why)}" for name, why in rates.missing.items())
        yield ""
