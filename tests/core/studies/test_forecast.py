"""What a cell will take, from the cells that ran before it."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.machine.devices import DeviceCapacity
from sysbench.core.predict.closed_form import predict
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.forecast import (
    Forecaster,
    cell_kind,
    expected_step_ms,
    steps_seconds,
    work_of,
)
from sysbench.core.studies.study_directory import CellEntry
from sysbench.core.studies.study_grid import Cell

SPEC = RunSpec(model="tiny", device="cpu", warmup=2, steps=10)


def cell_of(spec: RunSpec) -> Cell:
    return Cell(point={}, spec=spec, identity=spec.identity, passes=("timing",))


def entry_of(spec: RunSpec, median_ms: float, start_seconds: float) -> CellEntry:
    return CellEntry(
        cell=spec.identity,
        status="finished",
        median_ms=median_ms,
        kind=cell_kind(spec),
        work=work_of(spec),
        passes=("timing",),
        start_seconds=start_seconds,
    )


def test_before_a_cell_of_its_kind_ran_the_time_is_unknown() -> None:
    assert Forecaster().forecast(cell_of(SPEC)).seconds is None
    learnt = Forecaster([entry_of(SPEC, 10.0, 1.5)])
    for changed in ({"precision": "bf16"}, {"compile": "default"}, {"model": "cs336-2025/large"}):
        assert learnt.forecast(cell_of(SPEC.changed(**changed))).seconds is None, changed


@given(st.floats(0.1, 1e5), st.floats(0.0, 1e3))
def test_a_cell_that_ran_is_forecast_as_it_was(median_ms: float, start: float) -> None:
    entries = [entry_of(SPEC, median_ms, start), entry_of(SPEC.changed(batch=64), 1.0, 1.0)]
    forecast = Forecaster(entries).forecast(cell_of(SPEC))
    assert forecast.seconds == pytest.approx(start + steps_seconds(SPEC, ("timing",), median_ms))


def test_of_several_rounds_it_is_the_median() -> None:
    entries = [entry_of(SPEC, median_ms, 2.0) for median_ms in (10.0, 11.0, 900.0)]
    forecast = Forecaster(entries).forecast(cell_of(SPEC))
    assert forecast.seconds == pytest.approx(2.0 + steps_seconds(SPEC, ("timing",), 11.0))


def test_a_cell_without_a_timing_pass_takes_what_the_one_before_took() -> None:
    entry = msgspec.structs.replace(entry_of(SPEC, 1.0, 2.5), median_ms=None)
    assert Forecaster([entry]).forecast(cell_of(SPEC)).seconds == 2.5


def test_cells_that_ended_early_do_not_forecast_one_that_may_finish() -> None:
    early = msgspec.structs.replace(entry_of(SPEC, 1.0, 3.0), status="oom", median_ms=None)
    assert Forecaster([early]).forecast(cell_of(SPEC)).seconds is None
    tight = SPEC.changed(memory_limit=2**20)
    limited = msgspec.structs.replace(early, kind=cell_kind(tight), work=work_of(tight))
    assert Forecaster([limited]).forecast(cell_of(tight)).seconds == 3.0


def test_a_cell_of_the_same_work_outweighs_others() -> None:
    others = [entry_of(SPEC.changed(batch=batch), 900.0, 0.0) for batch in (1, 2, 8)]
    learnt = Forecaster([*others, entry_of(SPEC, 10.0, 0.0)])
    expected = steps_seconds(SPEC, ("timing",), 10.0)
    assert learnt.forecast(cell_of(SPEC)).seconds == pytest.approx(expected)
    assert learnt.step_ms(SPEC) == pytest.approx(10.0)
    assert learnt.step_ms(SPEC.changed(precision="bf16")) is None


def test_a_run_forecasts_its_own_spec_and_similar_ones(
    tiny_run: RunDirectory, sysbench_home: Path
) -> None:
    shutil.copytree(tiny_run.path, sysbench_home / "runs" / tiny_run.id)
    record, spec = tiny_run.record(), tiny_run.header().spec
    assert record.timing is not None
    assert expected_step_ms(spec) == record.timing.step.median_ms
    similar = expected_step_ms(spec.changed(batch=2 * spec.batch))
    assert similar == pytest.approx(2 * record.timing.step.median_ms, rel=0.1)
    assert expected_step_ms(spec.changed(precision="bf16")) is None
    assert expected_step_ms(spec.changed(model="cs336-2025/small")) is None


def test_steps_of_similar_work_are_in_proportion_to_it() -> None:
    learnt = Forecaster([entry_of(SPEC.changed(batch=8), 10.0, 0.0)])
    seconds = [learnt.forecast(cell_of(SPEC.changed(batch=batch))).seconds for batch in (8, 16)]
    assert seconds[0] is not None
    assert seconds[1] == pytest.approx(2 * seconds[0], rel=0.05)
    assert learnt.forecast(cell_of(SPEC.changed(batch=8 * 64))).seconds is None


def test_a_cell_that_the_host_has_not_the_memory_for_takes_no_time() -> None:
    huge = SPEC.changed(batch=2**20)
    forecast = Forecaster().forecast(cell_of(huge))
    assert (forecast.is_run, forecast.seconds) == (False, 0.0)
    assert Forecaster().forecast(cell_of(huge.changed(memory_limit=2**30))).is_run


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_the_peak_of_a_cell_has_the_workspaces_of_the_device(
    monkeypatch: pytest.MonkeyPatch, capability: str
) -> None:
    device = DeviceCapacity(40 * 2**30, capability)
    monkeypatch.setattr("sysbench.core.studies.forecast.device_capacity", lambda _: device)
    spec = SPEC.changed(device="cuda:0")
    assert Forecaster().forecast(cell_of(spec)).peak_bytes == predict(spec, capability).peak_bytes
