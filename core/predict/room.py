"""Decide whether a predicted step fits on a device, and how certain that is."""

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
"""Overhead of the caching allocator on top of a closed form's peak: this share, at least these
bytes. In exact mode, which simulates the allocator, steps of 4 to 80 GiB under memory pressure need
2 to 6 % more than their peak, smaller ones up to 11 % and 80 MiB."""


CAPACITIES = 5
"""Number of capacities, from the least to the most, at which requests are replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A device, apart from its capacity.

    Attributes:
        driver_bytes: Part of the capacity that its driver keeps.
        name: Driver's name of a card that is not in this machine; else empty.
    """

    capability: str | None = None
    driver_bytes: int = DRIVER_BYTES
    name: str = ""


ANY_CARD = Card()
"""A device whose capacity is the nominal one, as advertised."""


def card_here(capability: str | None) -> Card:
    """A device of this machine, whose capacity, by `device_capacity`, excludes the driver's."""
    return Card(capability=capability, driver_bytes=0)


def card_elsewhere(known: KnownCard) -> Card:
    """A card of the table, whose capacity is its total memory."""
    driver_bytes = DRIVER_BYTES if known.driver_bytes is None else known.driver_bytes
    return Card(capability=known.capability, driver_bytes=driver_bytes, name=known.name)


def spec_elsewhere(spec: RunSpec, known: KnownCard) -> RunSpec:
    """Move the spec to a card that is not here: on CUDA, with its own memory limit only if smaller.

    Raises:
        SpecError: The spec requires the CPU.
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
        least, most: Bytes without driver and context; they differ by the uncertainty.
        is_cuda: Whether a caching allocator hands them out, in segments.
    """

    least: int
    most: int
    is_cuda: bool
    capability: str | None = None

    @property
    def uncertainty_bytes(self) -> int:
        return self.most - self.least


def available_memory(spec: RunSpec, capacity_bytes: int, card: Card = ANY_CARD) -> AvailableMemory:
    """Memory available on a spec's device, or to the allocator under the spec's own limit."""
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
    """Decide whether the step fits.

    With requests, ``fits`` means that no request is refused at any capacity, with or without the
    build's cache; ``over`` means that one is refused in each case.
    """
    requests = _requests_of(prediction)
    if requests is None:
        if not missing_bytes(prediction, room, settings):
            return "fits"
        return "over" if prediction.peak_bytes > room.most else "close"
    lacks = _missing_by_capacity(prediction.peak_bytes, requests, room, settings)
    is_first_refused = next(lacks) > 0
    if any((lack > 0) != is_first_refused for lack in lacks):
        return "close"
    return "over" if is_first_refused else "fits"


def missing_bytes(
    prediction: Prediction, room: AvailableMemory, settings: AllocatorSettings | None = None
) -> int:
    """Additional bytes that guarantee a fit; 0 if it fits already.

    In exact mode they cover the first refused request, which may not be the last.
    """
    requests = _requests_of(prediction)
    if requests is None:
        return max(0, with_fragments(prediction.peak_bytes, room) - room.least)
    return max(_missing_by_capacity(prediction.peak_bytes, requests, room, settings))


def spare_bytes(prediction: Prediction, room: AvailableMemory) -> int:
    """Headroom: available bytes that the step does not need, or a negative number.

    In exact mode the need is the reserve of an allocator with unlimited memory.
    """
    held = prediction.held if isinstance(prediction, ExactPrediction) else None
    if held is None:
        return room.least - with_fragments(prediction.peak_bytes, room)
    return room.least - held.reserved_bytes


def closed_form_fits(peak_bytes: int, room: AvailableMemory) -> bool:
    """True if a closed form's peak is guaranteed to fit."""
    return with_fragments(peak_bytes, room) <= room.least


def with_fragments(peak_bytes: int, room: AvailableMemory) -> int:
    """A closed form's peak and the allocator's possible overhead."""
    if not room.is_cuda:
        return peak_bytes
    return peak_bytes + max(FRAGMENTS_BYTES, int(peak_bytes * FRAGMENTS_SHARE))


def _requests_of(prediction: Prediction) -> Requests | None:
    return prediction.requests if isinstance(prediction, ExactPrediction) else None


def _missing_by_capacity(
    peak_bytes: int, requests: Requests, room: AvailableMemory, settings: AllocatorSettings | None
) -> Iterator[int]:
    """Bytes missing for the first refused request, 0 for none, at each simulated capacity.

    Replayed twice if the build returns requests, with and without them: their number depends on the
    drawn values, and the cache they leave decides the layout of the step's blocks. With more memory
    an allocator can also refuse what it has served with less.
    """
    workspace = workspace_bytes(room.capability)
    chances = (False, True) if any(entry < 0 for entry in requests.build) else (False,)
    steps = range(CAPACITIES) if room.uncertainty_bytes else range(1)
    for step in steps:
        capacity = room.least + room.uncertainty_bytes * step // (CAPACITIES - 1)
        if peak_bytes > capacity:  # the tensors alone do not fit: no replay needed
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
