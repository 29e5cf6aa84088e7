"""What would save memory: the same spec with one key changed, each predicted as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..errors import SpecError, WorkerFailed
from ..spec.spec import RunSpec
from .exact import why_not_played
from .grid import Predict, reserved_bytes


class Change(msgspec.Struct, frozen=True):
    """A key that can save memory, its value, and what it costs instead."""

    key: str
    value: Any
    price: str


CHANGES = (
    *(Change("checkpoint", blocks, "blocks are computed twice") for blocks in (1, 2, 4, 8)),
    Change("attention", "sdpa", "rounding"),
    Change("optimizer", "adamw-fused", "rounding"),
    Change("optimizer", "adamw-loop", "more launches"),
    Change("optimizer", "sgd", "another optimizer"),
    Change("precision", "bf16", "digits of products"),
    Change("precision", "bf16-pure", "digits of weights too"),
)
"""What is tried beside half of the batch."""

LEAST_SHARE = 1e-3
"""Share of the peak from which on a saving is one."""


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """One change, predicted.

    Attributes:
        settings: The changed key and its value.
        saved_bytes: Of the peak of tensors.
        reserved_bytes: Of CUDA's allocator, in exact mode; else null.
        price: What is given for it.
    """

    settings: dict[str, Any]
    peak_bytes: int
    peak_phase: str
    saved_bytes: int
    reserved_bytes: int | None
    price: str


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """What one change each would save, the most first.

    Attributes:
        peak_bytes: Of the spec as it is.
        savings: The changes that save at least `LEAST_SHARE`; of checkpoints the best one.
        unknown: Keys with a change that the spec allows but that is not predicted: the reason.
    """

    peak_bytes: int
    peak_phase: str
    savings: list[Saving]
    unknown: dict[str, str]


def savings_of(spec: RunSpec, predict: Predict) -> Savings:
    """Predict the spec with each change that it allows.

    Args:
        predict: The closed form, or `Estimator.predict`, for all of them.

    Raises:
        SpecError: The memory of the spec itself is not predicted.
    """
    why = why_not_played(spec)
    if why:
        raise SpecError("--savings", True, f"not for this spec: {why}")
    now, found, unknown = predict(spec), list[Saving](), dict[str, str]()
    for change in _changes(spec):
        settings = {change.key: change.value}
        try:
            changed = spec.changed(**settings)
        except SpecError:  # the spec cannot have it
            continue
        if (why := why_not_played(changed)) is not None:
            unknown[change.key] = why
            continue
        try:
            then = predict(changed)
        except (SpecError, WorkerFailed) as error:
            unknown[change.key] = str(error)
            continue
        if now.peak_bytes - then.peak_bytes >= LEAST_SHARE * now.peak_bytes:
            saving = Saving(
                settings=settings,
                peak_bytes=then.peak_bytes,
                peak_phase=then.peak_phase,
                saved_bytes=now.peak_bytes - then.peak_bytes,
                reserved_bytes=reserved_bytes(then),
                price=change.price,
            )
            found.append(saving)
    found.sort(key=lambda saving: -saving.saved_bytes)
    checkpoints = [saving for saving in found if "checkpoint" in saving.settings]
    return Savings(
        peak_bytes=now.peak_bytes,
        peak_phase=now.peak_phase,
        savings=[saving for saving in found if saving not in checkpoints[1:]],
        unknown=unknown,
    )


def _changes(spec: RunSpec) -> Iterator[Change]:
    if spec.batch > 1:
        yield Change("batch", spec.batch // 2, "fewer rows a step")
    is_trained = spec.step == "train" and spec.optimizer != "custom"
    for change in CHANGES:
        if change.key == "optimizer" and not is_trained:
            continue
        if change.key == "checkpoint" and spec.checkpoint:
            continue
        if getattr(spec, change.key) != change.value:
            yield change
