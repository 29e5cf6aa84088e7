"""Whether a predicted step fits on a device, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sysbench.core.errors import SpecError
from sysbench.core.machine.cards import KnownCard
from sysbench.core.predict.allocator_settings import MIB, AllocatorSettings
from sysbench.core.predict.closed_form import Prediction
from sysbench.core.predict.dry_run_client import ExactPrediction
from sysbench.core.predict.requests import Requests, replay_requests
from sysbench.core.predict.sizes import (
    CONTEXT_BYTES,
    DRIVER_BYTES,
    UNCERTAINTY_SHARE,
    workspace_bytes,
)
from sysbench.core.spec.spec import RunSpec

Verdict = Literal["fits", "close", "over"]
"""``close``: within the uncertainty of the device and, in the closed form, of the allocator."""

FRAGMENTS_SHARE, FRAGMENTS_BYTES = 0.07, 128 * MIB
"""What the closed form leaves to the caching allocator beside a step's peak: this share, at least
these bytes. By exact mode, which plays the allocator, steps of 4 to 80 GiB pressed for memory need
2 to 6 % more than their peak, smaller ones up to 11 % and 80 MiB."""


PLAYED = 5
"""Capacities, from the least to the most, at which requests are replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A device as a prediction knows it, beside its capacity.

    Attributes:
        capability: Its compute capability, such as ``9.0``; None where it is not known.
        driver_bytes: What of the capacity its driver keeps for itself.
        name: Of a card that is not here, what its driver would call it; else empty.
    """

    capability: str | None = None
    driver_bytes: int = DRIVER_BYTES
    name: str = ""


ANY_CARD = Card()
"""A device whose memory is quoted, as on the box."""


def card_here(capability: str | None) -> Card:
    """A device of this machine, whose capacity, by `device_capacity`, is without the driver's."""
    return Card(capability=capability, driver_bytes=0)


def card_elsewhere(known: KnownCard) -> Card:
    """A card of the table, whose capacity is all of its memory."""
    driver_bytes = DRIVER_BYTES if known.driver_bytes is None else known.driver_bytes
    return Card(capability=known.capability, driver_bytes=driver_bytes, name=known.name)


def spec_elsewhere(spec: RunSpec, known: KnownCard) -> RunSpec:
    """The spec on a card that is not here: on CUDA, under its own limit only where that is less.

    Raises:
        SpecError: It says that it runs on the CPU.
    """
    if spec.device == "cpu":
        raise SpecError("device", "cpu", f"cuda, or left out: {known.key} is a CUDA device")
    device = "cuda:0" if spec.device == "auto" else spec.device
    unlimited = spec.changed(device=device, memory_limit=0)
    if not spec.memory_limit:
        return unlimited
    room = available_memory(unlimited, known.memory_bytes, card_elsewhere(known))
    return spec.changed(device=device) if spec.memory_limit < room.least else unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableMemory:
    """Memory of a device that is available to a step.

    Attributes:
        least, most: Bytes without what driver and context take; they differ by the uncertainty of
            these.
        is_cuda: Whether a caching allocator hands them out, in segments.
        capability: The device's, by which the workspaces of libraries go.
    """

    least: int
    most: int
    is_cuda: bool
    capability: str | None = None

    @property
    def uncertainty_bytes(self) -> int:
        """Width of what may be wrong: bytes that may be available on top of the least."""
        return self.most - self.least


def available_memory(spec: RunSpec, capacity_bytes: int, card: Card = ANY_CARD) -> AvailableMemory:
    """Memory available on a spec's device, or under its own limit.

    Args:
        capacity_bytes: The device's memory, or ``spec.memory_limit``, which is for the allocator
            alone.
    """
    least = most = capacity_bytes
    is_cuda = spec.device != "cpu"
    if is_cuda and not spec.memory_limit:
        left = max(0, capacity_bytes - CONTEXT_BYTES - card.driver_bytes)
        uncertainty = int(UNCERTAINTY_SHARE * capacity_bytes)
        least, most = max(0, left - uncertainty), left + uncertainty
    return AvailableMemory(least=least, most=most, is_cuda=is_cuda, capability=card.capability)


def fit_verdict(
    prediction: Prediction, room: AvailableMemory, settings: AllocatorSettings | None = None
) -> Verdict:
    """Whether the step fits.

    With requests it is sure to where none is refused at any capacity and with any cache that the
    build leaves, and sure not to where one is refused in each case.
    """
    requests = _requests_of(prediction)
    if requests is None:
        if not missing_bytes(prediction, room, settings):
            return "fits"
        return "over" if prediction.peak_bytes > room.most else "close"
    lacks = _lacks(prediction.peak_bytes, requests, room, settings)
    is_first_refused = next(lacks) > 0
    if any((lack > 0) != is_first_refused for lack in lacks):
        return "close"
    return "over" if is_first_refused else "fits"


def missing_bytes(
    prediction: Prediction, room: AvailableMemory, settings: AllocatorSettings | None = None
) -> int:
    """Bytes with which the step is sure to fit, on top of what it has; 0 where it fits as it is.

    In exact mode those of the first request that is refused, which may not be the last.
    """
    requests = _requests_of(prediction)
    if requests is None:
        return max(0, with_fragments(prediction.peak_bytes, room) - room.least)
    return max(_lacks(prediction.peak_bytes, requests, room, settings))


def spare_bytes(prediction: Prediction, room: AvailableMemory) -> int:
    """Headroom: available bytes that the step does not need; negative for none.

    In exact mode the step needs what the allocator reserves on a device without end.
    """
    held = prediction.held if isinstance(prediction, ExactPrediction) else None
    if held is None:
        return room.least - with_fragments(prediction.peak_bytes, room)
    return room.least - held.reserved_bytes


def is_room(peak_bytes: int, room: AvailableMemory) -> bool:
    """Whether a closed form's peak is sure to fit."""
    return with_fragments(peak_bytes, room) <= room.least


def with_fragments(peak_bytes: int, room: AvailableMemory) -> int:
    """A closed form's peak and what the allocator may need on top of it."""
    if not room.is_cuda:
        return peak_bytes
    return peak_bytes + max(FRAGMENTS_BYTES, int(peak_bytes * FRAGMENTS_SHARE))


def _requests_of(prediction: Prediction) -> Requests | None:
    return prediction.requests if isinstance(prediction, ExactPrediction) else None


def _lacks(
    peak_bytes: int, requests: Requests, room: AvailableMemory, settings: AllocatorSettings | None
) -> Iterator[int]:
    """Bytes that the first refused request lacks, 0 for none, at each capacity played.

    Twice where the build returns what it requested, also without that: how much of it there is
    goes by the values that are drawn, and where the step's blocks lie by what it leaves cached.
    With more memory an allocator can also refuse what it has served with less.
    """
    workspace = workspace_bytes(room.capability)
    chances = (False, True) if any(entry < 0 for entry in requests.build) else (False,)
    steps = range(PLAYED) if room.uncertainty_bytes else range(1)
    for step in steps:
        capacity = room.least + room.uncertainty_bytes * step // (PLAYED - 1)
        if peak_bytes > capacity:  # the tensors alone are too many: spares the playing
            yield peak_bytes - capacity
            continue
        for leaves_nothing in chances:
            shortage = replay_requests(
                requests, workspace, settings, capacity, leaves_nothing=leaves_nothing
            ).shortage
            if shortage is None:
                yield 0
            else:
                yield max(1, shortage.reserved_bytes + shortage.requested_bytes - capacity)
