"""A spec's prediction against its device: capacity, largest batch, other processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache, partial

from sysbench.core.errors import SpecError
from sysbench.core.machine.cards import KnownCard, find_card
from sysbench.core.machine.devices import DeviceCapacity, device_capacity, resolve_device
from sysbench.core.machine.instructions import cpu_flags, onednn_instructions
from sysbench.core.machine.read_environment import cpu_model
from sysbench.core.machine.sample import Sample
from sysbench.core.predict.closed_form import (
    Prediction,
    predict,
    why_no_workspace,
    why_not_predicted,
)
from sysbench.core.predict.fit_grid import Fit, fit
from sysbench.core.predict.room import (
    AvailableMemory,
    available_memory,
    card_elsewhere,
    card_here,
    spec_elsewhere,
)
from sysbench.core.runs.prediction_errors import error_note
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.live.sensors import device_of
from sysbench.tui.text import amount

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096)

predict_once = lru_cache(maxsize=512)(predict)
"""`predict` that remembers: a key leaves most of the grid, and what was tried to fit, as it was.

It tells a capability by its name from one by its place: always name it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrediction:
    """A spec's prediction, and what its device has room for.

    Attributes:
        card: The card that need not be here, for which it is; None for this machine.
        device: The device that ``device`` means here, or "" with the reason in `warnings`;
            a CUDA device for a card.
        capacity_bytes: Memory that a run may fill; None when not known.
        room: What of it a step can have; None when capacity is not known.
        capability: Compute capability of the device; None when not known.
        batches: The largest batch that is sure to fit, and the first from which on none does; None
            when capacity or the peak is not known.
        why_unknown: Why the peak is not predicted; "" where it is.
        past: The errors of the last predictions on this machine; "" without any.
        why_no_workspace: The part of the peak that is not predicted on this CPU; "" for none.
        warnings: Sentences that a person should read before starting.
    """

    spec: RunSpec
    prediction: Prediction
    device: str
    capacity_bytes: int | None
    room: AvailableMemory | None
    capability: str | None
    batches: Fit | None
    why_unknown: str
    past: str
    why_no_workspace: str
    warnings: list[str]
    card: KnownCard | None = None

    @property
    def place(self) -> str:
        """The card or device in words; empty where there is none."""
        return self.card.name if self.card else self.device


def predict_on_device(spec: RunSpec, sample: Sample | None, card: str = "") -> DevicePrediction:
    """Predict a spec on this machine; ``auto`` is resolved to one of its devices.

    Args:
        card: Key of a card to predict for instead, wherever the spec would run.
    """
    if card:
        return _predict_elsewhere(spec, find_card(card))
    device, memory, warnings = "", DeviceCapacity(None), []
    try:
        device = resolve_device(spec.device)
        spec = spec.changed(device=device)
        memory = device_capacity(device)
        warnings = _neighbours(sample, device)
    except SpecError as error:
        warnings = [f"{error.field} {error.value}: {error.allowed}"]
    why_unknown = why_not_predicted(spec) or ""
    capability = memory.capability
    capacity = (spec.memory_limit or memory.capacity_bytes) if device else None
    room = available_memory(spec, capacity, card_here(capability)) if capacity else None
    return DevicePrediction(
        spec=spec,
        prediction=predict_once(spec, capability=capability),
        device=device,
        capacity_bytes=capacity,
        room=room,
        capability=capability,
        batches=None if why_unknown else _batches(spec, capacity, room),
        why_unknown=why_unknown,
        past=error_note(_machine(sample, device), spec) or "",
        why_no_workspace=why_no_workspace(spec, onednn_instructions(cpu_flags(), os.environ)) or "",
        warnings=warnings,
    )


def _predict_elsewhere(spec: RunSpec, known: KnownCard) -> DevicePrediction:
    """The prediction for a card; nothing of this machine is in it."""
    on_card = spec_elsewhere(spec.changed(device="auto"), known)
    why_unknown = why_not_predicted(on_card) or ""
    capacity = on_card.memory_limit or known.memory_bytes
    room = available_memory(on_card, capacity, card_elsewhere(known))
    capability = known.capability
    return DevicePrediction(
        spec=on_card,
        prediction=predict_once(on_card, capability=capability),
        device=on_card.device,
        capacity_bytes=capacity,
        room=room,
        capability=capability,
        batches=None if why_unknown else _batches(on_card, capacity, room),
        why_unknown=why_unknown,
        past="",
        why_no_workspace="",
        warnings=[],
        card=known,
    )


def _batches(spec: RunSpec, capacity: int | None, room: AvailableMemory | None) -> Fit | None:
    """The answer of ``estimate --fit batch``; None where the capacity is not known."""
    if capacity is None or room is None:
        return None
    tried = partial(predict_once, capability=room.capability)
    return fit(spec, "batch", capacity, tried, room=room)


def _machine(sample: Sample | None, device: str) -> str | None:
    """The device's own name, without opening NVML: every keystroke asks for it."""
    if device == "cpu":
        return cpu_model()
    gpu = device_of(sample, device) if sample else None
    return gpu.name if gpu else None


def peak_grid(predicted: DevicePrediction) -> tuple[list[int], list[int], list[list[int]]]:
    """Predicted peaks around a spec: batches, contexts, and bytes by batch and context.

    The spec's own batch and context are always among them.
    """
    spec, capability = predicted.spec, predicted.capability
    batches = sorted({*BATCHES, spec.batch})
    contexts = sorted({*CONTEXTS, spec.context})
    peaks = [
        [
            predict_once(
                spec.changed(batch=batch, context=context), capability=capability
            ).peak_bytes
            for context in contexts
        ]
        for batch in batches
    ]
    return batches, contexts, peaks


def _neighbours(sample: Sample | None, device: str) -> list[str]:
    """One sentence for each process on the device that is not this one."""
    gpu = device_of(sample, device) if sample else None
    return [
        f"another process holds {amount(other.memory_bytes)} on this GPU "
        f"({other.name}, pid {other.pid})"
        for other in (gpu.processes if gpu else None) or []
        if other.pid != os.getpid()
    ]
