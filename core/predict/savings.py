"""Predict the memory saved by single changes of a spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from sysbench.core.errors import ModelError, SpecError, WorkerFailed
from sysbench.core.formatting import format_bytes, percent
from sysbench.core.predict.closed_form import Prediction
from sysbench.core.predict.dry_run_client import (
    NOT_APPLICABLE,
    PLAIN,
    ExactPrediction,
    TrainingVariant,
    unsupported_reason,
)
from sysbench.core.predict.fit_grid import Predict, reserved_bytes
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World

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

CHUNKS = 8
"""Parts of a chunked loss."""

VARIANTS = (
    SavingChange({"lora_rank": RANK}, variant=TrainingVariant(lora_rank=RANK)),
    *(
        SavingChange({"parallel": "fsdp2", "ranks": n}, variant=TrainingVariant(world=World(dp=n)))
        for n in (2, 8)
    ),
    SavingChange(
        {"optimizer": "adamw-8bit"}, "moments of 8 bits", TrainingVariant(optimizer="adamw-8bit")
    ),
    SavingChange(
        {"optimizer": "adafactor"},
        "another optimizer, without first moments",
        TrainingVariant(optimizer="adafactor"),
    ),
    SavingChange(
        {"optimizer": "adamw-on-cpu"},
        "gradients and weights cross the bus each step",
        TrainingVariant(optimizer="adamw-on-cpu"),
    ),
    SavingChange(
        {"loss_chunks": CHUNKS},
        "a loss of its own, more launches",
        TrainingVariant(loss_chunks=CHUNKS),
    ),
)
"""Variants that only the dry run predicts, with their labels."""

LABELS = {
    "lora_rank": "lora_rank, which runs do not support: adapters on all linear layers but the "
    "head, and on convolutions if these hold more weights, in their dtype, with all else frozen "
    "(arXiv:2106.09685)",
    "fsdp2": "fsdp2: torch's fully_shard by the model's blocks, the batch on each rank; on the CPU "
    "two ranks used up to 7 % more in the best of four steps",
    "adamw-8bit": "adamw-8bit, which runs do not support: moments of a byte with a scale for each "
    "256, tensors below 4,096 elements in fp32, as bitsandbytes (arXiv:2110.02861)",
    "adafactor": "adafactor, which runs do not support: torch's with foreach=False "
    "(arXiv:1804.04235)",
    "adamw-on-cpu": "adamw-on-cpu, which runs do not support: moments and update on the host, "
    "gradients on the device (arXiv:2101.06840)",
    "loss_chunks": "loss_chunks, which runs do not support: logits and loss of an eighth of the "
    "tokens at a time, as fused losses do (Liger)",
}
"""What the dry run of a variant counts, by the name of its key or value."""

NEEDS_EXACT = (
    "with --exact also adapters, shards, moments of 8 bits, Adafactor, an optimizer on the CPU and "
    "a chunked loss"
)

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
        refused: The same by change, ``optimizer=sgd``.
        costlier: Adapters that need more memory than they save.
        is_exact: Whether the dry run's variants were tried.
    """

    peak_bytes: int
    peak_phase: str
    savings: list[Saving]
    unknown: dict[str, str]
    refused: dict[str, str] = {}
    costlier: list[Saving] = []
    is_exact: bool = False

    @property
    def remarks(self) -> Iterator[str]:
        for why in dict.fromkeys(self.refused.values()):
            changes = ", ".join(change for change, other in self.refused.items() if other == why)
            yield f"not predicted, {changes}: {why}"
        for saving in self.costlier:
            more = format_bytes(-saving.saved_bytes)
            yield (
                f"{setting_words(saving.settings)} saves nothing: it needs {more} more "
                f"({percent(-saving.saved_bytes / self.peak_bytes)}), because the adapters keep "
                "activations of their own"
            )
        names = {
            str(name)
            for saving in self.savings
            for name in (*saving.settings, *saving.settings.values())
        }
        yield from (label for name, label in LABELS.items() if name in names)
        if len(self.savings) > 1:
            yield "savings do not add up"
        if not self.is_exact:
            yield NEEDS_EXACT


def setting_words(settings: dict[str, Any]) -> str:
    """``parallel=fsdp2 ranks=2``."""
    return " ".join(f"{key}={value}" for key, value in settings.items())


def savings_of(spec: RunSpec, predict: Predict, play: Play | None = None) -> Savings:
    """Predict the spec with each change that it allows.

    ``play`` predicts the `VARIANTS`, which have no formula; None leaves them out.

    Raises:
        SpecError: The memory of the spec itself is not predicted.
    """
    why = unsupported_reason(spec)
    if why:
        raise SpecError("--savings", True, f"not for this spec: {why}")
    now, savings, costlier = predict(spec), list[Saving](), list[Saving]()
    unknown, refused = dict[str, str](), dict[str, str]()
    variants = () if play is None else _variants(spec)
    for change in (*_changes(spec), *variants):
        try:
            saving = _saving(now, _predicted(spec, change, predict, play), change)
        except (SpecError, WorkerFailed, ModelError) as error:
            if not any(why in str(error) for why in NOT_APPLICABLE):
                unknown[next(iter(change.settings))] = str(error)
                refused[setting_words(change.settings)] = str(error)
            continue
        if saving.saved_bytes >= MIN_SHARE * now.peak_bytes:
            savings.append(saving)
        elif change.variant.lora_rank and -saving.saved_bytes >= MIN_SHARE * now.peak_bytes:
            costlier.append(saving)
    savings.sort(key=lambda saving: -saving.saved_bytes)
    checkpoints = [saving for saving in savings if "checkpoint" in saving.settings]
    return Savings(
        peak_bytes=now.peak_bytes,
        peak_phase=now.peak_phase,
        savings=[saving for saving in savings if saving not in checkpoints[1:]],
        unknown=unknown,
        refused=refused,
        costlier=costlier,
        is_exact=play is not None,
    )


def _variants(spec: RunSpec) -> Iterator[SavingChange]:
    """The variants that the spec could have: those of an optimizer replace an AdamW."""
    for change in VARIANTS if spec.step == "train" else ():
        optimizer = change.variant.optimizer
        if spec.optimizer == "custom" and not change.variant.loss_chunks > 1:
            continue
        if optimizer and spec.optimizer == "sgd":
            continue
        if optimizer == "adamw-on-cpu" and spec.device == "cpu":
            continue
        yield change


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
    if change.variant.world.size > 1:
        price = f"{change.variant.world.size} devices, weights gathered twice"
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
