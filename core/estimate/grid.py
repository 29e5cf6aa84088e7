"""Predictions over several specs: the largest that fits, and a table of cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any, Literal

import msgspec

from ..errors import SpecError
from ..spec.fields import field_named
from ..spec.models import find_model
from ..spec.spec import RunSpec
from .closed_form import Prediction, fits, why_not_predicted

Predict = Callable[[RunSpec], Prediction]
"""The closed form, or `Estimator.predict`."""

FitKey = Literal["batch", "context"]
MOST_CELLS = 500


class Axis(msgspec.Struct, frozen=True):
    """A key of a spec and the values that it takes in turn."""

    key: str
    values: list[Any]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One place of the table.

    Attributes:
        settings: Key to value, of each axis.
        peak_bytes, peak_phase: Null where nothing can be predicted; ``why`` says the reason.
        capacity_bytes: Capacity to compare with; null where not known.
        fits: Null where the peak or the capacity is.
    """

    settings: dict[str, Any]
    peak_bytes: int | None = None
    peak_phase: str | None = None
    capacity_bytes: int | None
    fits: bool | None = None
    why: str = ""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The largest value of a key whose predicted peak fits.

    Attributes:
        largest: 0 where not even 1 fits.
        peak_bytes: At the largest; null where that is 0.
        next: The first that does not fit; null where the key allows no more.
        next_peak_bytes, over_bytes: Its peak, and how far that is above the capacity.
    """

    key: FitKey
    capacity_bytes: int
    largest: int
    peak_bytes: int | None
    next: int | None
    next_peak_bytes: int | None
    over_bytes: int | None


def fit(
    spec: RunSpec, key: FitKey, capacity_bytes: int, predict: Predict, guess: int | None = None
) -> Fit:
    """The largest value of a key that fits, by bisection: peaks grow with batch and context.

    Args:
        guess: First value to try; near the answer it saves predictions. Default: the spec's.

    Raises:
        SpecError: The memory of such a spec is not predicted.
    """
    why = why_not_predicted(spec)
    if why:
        raise SpecError("--fit", key, f"not for this spec: {why}")
    allowed = field_named(key).valid

    def peak(value: int) -> int:
        return predict(spec.changed(**{key: value})).peak_bytes

    largest_fitting = largest(
        lambda value: allowed(value) and peak(value) <= capacity_bytes,
        max(1, guess or getattr(spec, key)),
    )
    next_peak = peak(largest_fitting + 1) if allowed(largest_fitting + 1) else None
    return Fit(
        key=key,
        capacity_bytes=capacity_bytes,
        largest=largest_fitting,
        peak_bytes=peak(largest_fitting) if largest_fitting else None,
        next=None if next_peak is None else largest_fitting + 1,
        next_peak_bytes=next_peak,
        over_bytes=None if next_peak is None else next_peak - capacity_bytes,
    )


def largest(is_fine: Callable[[int], bool], guess: int = 1) -> int:
    """The largest number, at least 1, that is fine if all below it are; 0 if none is.

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


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """``["context=128,256", "precision=fp32,bf16"]`` to axes.

    Raises:
        SpecError: No such key, a value that it does not allow, a key that comes twice, or more
            than `MOST_CELLS` cells.
    """
    axes = [_parse_axis(text) for text in texts]
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise SpecError("--table", key, "each key once, its values with commas")
    cells = prod(len(axis.values) for axis in axes)
    if cells > MOST_CELLS:
        raise SpecError("--table", f"{cells} cells", f"at most {MOST_CELLS}")
    return axes


def _parse_axis(text: str) -> Axis:
    key, equals, values = text.partition("=")
    parts = [part.strip() for part in values.split(",")]
    if not equals or not all(parts):
        raise SpecError("--table", text, "KEY=VALUE,VALUE,…, such as context=128,256,512")
    field = field_named(key.strip(), values)
    if field.name == "device":
        raise SpecError("--table", text, "any key but device: the capacity is that of one")
    parsed = [field.parse(part) for part in parts]
    if field.name == "model":
        parsed = [find_model(name).name for name in parsed]
    return Axis(field.name, list(dict.fromkeys(parsed)))


def cells_of(
    spec: RunSpec, axes: Sequence[Axis], capacity_bytes: int | None, predict: Predict
) -> list[Cell]:
    """A cell for every combination, the last axis fastest.

    A combination that no device can run is a cell without a prediction. A ``memory_limit`` of
    the cell's spec counts as its capacity.
    """
    keys = [axis.key for axis in axes]
    return [
        _cell(spec, dict(zip(keys, values, strict=True)), capacity_bytes, predict)
        for values in product(*(axis.values for axis in axes))
    ]


def _cell(
    spec: RunSpec, settings: dict[str, Any], capacity_bytes: int | None, predict: Predict
) -> Cell:
    try:
        changed = spec.changed(**settings)
    except SpecError as error:
        return Cell(settings=settings, capacity_bytes=capacity_bytes, why=str(error))
    capacity = changed.memory_limit or capacity_bytes
    why = why_not_predicted(changed)
    if why:
        return Cell(settings=settings, capacity_bytes=capacity, why=why)
    prediction = predict(changed)
    return Cell(
        settings=settings,
        peak_bytes=prediction.peak_bytes,
        peak_phase=prediction.peak_phase,
        capacity_bytes=capacity,
        fits=None if capacity is None else fits(prediction, capacity),
    )
