"""What a cell will take, from the cells that ran before it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.estimate.closed_form import predict
from sysbench.core.machine.devices import DeviceCapacity
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.run.forecast import (
    COMPILE_SECONDS,
    PASS_SECONDS,
    Forecaster,
    kind_of,
    steps_seconds,
    work_of,
)
from sysbench.core.studies.run.grid import Cell
from sysbench.core.studies.run.state import Entry

SPEC = RunSpec(model="tiny", device="cpu", warmup=2, steps=10)


def cell_of(spec: RunSpec) -> Cell:
    return Cell(point={}, spec=spec, identity=spec.identity, passes=("timing",))


def entry_of(spec: RunSpec, median_ms: float, start_seconds: float) -> Entry:
    return Entry(
        cell=spec.identity,
        status="finished",
        median_ms=median_ms,
        kind=kind_of(spec),
        work=work_of(spec),
        passes=("timing",),
        start_seconds=start_seconds,
    )


def test_before_anything_ran_it_is_what_starting_is_guessed_to_take() -> None:
    told = Forecaster().forecast(cell_of(SPEC))
    assert (told.seconds, told.is_timed) == (PASS_SECONDS, False)
    compiled = Forecaster().forecast(cell_of(SPEC.changed(compile="default")))
    assert compiled.seconds == PASS_SECONDS + COMPILE_SECONDS


@given(st.floats(0.1, 1e5), st.floats(0.0, 1e3))
def test_a_cell_that_ran_is_forecast_as_it_was(median_ms: float, start: float) -> None:
    told = Forecaster([entry_of(SPEC, median_ms, start)]).forecast(cell_of(SPEC))
    assert told.is_timed
    assert told.seconds == pytest.approx(start + steps_seconds(SPEC, ("timing",), median_ms))


def test_starting_takes_what_it_took_for_other_precisions_of_the_device() -> None:
    learnt = Forecaster([entry_of(SPEC, 10.0, 1.5)])
    other = learnt.forecast(cell_of(SPEC.changed(precision="bf16")))
    assert (other.seconds, other.is_timed) == (1.5, False)
    compiled = learnt.forecast(cell_of(SPEC.changed(compile="default")))
    assert compiled.seconds == PASS_SECONDS + COMPILE_SECONDS


def test_a_cell_without_a_timing_pass_takes_what_the_one_before_took() -> None:
    entry = msgspec.structs.replace(entry_of(SPEC, 1.0, 2.5), median_ms=None)
    told = Forecaster([entry]).forecast(cell_of(SPEC))
    assert (told.seconds, told.is_timed) == (2.5, True)


def seconds_of_steps(times: Mapping[int, float], batch: int) -> float:
    """What the steps of a batch are forecast to take where those of others took so long."""
    entries = [entry_of(SPEC.changed(batch=one), ms, 0.0) for one, ms in times.items()]
    return Forecaster(entries).forecast(cell_of(SPEC.changed(batch=batch))).seconds


@given(st.floats(1.0, 1e3), st.floats(1.0, 1e3), st.integers(2, 63))
def test_between_two_cells_the_time_is_between_theirs(a: float, b: float, batch: int) -> None:
    low, high = sorted(seconds_of_steps({1: a, 64: b}, one) for one in (1, 64))
    assert low * 0.999 <= seconds_of_steps({1: a, 64: b}, batch) <= high * 1.001


def test_beyond_all_cells_it_is_in_proportion_to_the_nearest() -> None:
    times = {8: 10.0, 16: 12.0}
    assert seconds_of_steps(times, 32) == pytest.approx(2 * seconds_of_steps(times, 16))
    assert seconds_of_steps(times, 4) == pytest.approx(seconds_of_steps(times, 8) / 2)


def test_a_cell_that_the_host_has_not_the_memory_for_takes_no_time() -> None:
    huge = SPEC.changed(batch=2**20)
    told = Forecaster().forecast(cell_of(huge))
    assert (told.is_run, told.seconds) == (False, 0.0)
    assert Forecaster().forecast(cell_of(huge.changed(memory_limit=2**30))).is_run


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_the_peak_of_a_cell_has_the_workspaces_of_the_device(
    monkeypatch: pytest.MonkeyPatch, capability: str
) -> None:
    device = DeviceCapacity(40 * 2**30, capability)
    monkeypatch.setattr("sysbench.core.studies.run.forecast.device_capacity", lambda _: device)
    spec = SPEC.changed(device="cuda:0")
    assert Forecaster().forecast(cell_of(spec)).peak_bytes == predict(spec, capability).peak_bytes
