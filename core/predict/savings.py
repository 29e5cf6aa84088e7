"""Predict the memory saved by single changes of a spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from sysbench.core.errors import SpecError, WorkerFailed
from sysbench.core.formatting import percent
from sysbench.core.predict.closed_form import Prediction
from sysbench.core.predict.dry_run_client import (
    PLAIN,
    ExactPrediction,
    TrainingVariant,
    unsupported_reason,
)
from sysbench.core.predict.fit_grid import Predict, reserved_bytes
from sysbench.core.spec.spec import RunSpec

Play = Callable[[RunSpec, TrainingVariant], ExactPrediction]
"""`Estimator.predict` with a variant."""


class SavingChange(msgspec.Struct, frozen=True):
    """A change that can save memory, a key with its value or a variant, and its cost."""

    settings: dict[str, Any]
    price: str = ""
    variant: TrainingVariant = PLAIN


CHANGES = (
    *(SavingChange({"checkpoint": blocks}, "blocks are computed twice") for blocks in (1, 2, 4, 8)),
    SavingChange({"attention": "sdpa"}, "rounding"),
    SavingChange({"optimizer": "adamw-fused"}, "rounding"),
    SavingChange({"optimizer": "adamw-loop"}, "more launches"),
    SavingChange({"optimizer": "sgd"}, "another optimizer"),
    SavingChange({"precision": "bf16"}, "bf16 products"),
    SavingChange({"precision": "bf16-pure"}, "bf16 master weights"),
)
"""Changes to try, in addition to half the batch."""

RANK = 16
"""Rank of the LoRA adapters."""

VARIANTS = (
    SavingChange({"lora_rank": RANK}, variant=TrainingVariant(lora_rank=RANK)),
    *(
        SavingChange({"parallel": "fsdp2", "ranks": n}, variant=TrainingVariant(shards=n))
        for n in (2, 8)
    ),
)
"""Variants that only the dry run predicts, with their labels."""

MIN_SHARE = 1e-3
"""Smallest saving that is listed, as a share of the peak."""


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """One change, predicted.

    Attributes:
        settings: The changed key and its value; also ``lora_rank`` for adapters on frozen weights,
            and ``parallel`` with ``ranks`` for a sharded step.
        reserved_bytes: Of CUDA's allocator, in exact mode; else null.
        price: Cost of the change, in words.
        trained_parameters: Count of those that need gradients; null if unchanged.
    """

    settings: dict[str, Any]
    peak_bytes: int
    peak_phase: str
    saved_bytes: int
    reserved_bytes: int | None
    price: str
    trained_parameters: int | None = None


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """Memory saved by each single change, largest first.

    Attributes:
        savings: The changes that save at least `MIN_SHARE`; of checkpoints only the best.
        unknown: Allowed but unpredicted changes: key to reason.
    """

    peak_bytes: int
    peak_phase: str
    savings: list[Saving]
    unknown: dict[str, str]

    @property
    def remarks(self) -> Iterator[str]:
        for why in dict.fromkeys(self.unknown.values()):
            yield f"not predicted: {why}"
        if any("lora_rank" in saving.settings for saving in self.savings):
            yield (
                "lora_rank, which runs do not support: adapters on all linear layers but the head, "
                "in their dtype, with all else frozen (arXiv:2106.09685)"
            )
        if any(saving.settings.get("parallel") for saving in self.savings):
            yield (
                "fsdp2: torch's fully_shard by the model's blocks, the batch on each rank; on the "
                "CPU two ranks used up to 7 % more in the best of four steps"
            )
        if len(self.savings) > 1:
            yield "savings do not add up"


def savings_of(spec: RunSpec, predict: Predict, play: Play | None = None) -> Savings:
    """Predict the spec with each change that it allows.

    ``play`` predicts the `VARIANTS`, which have no formula; None leaves them out.

    Raises:
        SpecError: The memory of the spec itself is not predicted.
    """
    why = unsupported_reason(spec)
    if why:
        raise SpecError("--savings", True, f"not for this spec: {why}")
    now, savings, unknown = predict(spec), list[Saving](), dict[str, str]()
    variants = VARIANTS if play is not None and _is_trained(spec) else ()
    for change in (*_changes(spec), *variants):
        try:
            saving = _saving(now, _predicted(spec, change, predict, play), change)
        except (SpecError, WorkerFailed) as error:
            unknown[next(iter(change.settings))] = str(error)
            continue
        if saving.saved_bytes >= MIN_SHARE * now.peak_bytes:
            savings.append(saving)
    savings.sort(key=lambda saving: -saving.saved_bytes)
    checkpoints = [saving for saving in savings if "checkpoint" in saving.settings]
    return Savings(
        peak_bytes=now.peak_bytes,
        peak_phase=now.peak_phase,
        savings=[saving for saving in savings if saving not in checkpoints[1:]],
        unknown=unknown,
    )


def _predicted(
    spec: RunSpec, change: SavingChange, predict: Predict, play: Play | None
) -> Prediction:
    if play is not None and change.variant != PLAIN:
        return play(spec, change.variant)
    changed = spec.changed(**change.settings)
    if (why := unsupported_reason(changed)) is not None:
        raise WorkerFailed(why)
    return predict(changed)


def _saving(now: Prediction, then: Prediction, change: SavingChange) -> Saving:
    price, trained_parameters = change.price, None
    if change.variant.shards > 1:
        price = f"{change.variant.shards} devices, weights gathered twice"
    elif isinstance(then, ExactPrediction) and change.variant.lora_rank:
        trained_parameters = then.trained_parameters
        price = f"{percent(trained_parameters / then.parameters)} of the weights are trained"
    return Saving(
        settings=change.settings,
        peak_bytes=then.peak_bytes,
        peak_phase=then.peak_phase,
        saved_bytes=now.peak_bytes - then.peak_bytes,
        reserved_bytes=reserved_bytes(then),
        price=price,
        trained_parameters=trained_parameters,
    )


def _is_trained(spec: RunSpec) -> bool:
    return spec.step == "train" and spec.optimizer != "custom"


def _changes(spec: RunSpec) -> Iterator[SavingChange]:
    if spec.batch > 1:
        yield SavingChange({"batch": spec.batch // 2}, "smaller batch")
    for change in CHANGES:
        ((key, value),) = change.settings.items()
        is_idle = key == "optimizer" and not _is_trained(spec)
        if is_idle or (key == "checkpoint" and spec.checkpoint) or getattr(spec, key) == value:
            continue
        with suppress(SpecError):  # the spec does not allow it
            spec.changed(**change.settings)
            yield change
