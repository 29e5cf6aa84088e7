"""Measured rates of this machine's CPU: stored, and used as the roof of a run."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from sysbench.core import RunSpec, run
from sysbench.core.errors import DamagedFileError, DeviceBusyError
from sysbench.core.machine.devices import locked_devices
from sysbench.core.machine.peaks import parse_peak, roof_of
from sysbench.core.record.device_rates import KINDS, DeviceRates, RateTimed
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.kept_rates import (
    RateRound,
    kept_rates,
    measure_rates,
    measured_facts,
    rates_check,
    rates_path,
    save_rates,
)
from tests.core.conftest import RunPython

H100 = {"device": {"name": "NVIDIA H100 80GB HBM3"}}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> DeviceRates:
    """A short round on the CPU, in a home of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSBENCH_HOME", str(tmp_path_factory.mktemp("rates")))
        items = list(measure_rates(["cpu"], rounds=1, seconds=0.01, threads=1))
    rounds = [item for item in items if isinstance(item, RateRound)]
    assert [(item.device, item.number) for item in rounds] == [("cpu", 1)]
    found = [item for item in items if isinstance(item, RateTimed)]
    (rates,) = (item for item in items if isinstance(item, DeviceRates))
    assert [rate.name for rate in found] == [name for values in rates.rounds for name in values]
    return rates


def test_every_kind_has_its_value_or_its_reason(measured: DeviceRates) -> None:
    assert {kind.name for kind in KINDS} | {"load"} == {*measured.rounds[0], *measured.missing}
    assert {"product fp32", "memory copy", "launch"} <= measured.rounds[0].keys()
    assert all(
        math.isfinite(value) and value > 0
        for values in measured.rounds
        for value in values.values()
    )
    assert measured.missing["host to device"] == "the CPU's memory is the host's"
    assert measured.threads == 1


def test_the_bandwidth_is_the_best_of_the_passes_over_memory(measured: DeviceRates) -> None:
    names = ["memory read", "memory write", "memory copy", "memory triad"]
    assert measured.bandwidth == max(measured.median(name) or 0 for name in names)


def test_a_run_takes_the_measured_rates_as_its_roof(
    sysbench_home: Path, measured: DeviceRates
) -> None:
    save_rates(measured)
    spec = RunSpec(model="tiny", device="cpu", batch=1, context=16, steps=3, warmup=1, threads=1)
    record = run(spec, ["timing"]).record
    assert record.timing is not None and record.timing.roof is not None
    assert record.timing.roof.peak_flops == measured.median("product fp32")
    assert record.timing.roof.bandwidth == measured.bandwidth
    assert record.timing.mfu is not None and 0 < record.timing.mfu < 1
    assert "measured on this device on" in record.timing.mfu_formula


def test_a_cpu_s_rates_are_no_roof_of_another_number_of_threads(
    sysbench_home: Path, measured: DeviceRates
) -> None:
    save_rates(measured)
    environment = measured_facts("cpu")
    assert roof_of("cpu", "fp32", "fp32", environment | {"settings": {"threads": 1}})[0]
    none, reason = roof_of("cpu", "fp32", "fp32", environment | {"settings": {"threads": 2}})
    assert none is None
    assert reason == "the rates were measured with 1 threads, this run has 2"


def test_the_measured_peak_goes_before_the_data_sheet_s_and_names_it() -> None:
    facts = {"taken": "2026-11-22", "products": {"bf16": 612e12}, "bandwidth": 2.9e12}
    roof, _ = roof_of("cuda:0", "bf16", "bf16", H100 | {"rates": facts})
    assert roof is not None
    assert (roof.peak_flops, roof.bandwidth) == (612e12, 2.9e12)
    assert roof.quoted_flops == pytest.approx(989.4e12)
    assert roof.quoted_bandwidth == pytest.approx(3350e9)
    assert roof.upper_flops == roof.quoted_flops
    assert "measured on this device on 2026-11-22; 989.4 TFLOP/s by" in roof.peak_source
    # A precision that was not measured keeps the data sheet's.
    other, _ = roof_of("cuda:0", "fp16", "fp16", H100 | {"rates": facts})
    assert other is not None and other.peak_flops == pytest.approx(989.4e12)
    given, _ = roof_of("cuda:0", "bf16", "bf16", H100 | {"rates": facts}, parse_peak("500,1000"))
    assert given is not None
    assert (given.peak_flops, given.bandwidth, given.quoted_flops) == (500e12, 1000e9, None)


def test_measurements_are_kept_in_their_order_and_a_damaged_file_is_named(
    sysbench_home: Path, measured: DeviceRates
) -> None:
    assert kept_rates(measured.key) == [] and measured_facts("cpu") == {}
    save_rates(measured)
    save_rates(msgspec.structs.replace(measured, taken_ns=measured.taken_ns + 1))
    assert [row.taken_ns - measured.taken_ns for row in kept_rates(measured.key)] == [0, 1]
    rates_path(measured.key).write_text('{"key": "cut')
    with pytest.raises(DamagedFileError, match="measure again"):
        kept_rates(measured.key)
    assert rates_check("cpu", measured.torch, measured.taken_ns).status == "warning"
    none, reason = roof_of("cpu", "fp32", "fp32", measured_facts("cpu"))
    assert none is None and "cannot be read" in reason


def test_rates_beside_other_work_are_doubted_wherever_they_show(
    sysbench_home: Path, measured: DeviceRates
) -> None:
    save_rates(msgspec.structs.replace(measured, load_average=3.0))
    check = rates_check("cpu", measured.torch, measured.taken_ns)
    assert check.status == "warning" and "load average 3.0" in check.costs
    roof, _ = roof_of("cpu", "fp32", "fp32", measured_facts("cpu"))
    assert roof is not None and roof.peak_source.endswith("with other work running")


def test_old_rates_and_those_of_another_torch_are_doubted(
    sysbench_home: Path, measured: DeviceRates
) -> None:
    missing = rates_check("cpu", measured.torch, measured.taken_ns)
    assert (missing.status, missing.found) == ("missing", "not measured on this device")
    save_rates(msgspec.structs.replace(measured, load_average=0.0))
    assert rates_check("cpu", measured.torch, measured.taken_ns).status == "ok"
    later = rates_check("cpu", "9.9", measured.taken_ns + 100 * 86_400 * 10**9)
    assert later.status == "warning"
    assert "100 days old" in later.costs and "torch" in later.costs


def test_a_device_that_a_run_measures_on_is_not_measured(sysbench_home: Path) -> None:
    with locked_devices(["cpu"]), pytest.raises(DeviceBusyError):
        next(measure_rates(["cpu"], rounds=1, seconds=0.01))


BESIDE_A_CAPPED_SISTER = """
import json, sys
from sysbench.core.runs.kept_rates import rates_report, sentences
from sysbench.core.record.device_rates import DeviceRates
from sysbench.core.machine import children
from sysbench.core.runs import kept_rates as measure

# In place of a worker on a card: the second one multiplies 14 % slower. All else is the real path.
WORKER = '''
import json, sys
request = json.loads(sys.stdin.readline())
rate = 600e12 / (1.14 if request["device"] == "cuda:1" else 1) * (1 + %d / 1000)
span = {"began_ns": 0, "ended_ns": 2**62}
print(json.dumps({"type": "host", "torch": "2.13.0", "threads": 1}))
print(json.dumps({"type": "rate", "name": "product bf16", "value": rate, "work": "n"} | span))
'''
rounds = iter(range(100))
children.python_child = lambda *_, **__: [sys.executable, "-SEc", WORKER % next(rounds)]
items = measure.measure_rates(["cuda:0", "cuda:1"])
found = [item for item in items if isinstance(item, DeviceRates)]
texts = {}
for rates in found:
    sisters = [other for other in found if other is not rates]
    texts[rates.device] = sentences(rates_report(rates, before=None, sisters=sisters))
print(json.dumps(texts))
"""


def test_a_capped_sister_is_reported_as_the_cause(on_stub: RunPython, sysbench_home: Path) -> None:
    texts = on_stub(BESIDE_A_CAPPED_SISTER, NVML_STUB_GPUS="2", NVML_STUB_CAPPED="1:450")
    (slower,) = texts["cuda:1"]
    assert slower.startswith("product bf16: slower than cuda:0 by 1")
    assert "capped at 450 W, cuda:0 at 700 W" in slower
    assert "its clock was limited by: power cap" in slower
    assert "SM clock 1410 MHz in the median, cuda:0 1755" in slower
    assert texts["cuda:0"][0].startswith("product bf16: faster than cuda:1 by 1")


def test_a_cancelled_measurement_ends_its_process_and_has_no_half_round(
    sysbench_home: Path,
) -> None:
    cancel = Cancellation()
    items = measure_rates(["cpu"], rounds=3, seconds=0.01, threads=1, cancel=cancel)
    for item in items:
        if isinstance(item, RateTimed):
            cancel.set()
    assert not any(isinstance(item, DeviceRates) for item in items)
