"""Errors of predictions: stored by real runs, shown before the next, safe when damaged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from sysbench.core.errors import DamagedFileError
from sysbench.core.record.environment import device_name
from sysbench.core.record.record import Record
from sysbench.core.runs.prediction_errors import (
    MAX_PREDICTIONS,
    error_note,
    errors_path,
    past_predictions,
    save_error,
    this_machine,
)
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import RunSpec

SPEC = RunSpec(model="tiny", device="cpu")
NOTHING_MEASURED = (
    '[{"run": "r", "machine": "m", "precision": "fp32", "step": "train", "predicted_bytes": 1, '
    '"measured_bytes": 0}]'
)


@pytest.fixture
def record(tiny_run: RunDirectory) -> Record:
    return tiny_run.record()


def other(record: Record, run: str, predicted: float = 1.0, **spec: object) -> Record:
    """The record as another run's, predicted ``factor`` times the measurement."""
    assert record.memory is not None
    memory = msgspec.structs.replace(
        record.memory,
        predicted_peak_bytes=round(predicted * record.memory.peak_allocated_bytes),
    )
    return msgspec.structs.replace(record, id=run, memory=memory, spec=record.spec | spec)


def test_a_finished_run_has_left_its_error(tiny_run: RunDirectory, record: Record) -> None:
    home = tiny_run.path.parents[1]
    (kept,) = past_predictions(home)
    assert record.memory is not None
    assert (kept.run, kept.machine) == (tiny_run.id, device_name(record.environment))
    assert kept.predicted_bytes == record.memory.predicted_peak_bytes
    assert kept.measured_bytes == record.memory.peak_allocated_bytes
    note = error_note(this_machine("cpu"), SPEC, home)
    assert note is not None
    assert note.startswith("Last prediction of train in fp32 here: within 0.0 %")


def test_the_worst_of_the_last_six_is_reported(record: Record, tmp_path: Path) -> None:
    for number, predicted in enumerate([3.0, 1.0, 1.01, 0.98, 1.0, 1.005, 1.0]):
        save_error(other(record, f"run-{number}", predicted), tmp_path)
    note = error_note(device_name(record.environment), SPEC, tmp_path)
    assert note is not None
    assert "Last 6 predictions of train in fp32 here: within 2.0 %" in note


def test_steps_of_the_same_kind_come_before_others(record: Record, tmp_path: Path) -> None:
    machine = device_name(record.environment)
    save_error(other(record, "a", 1.5, step="inference"), tmp_path)
    assert "Last prediction here: within 50.0 %" in str(error_note(machine, SPEC, tmp_path))
    save_error(other(record, "b", 1.1), tmp_path)
    assert "of train in fp32 here: within 10.0 %" in str(error_note(machine, SPEC, tmp_path))


def test_another_machine_has_errors_of_its_own(record: Record, tmp_path: Path) -> None:
    save_error(record, tmp_path)
    assert error_note("NVIDIA H100 80GB HBM3", SPEC, tmp_path) is None
    assert error_note(None, SPEC, tmp_path) is None


def test_nothing_is_kept_without_a_prediction_or_a_peak(record: Record, tmp_path: Path) -> None:
    save_error(msgspec.structs.replace(record, memory=None), tmp_path)
    assert record.memory is not None
    memory = msgspec.structs.replace(record.memory, predicted_peak_bytes=None)
    save_error(msgspec.structs.replace(record, memory=memory), tmp_path)
    save_error(msgspec.structs.replace(record, environment={}), tmp_path)
    assert past_predictions(tmp_path) == []
    assert not errors_path(tmp_path).exists()


def test_a_run_counts_once_and_the_oldest_go(record: Record, tmp_path: Path) -> None:
    for number in [*range(MAX_PREDICTIONS + 5), MAX_PREDICTIONS + 4]:
        save_error(other(record, f"run-{number}"), tmp_path)
    kept = [one.run for one in past_predictions(tmp_path)]
    assert kept == [f"run-{number}" for number in range(5, MAX_PREDICTIONS + 5)]


def test_runs_that_end_at_once_lose_nothing(record: Record, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: save_error(other(record, f"run-{n}"), tmp_path), range(24)))
    assert {one.run for one in past_predictions(tmp_path)} == {f"run-{n}" for n in range(24)}


@pytest.mark.parametrize("text", ["", "{", "{}", '[{"run": 3}]', NOTHING_MEASURED, "\xff"])
def test_a_damaged_file_is_reported_and_replaced(record: Record, tmp_path: Path, text: str) -> None:
    path = errors_path(tmp_path)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedFileError, match="prediction_errors"):
        past_predictions(tmp_path)
    assert "cannot be read" in str(error_note("any", SPEC, tmp_path))
    save_error(record, tmp_path)
    assert [one.run for one in past_predictions(tmp_path)] == [record.id]
    assert path.with_suffix(".damaged").read_bytes() == text.encode("latin-1")
