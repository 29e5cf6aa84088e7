"""The rule on a limited clock, on a real run with changed driver reports."""

from __future__ import annotations

import msgspec
import pytest

from sysbench.core.findings.measuring_rules import clock_held
from sysbench.core.record.record import Record, Telemetry
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.timing_tables import speed_table
from sysbench.core.tables.trust import trust_lines

CLOCK = {"device0.sm_clock_mhz": {"min": 1410.0, "median": 1965.0, "max": 1980.0, "n": 12}}


def on_gpu(
    run: RunDirectory,
    reasons: tuple[str, ...] = (),
    throttled: dict[str, float] | None = None,
    series: dict[str, dict[str, float]] = CLOCK,
) -> Record:
    record = run.record()
    assert record.timing is not None
    telemetry = Telemetry(
        interval_seconds=0.5,
        samples=12,
        series=series,
        clock_reasons=list(reasons),
        other_processes=[],
    )
    timing = msgspec.structs.replace(record.timing, throttled=throttled)
    return msgspec.structs.replace(record, timing=timing, telemetry=telemetry)


@pytest.mark.parametrize(
    ("reasons", "throttled"),
    [
        ((), None),
        (("idle", "display clocks"), None),
        (("idle",), {"power cap": 0.0, "thermal": 0.009}),
        # One sample, but the counter shows that it was short.
        (("power cap",), {"power cap": 0.004}),
    ],
)
def test_no_finding_without_a_limited_clock(
    tiny_run: RunDirectory, reasons: tuple[str, ...], throttled: dict[str, float] | None
) -> None:
    assert clock_held(on_gpu(tiny_run, reasons, throttled)) is None


def test_counters_report_time_that_no_sample_saw(tiny_run: RunDirectory) -> None:
    finding = clock_held(on_gpu(tiny_run, (), {"power cap": 0.43, "thermal": 0.02}, {}))
    assert finding is not None
    assert (finding.rule, finding.severity) == ("clock-held", "warning")
    assert "43.0 % of the measured part: power cap, thermal" in finding.verdict


@pytest.mark.parametrize(
    ("reason", "severity"),
    [("power cap", "note"), ("application clocks", "note"), ("hardware thermal", "warning")],
)
def test_samples_count_for_reasons_without_a_counter(
    tiny_run: RunDirectory, reason: str, severity: str
) -> None:
    finding = clock_held(on_gpu(tiny_run, ("idle", reason)))
    assert finding is not None
    assert finding.severity == severity
    assert finding.verdict == f"The driver limited the GPU clock: {reason}."
    assert "SM clock 1410 to 1980 MHz, median 1965, of 12 samples" in finding.why


def test_clock_appears_next_to_the_step(tiny_run: RunDirectory) -> None:
    record = on_gpu(tiny_run, ("idle", "power cap"), {"power cap": 0.43, "thermal": 0.0})
    line = dict(trust_lines(record))["clocks"]
    assert line == (
        "SM clock 1410 to 1980 MHz, median 1965, of 12 samples; limited by: power cap; "
        "share of the measured part by the driver's counters: power cap 43.0 %"
    )
    assert record.timing is not None
    speed = {row[0]: row[1] for row in speed_table(record.timing, record.telemetry).rows}
    assert speed["sm_clock_min_mhz"] == 1410
    assert speed["sm_clock_median_mhz"] == 1965
    assert speed["throttled"] == "power cap 43.0 %"


def test_cpu_run_has_no_clock_finding(tiny_run: RunDirectory) -> None:
    record = tiny_run.record()
    assert record.timing is not None
    assert (record.timing.throttled, clock_held(record)) == (None, None)
    assert record.timing.missing["throttled"]
    assert "clocks" not in dict(trust_lines(record))
