"""Whether a predicted step fits on a device: one step, the largest that does, and a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Literal

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.machine.peaks import KnownCard
from sysbench.core.predict.allocator_settings import MIB, AllocatorSettings
from sysbench.core.predict.closed_form import Prediction
from sysbench.core.predict.dry_run_client import ExactPrediction, unsupported_reason
from sysbench.core.predict.requests import Requests, replay_requests
from sysbench.core.predict.sizes import (
    CONTEXT_BYTES,
    DRIVER_BYTES,
    UNCERTAINTY_SHARE,
    workspace_bytes,
)
from sysbench.core.spec.fields import field_named
from sysbench.core.spec.models import find_model
from sysbench.core.spec.own_model import canonical_arguments, decoded_arguments, is_own, source_of
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
        raise SpecError("device", "cpu", f"cuda, or leave it out; {known.key} is a CUDA device")
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
    """Missing bytes; 0 if the step fits.

    In a closed form they guarantee a fit. In exact mode they cover the first refused request, and
    later ones may need more.
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


Predict = Callable[[RunSpec], Prediction]
"""The closed form, or `Estimator.predict`."""

FitKey = Literal["batch", "context", "layers", "microbatches"]
LAYER_ARGUMENTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "layers")
"""Names of user models' arguments that may be their number of layers."""

MAX_CELLS = 500
MAX_TRIED = 32
"""Maximum number of values tried one by one to find the first that never fits."""

EXPANDABLE = AllocatorSettings(expandable_segments=True)


class FitAxis(msgspec.Struct, frozen=True):
    """A key of a spec and the values that it takes in turn."""

    key: str
    values: list[Any]


class FitCell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the table.

    Attributes:
        peak_bytes, peak_phase: Null if nothing can be predicted, see ``why``.
        reserved_bytes: Of CUDA's allocator, in exact mode; else null.
        fits: Whether it is guaranteed to fit; null if the peak or the capacity is.
        verdict: The same with its uncertainty, see `Verdict`.
    """

    settings: dict[str, Any]
    peak_bytes: int | None = None
    peak_phase: str | None = None
    reserved_bytes: int | None = None
    capacity_bytes: int | None
    fits: bool | None = None
    verdict: Verdict | None = None
    why: str = ""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The largest value of a key whose predicted step is guaranteed to fit.

    Attributes:
        largest: 0 if not even 1 fits.
        next: The first that is not guaranteed to fit; null if the key allows no more.
        next_peak_bytes, over_bytes: Its peak, and the missing memory as in `missing_bytes`.
        room_bytes: Memory that is guaranteed to be available to the step.
        doubt_bytes: Uncertainty: bytes that may be available in addition.
        beyond: The first value from which on none fits; null if the key allows no more.
        reserved_bytes: Of CUDA's allocator at the largest, in exact mode; else null.
        expandable_largest: The largest with ``expandable_segments:True``; null if it is no larger.
        smallest: Of micro-batches, the fewest that fit; else null.
    """

    key: FitKey
    capacity_bytes: int
    largest: int
    peak_bytes: int | None
    next: int | None
    next_peak_bytes: int | None
    over_bytes: int | None
    room_bytes: int
    doubt_bytes: int = 0
    beyond: int | None = None
    reserved_bytes: int | None = None
    expandable_largest: int | None = None
    smallest: int | None = None


def fit(
    spec: RunSpec,
    key: FitKey,
    capacity_bytes: int,
    predict: Predict,
    guess: int | None = None,
    settings: AllocatorSettings | None = None,
    room: AvailableMemory | None = None,
) -> Fit:
    """Find the largest value of a key that fits by bisection: peaks grow with batch and context.

    An allocator's reserve can shrink from one value to the next. The result is then a value that
    fits while the next does not, and a larger one may fit too. A ``guess`` near the answer saves
    predictions.

    Raises:
        SpecError: The memory of such a spec is not predicted.
    """
    why = unsupported_reason(spec)
    if why:
        raise SpecError("--fit", key, f"not for this spec: {why}")
    search = _Search(spec, key, room or available_memory(spec, capacity_bytes), predict)
    fitting = search.largest(max(1, guess or value_of(spec, key)), settings)
    beyond = search.beyond(fitting, settings)
    following = search.predicted(fitting + 1)
    at_largest = search.predicted(fitting) if fitting else None
    expandable = search.with_expandable(max(1, fitting), settings)
    return Fit(
        key=key,
        capacity_bytes=capacity_bytes,
        largest=fitting,
        peak_bytes=None if at_largest is None else at_largest.peak_bytes,
        next=None if following is None else fitting + 1,
        next_peak_bytes=None if following is None else following.peak_bytes,
        over_bytes=None if following is None else missing_bytes(following, search.room, settings),
        room_bytes=search.room.least,
        doubt_bytes=search.room.uncertainty_bytes,
        beyond=beyond,
        reserved_bytes=None if at_largest is None else reserved_bytes(at_largest),
        expandable_largest=expandable if expandable > fitting else None,
    )


def reserved_bytes(prediction: Prediction) -> int | None:
    held = prediction.held if isinstance(prediction, ExactPrediction) else None
    return None if held is None else held.reserved_bytes


def with_value(spec: RunSpec, key: FitKey, value: int) -> RunSpec:
    """Change the key's value; user models take layers as an argument."""
    if key != "layers" or not spec.is_own:
        return spec.changed(**{key: value})
    arguments = decoded_arguments(spec.model_args) | {_layers_argument(spec): value}
    return spec.changed(model_args=canonical_arguments(arguments))


def value_of(spec: RunSpec, key: FitKey) -> int:
    """The spec's value of the key; 1 for layers of user models that do not set it."""
    if key != "layers" or not spec.is_own:
        return int(getattr(spec, key))
    value = decoded_arguments(spec.model_args).get(_layers_argument(spec), 1)
    return value if isinstance(value, int) else 1


def _layers_argument(spec: RunSpec) -> str:
    arguments = decoded_arguments(spec.model_args)
    usual = LAYER_ARGUMENTS[0] if source_of(spec.model).door == "hf" else LAYER_ARGUMENTS[-1]
    return next((name for name in LAYER_ARGUMENTS if name in arguments), usual)


class _Search:
    def __init__(self, spec: RunSpec, key: FitKey, room: AvailableMemory, predict: Predict) -> None:
        self.room = room
        self._spec, self._key, self._predict = spec, key, predict
        self._allowed = field_named(key).valid
        self._known: dict[int, Prediction] = {}

    def predicted(self, value: int) -> Prediction | None:
        if not self._allowed(value):
            return None
        if value not in self._known:
            self._known[value] = self._predict(with_value(self._spec, self._key, value))
        return self._known[value]

    def largest(self, guess: int, settings: AllocatorSettings | None) -> int:
        """A value that is guaranteed to fit while the next one is not; 0 for none."""
        return largest(lambda value: self._verdict(value, settings) == "fits", guess)

    def beyond(self, fitting: int, settings: AllocatorSettings | None) -> int | None:
        """The first value from which on none fits; None if the key allows no more.

        The allocator's overhead goes up and down from value to value, tensors only up. The search
        starts where the tensors alone do not fit, and goes downwards.
        """

        def tensors_fit(value: int) -> bool:
            prediction = self.predicted(value)
            return prediction is not None and prediction.peak_bytes <= self.room.most

        value = largest(tensors_fit, self._guess_bound(fitting)) + 1
        lowest = max(fitting + 1, value - MAX_TRIED)
        while value > lowest and self._verdict(value - 1, settings) == "over":
            value -= 1
        return None if self.predicted(value) is None else value

    def _guess_bound(self, fitting: int) -> int:
        """Estimate where the tensors fill the memory, by the growth after the fitting value."""
        here, after = self.predicted(max(1, fitting)), self.predicted(max(1, fitting) + 1)
        if here is None or after is None or after.peak_bytes <= here.peak_bytes:
            return max(1, fitting)
        left = self.room.most - here.peak_bytes
        guess = fitting + left // (after.peak_bytes - here.peak_bytes)
        return max(1, guess if self._allowed(guess) else fitting)

    def _verdict(self, value: int, settings: AllocatorSettings | None) -> Verdict | None:
        prediction = self.predicted(value)
        return None if prediction is None else fit_verdict(prediction, self.room, settings)

    def with_expandable(self, guess: int, settings: AllocatorSettings | None) -> int:
        prediction = self.predicted(guess)
        has_requests = isinstance(prediction, ExactPrediction) and prediction.requests is not None
        if not has_requests or (settings is not None and settings.expandable_segments):
            return 0
        return self.largest(guess, EXPANDABLE)


def largest(is_fine: Callable[[int], bool], guess: int = 1) -> int:
    """The largest number, at least 1, that is fine if all below it are; 0 for none.

    Steps away from the guess, twice as far each time, then bisects.
    """
    step = 1
    if is_fine(guess):
        fine, bad = guess, guess + 1
        while is_fine(bad):
            step *= 2
            fine, bad = bad, bad + step
    else:
        fine, bad = guess - 1, guess
        while fine > 0 and not is_fine(fine):
            step *= 2
            fine, bad = max(0, fine - step), fine
    while bad - fine > 1:
        middle = (fine + bad) // 2
        fine, bad = (middle, bad) if is_fine(middle) else (fine, middle)
    return fine


def parse_axes(texts: Sequence[str]) -> list[FitAxis]:
    """Parse ``["context=128,256", "precision=fp32,bf16"]``.

    Raises:
        SpecError: An unknown or repeated key, an invalid value, or more than `MAX_CELLS` cells.
    """
    axes = [_parse_axis(text) for text in texts]
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise SpecError("--table", key, "each key once, its values with commas")
    cells = prod(len(axis.values) for axis in axes)
    if cells > MAX_CELLS:
        raise SpecError("--table", f"{cells} cells", f"at most {MAX_CELLS}")
    return axes


def _parse_axis(text: str) -> FitAxis:
    key, equals, values = text.partition("=")
    parts = [part.strip() for part in values.split(",")]
    if not equals or not all(parts):
        raise SpecError("--table", text, "KEY=VALUE,VALUE,…, such as context=128,256,512")
    field = field_named(key.strip(), values)
    if field.name == "device":
        raise SpecError("--table", text, "any key but device: the capacity is that of one")
    parsed = [field.parse(part) for part in parts]
    if field.name in ("batch", "context") and 0 in parsed:
        raise SpecError(field.name, "0", field.allowed)
    if field.name == "model":
        if any(map(is_own, parsed)):
            raise SpecError("--table", text, "presets; for your own models vary model_args")
        parsed = [find_model(name).name for name in parsed]
    return FitAxis(field.name, list(dict.fromkeys(parsed)))


def fit_cells(
    spec: RunSpec,
    axes: Sequence[FitAxis],
    capacity_bytes: int | None,
    predict: Predict,
    card: Card = ANY_CARD,
) -> list[FitCell]:
    """Predict every combination, the last axis fastest.

    A combination that no device can run is a cell without a prediction. A ``memory_limit`` of the
    cell's spec counts as its capacity.
    """
    keys = [axis.key for axis in axes]
    return [
        _cell(spec, dict(zip(keys, values, strict=True)), capacity_bytes, predict, card)
        for values in product(*(axis.values for axis in axes))
    ]


def _cell(
    spec: RunSpec,
    settings: dict[str, Any],
    capacity_bytes: int | None,
    predict: Predict,
    card: Card,
) -> FitCell:
    try:
        changed = spec.changed(**settings)
    except SpecError as error:
        return FitCell(settings=settings, capacity_bytes=capacity_bytes, why=str(error))
    capacity = changed.memory_limit or capacity_bytes
    why = unsupported_reason(changed)
    if why:
        return FitCell(settings=settings, capacity_bytes=capacity, why=why)
    prediction = predict(changed)
    room = None if capacity is None else available_memory(changed, capacity, card)
    verdict = None if room is None else fit_verdict(prediction, room)
    return FitCell(
        settings=settings,
        peak_bytes=prediction.peak_bytes,
        peak_phase=prediction.peak_phase,
        reserved_bytes=reserved_bytes(prediction),
        capacity_bytes=capacity,
        fits=None if verdict is None else verdict == "fits",
        verdict=verdict,
    )
