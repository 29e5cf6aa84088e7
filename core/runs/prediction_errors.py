"""Store the errors of predictions after every run, for display before the next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from sysbench.core.errors import DamagedFileError
from sysbench.core.formatting import format_bytes, percent
from sysbench.core.machine.devices import sample_of
from sysbench.core.machine.read_environment import cpu_model
from sysbench.core.record.environment import device_name
from sysbench.core.record.memory import prediction_error
from sysbench.core.record.record import Record
from sysbench.core.spec.own_model import is_own
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import UNREADABLE_JSON, home, locked, read_json, write_atomically

MAX_PREDICTIONS = 200
"""Number of latest predictions that are stored, of all machines together."""

SHOWN = 6


class PastPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted and measured peak of a run on the device named ``machine``."""

    run: str
    machine: str
    precision: str
    step: str
    predicted_bytes: int
    measured_bytes: Annotated[int, msgspec.Meta(gt=0)]

    @property
    def error(self) -> float:
        error = prediction_error(self.predicted_bytes, self.measured_bytes)
        return -1.0 if error is None else error


def errors_path(root: Path | None = None) -> Path:
    return (root or home()) / "prediction_errors.json"


def past_predictions(root: Path | None = None) -> list[PastPrediction]:
    """Return all stored predictions, oldest first; DamagedFileError if the file is none."""
    path = errors_path(root)
    try:
        return msgspec.json.decode(read_json(path), type=list[PastPrediction])
    except FileNotFoundError:
        return []
    except (OSError, *UNREADABLE_JSON) as error:
        raise DamagedFileError(f"{path}: {error}") from error


def save_error(record: Record, root: Path | None = None) -> None:
    """Store the error of this run's prediction, if it had one and its peak is known.

    A damaged file is renamed, and a new one started. Raises OSError.
    """
    past_prediction = _past(record)
    if past_prediction is None:
        return
    path = errors_path(root)
    with locked(path.parent / "locks" / "prediction-errors.lock", wait=True):
        try:
            predictions = past_predictions(root)
        except DamagedFileError:
            path.replace(path.with_suffix(".damaged"))
            predictions = []
        others = [other for other in predictions if other.run != past_prediction.run]
        write_atomically(path, msgspec.json.encode([*others, past_prediction][-MAX_PREDICTIONS:]))


def error_note(machine: str | None, spec: RunSpec, root: Path | None = None) -> str | None:
    """Return a sentence on the errors of the last predictions on a machine; None without any.

    Predictions of the same kind of step and precision count, or all if there are none.
    """
    if spec.is_own:
        return None
    try:
        predictions = past_predictions(root)
    except DamagedFileError as error:
        return f"Past predictions cannot be read, the next run starts a new file: {error}"
    on_machine = [prediction for prediction in predictions if prediction.machine == machine]
    alike = [
        prediction
        for prediction in on_machine
        if (prediction.step, prediction.precision) == (spec.step, spec.precision)
    ]
    return _sentence((alike or on_machine)[-SHOWN:], is_alike=bool(alike))


def this_machine(device: str) -> str | None:
    """Return the name that a resolved device reports, or None. Opens NVML for a GPU."""
    if device == "cpu":
        return cpu_model()
    sample = sample_of(device)
    return None if sample is None else sample.name


def _sentence(past: list[PastPrediction], *, is_alike: bool) -> str | None:
    if not past:
        return None
    worst = max(past, key=lambda prediction: abs(prediction.error))
    count = f"{len(past)} predictions" if len(past) > 1 else "prediction"
    of_what = f"of {worst.step} in {worst.precision} " if is_alike else ""
    return (
        f"Last {count} {of_what}here: within {percent(abs(worst.error))} "
        f"({format_bytes(worst.predicted_bytes)} for {format_bytes(worst.measured_bytes)})"
    )


def _past(record: Record) -> PastPrediction | None:
    memory, machine = record.memory, device_name(record.environment)
    if memory is None or not memory.predicted_peak_bytes or not memory.peak_allocated_bytes:
        return None
    if machine is None or is_own(record.spec["model"]):  # each model's error is its own
        return None
    return PastPrediction(
        run=record.id,
        machine=machine,
        precision=record.spec["precision"],
        step=record.spec["step"],
        predicted_bytes=memory.predicted_peak_bytes,
        measured_bytes=memory.peak_allocated_bytes,
    )
