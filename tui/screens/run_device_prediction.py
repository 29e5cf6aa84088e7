"""A spec's prediction against its device: capacity, largest batch, other processes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache, partial

from sysbench.core.errors import SpecError, SysbenchError
from sysbench.core.machine.devices import (
    DeviceCapacity,
    cpu_flags,
    device_capacity,
    onednn_instructions,
    resolve_device,
)
from sysbench.core.machine.peaks import KnownCard, find_card
from sysbench.core.machine.read_environment import cpu_model
from sysbench.core.machine.sample import Sample
from sysbench.core.predict.allocator_settings import parse_allocator_settings
from sysbench.core.predict.closed_form import (
    Prediction,
    predict,
    why_no_workspace,
    why_not_predicted,
)
from sysbench.core.predict.dry_run_client import Estimator, unsupported_reason
from sysbench.core.predict.fit_grid import (
    AvailableMemory,
    Fit,
    Verdict,
    available_memory,
    card_elsewhere,
    card_here,
    fit,
    fit_verdict,
    spec_elsewhere,
)
from sysbench.core.predict.layout_plan import RankGroup, group_ranks, play_ranks
from sysbench.core.runs.prediction_errors import error_note
from sysbench.core.spec.model_source import locate
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World
from sysbench.tui.live.sensors import device_of
from sysbench.tui.text import amount

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096)

predict_once = lru_cache(maxsize=512)(predict)
"""Cached `predict`: an edit leaves most cells of the grid and of the fit as they were.

Always pass ``capability`` by name: the cache treats a positional argument as another key.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrediction:
    """A spec's prediction for a device. None means unknown.

    Attributes:
        card: GPU model that is predicted for instead of this machine.
        device: Resolved device, or "" with the reason in `warnings`.
        capacity_bytes: Memory that a run may fill.
        room: The part of the capacity that a step can use.
        batches: The largest batch that fits, and the smallest that certainly does not.
        why_unknown: Why the peak is not predicted, or "".
        past: Errors of recent predictions on this machine, or "".
        why_no_workspace: Part of the peak that cannot be predicted on this CPU, or "".
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
        return self.card.name if self.card else self.device


def predict_on_device(spec: RunSpec, sample: Sample | None, card: str = "") -> DevicePrediction:
    known, device, warnings = find_card(card) if card else None, "", list[str]()
    memory = DeviceCapacity(None)
    if known is not None:
        spec = spec_elsewhere(spec.changed(device="auto"), known)
        device, memory = spec.device, DeviceCapacity(known.memory_bytes, known.capability)
    else:
        try:
            device = resolve_device(spec.device)
            spec = spec.changed(device=device)
            memory = device_capacity(device)
            warnings = _other_processes(sample, device)
        except SpecError as error:
            warnings = [f"{error.field} {error.value}: {error.allowed}"]
    why_unknown, capability = why_not_predicted(spec) or "", memory.capability
    capacity = (spec.memory_limit or memory.capacity_bytes) if device else None
    place = card_elsewhere(known) if known else card_here(capability)
    room = available_memory(spec, capacity, place) if capacity else None
    past = no_workspace = None
    if known is None:
        past = error_note(_machine(sample, device), spec)
        no_workspace = why_no_workspace(spec, onednn_instructions(cpu_flags(), os.environ))
    return DevicePrediction(
        spec=spec,
        prediction=predict_once(spec, capability=capability),
        device=device,
        capacity_bytes=capacity,
        room=room,
        capability=capability,
        batches=None if why_unknown else _batches(spec, capacity, room),
        why_unknown=why_unknown,
        past=past or "",
        why_no_workspace=no_workspace or "",
        warnings=warnings,
        card=known,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedWorld:
    """The ranks of a world for a prediction's device.

    Attributes:
        groups: Ranks that differ, the group that needs most first; empty until they are known.
        verdicts: Whether each group fits; empty where no capacity is known.
        error: Why there is no prediction, or "".
    """

    world: World
    groups: list[RankGroup] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    error: str = ""


def predict_world(predicted: DevicePrediction, world: World, exact: Estimator) -> PredictedWorld:
    """Play each kind of rank; takes seconds."""
    spec = predicted.spec.changed(device=predicted.device or predicted.spec.device)
    try:
        if why := unsupported_reason(spec):
            raise SpecError("world", world.words, f"leave it out; {why}")
        spec = locate(spec)
        with exact:
            ranks = play_ranks(
                spec,
                world,
                lambda spec, variant: exact.predict(spec, predicted.capability, variant),
            )
    except SysbenchError as error:
        return PredictedWorld(world=world, error=str(error))
    groups, settings = group_ranks(ranks), parse_allocator_settings(os.environ)
    room = predicted.room
    verdicts = [
        fit_verdict(group.worst.prediction, room, settings) for group in groups if room is not None
    ]
    return PredictedWorld(world=world, groups=groups, verdicts=verdicts)


def _batches(spec: RunSpec, capacity: int | None, room: AvailableMemory | None) -> Fit | None:
    if capacity is None or room is None:
        return None
    predict_batch = partial(predict_once, capability=room.capability)
    return fit(spec, "batch", capacity, predict_batch, room=room)


def _machine(sample: Sample | None, device: str) -> str | None:
    """Name of the device. Does not open NVML, as it is called on every keystroke."""
    if device == "cpu":
        return cpu_model()
    gpu = device_of(sample, device) if sample else None
    return gpu.name if gpu else None


def peak_grid(predicted: DevicePrediction) -> tuple[list[int], list[int], list[list[int]]]:
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


def _other_processes(sample: Sample | None, device: str) -> list[str]:
    gpu = device_of(sample, device) if sample else None
    return [
        f"another process uses {amount(other.memory_bytes)} of this GPU "
        f"({other.name}, pid {other.pid})"
        for other in (gpu.processes if gpu else None) or []
        if other.pid != os.getpid()
    ]
