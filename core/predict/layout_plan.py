"""Find the layouts of a number of devices on which a step fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from sysbench.core.errors import ModelError, SpecError, WorkerFailed
from sysbench.core.formatting import format_bytes, percent
from sysbench.core.predict.allocator_settings import AllocatorSettings
from sysbench.core.predict.dry_run_client import RankPrediction, SentBytes, TrainingVariant
from sysbench.core.predict.fit_grid import (
    FRAGMENTS_SHARE,
    AvailableMemory,
    Verdict,
    fit_verdict,
    missing_bytes,
    spare_bytes,
)
from sysbench.core.predict.savings import Play
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World

MAX_DEVICES = 2**16


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A division of the step, with what its rank of the highest need holds.

    Attributes:
        world: The text of `World.parse`.
        samples: Of all ranks, in a step.
        headroom_bytes: Memory to spare; negative if it may lack some.
        sent_bytes: What this rank sends in a step.
    """

    world: str
    verdict: Verdict
    samples: int
    rank: int
    peak_bytes: int
    peak_phase: str
    allocated_bytes: int | None
    reserved_bytes: int | None
    headroom_bytes: int
    sent_bytes: int
    sent: list[SentBytes]

    @property
    def name(self) -> str:
        """The world without its micro-batches, which are as many as stages."""
        return self.world.partition(",microbatches=")[0]


class LayoutPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Layouts that were played, by headroom, and why others were not.

    Attributes:
        refused: Reasons, with the number of layouts.
    """

    devices: int
    capacity_bytes: int
    layouts: list[Layout]
    refused: dict[str, int]

    def count(self, verdict: Verdict) -> int:
        return sum(layout.verdict == verdict for layout in self.layouts)


def plan_layouts(
    spec: RunSpec,
    devices: int,
    capacity_bytes: int,
    room: AvailableMemory,
    settings: AllocatorSettings,
    play: Play,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> LayoutPlan:
    """Play the first rank of each stage of each layout.

    Args:
        progress: Called with the number of layouts that were played, and of all.

    Raises:
        SpecError: The number of devices is out of range.
    """
    if not 2 <= devices <= MAX_DEVICES:
        raise SpecError("--plan", devices, f"2 to {MAX_DEVICES:,} devices")
    refused: Counter[str] = Counter()
    worlds = []
    for division in _divisions(devices):
        try:
            world = msgspec.convert(division, World)
            check_world(spec, world)
        except (SpecError, msgspec.ValidationError) as error:
            refused[_reason(error)] += 1
        else:
            worlds.append(world)
    layouts = []
    for number, world in enumerate(worlds):
        progress(number, len(worlds))
        try:
            layouts.append(_played(spec, world, room, settings, play))
        except (ModelError, SpecError, WorkerFailed) as error:
            refused[str(error)] += 1
    layouts.sort(key=lambda layout: -layout.headroom_bytes)
    return LayoutPlan(
        devices=devices, capacity_bytes=capacity_bytes, layouts=layouts, refused=dict(refused)
    )


def _divisions(devices: int) -> Iterator[Mapping[str, int | str]]:
    """Settings of the worlds of that size; a pipeline has the fewest micro-batches."""
    for pp in _divisors(devices):
        for tp in _divisors(devices // pp):
            sizes = {"pp": pp, "dp": devices // (pp * tp), "tp": tp}
            yield sizes | {"microbatches": pp}
            if tp == 1 and sizes["dp"] > 1:
                yield sizes | {"microbatches": pp, "data": "ddp"}


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]


def _reason(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, msgspec.ValidationError) else error
    return f"{cause.field}: {cause.allowed}" if isinstance(cause, SpecError) else str(error)


def check_world(spec: RunSpec, world: World) -> None:
    """Raise SpecError for a world that does not divide the step, as far as the spec shows it."""
    if not spec.is_own:
        world.check(spec.dimensions, spec.batch, spec.context)
    elif world.pp * world.cp > 1:
        name = "pp" if world.pp > 1 else "cp"
        allowed = "1 with this model: only built-in ones are cut"
        raise SpecError(f"world.{name}", getattr(world, name), allowed)
    if world.cp > 1 and spec.attention != "sdpa":
        allowed = f"1 with attention={spec.attention}: torch has a ring of attention=sdpa only"
        raise SpecError("world.cp", world.cp, allowed)
    if world.cp > 1 and world.selective:
        raise SpecError("world.selective", world.selective, "left out with cp")
    if spec.has_cache and world.tp * world.pp * world.cp > 1:
        allowed = "train or inference, with tp or pp: a cache is not divided over ranks"
        raise SpecError("step", spec.step, allowed)
    if world.selective and not spec.checkpoint:
        allowed = "left out, without checkpoint=N: no block is recomputed"
        raise SpecError("world.selective", world.selective, allowed)


def play_ranks(
    spec: RunSpec, world: World, play: Play, only: int | None = None
) -> list[RankPrediction]:
    """Play the first rank of each stage, or one rank."""
    return [
        RankPrediction(
            rank=rank,
            coordinates=world.coordinates(rank),
            alike=alike,
            prediction=play(spec, TrainingVariant(world=world, rank=rank)),
        )
        for rank, alike in ({only: 1} if only is not None else world.kinds).items()
    ]


def _played(
    spec: RunSpec,
    world: World,
    room: AvailableMemory,
    settings: AllocatorSettings,
    play: Play,
) -> Layout:
    ranks = play_ranks(spec, world, play)
    worst = min(ranks, key=lambda one: spare_bytes(one.prediction, room))
    verdict, prediction = fit_verdict(worst.prediction, room, settings), worst.prediction
    spare = spare_bytes(prediction, room)
    if verdict != "fits":
        spare = min(spare, -missing_bytes(prediction, room, settings))
    return Layout(
        world=world.words,
        verdict=verdict,
        samples=world.dp * spec.batch * spec.accumulation,
        rank=worst.rank,
        peak_bytes=worst.peak_bytes,
        peak_phase=prediction.peak_phase,
        allocated_bytes=worst.allocated_bytes,
        reserved_bytes=worst.reserved_bytes,
        headroom_bytes=spare,
        sent_bytes=sum(row.bytes for row in prediction.sent),
        sent=prediction.sent,
    )


RANK_ERROR_SHARE = 0.01
"""Largest error of a played rank's memory; docs/validation/world.md found 0.6 %."""


class RankGroup(NamedTuple):
    """Ranks whose needs differ by less than the prediction may be wrong, in order."""

    ranks: tuple[RankPrediction, ...]

    @property
    def worst(self) -> RankPrediction:
        return max(self.ranks, key=lambda one: one.needed_bytes)

    @property
    def size(self) -> int:
        return sum(one.alike for one in self.ranks)


def group_ranks(ranks: Sequence[RankPrediction]) -> list[RankGroup]:
    """Group the ranks whose difference is not certain, the group that needs most first."""
    left, groups = [*ranks], list[RankGroup]()
    while left:
        least = (1 - error_share(left)) * max(one.needed_bytes for one in left)
        groups.append(RankGroup(tuple(one for one in left if one.needed_bytes >= least)))
        left = [one for one in left if one.needed_bytes < least]
    return groups


def error_share(ranks: Sequence[RankPrediction]) -> float:
    """Share by which needs may be wrong, more where the allocator is not modelled."""
    is_modelled = all(
        one.reserved_bytes is not None or one.prediction.block_ledger is None for one in ranks
    )
    return RANK_ERROR_SHARE if is_modelled else FRAGMENTS_SHARE


def why_worst(groups: Sequence[RankGroup]) -> str:
    """Which rank needs most and why, in a sentence."""
    first, *others = groups
    worst = first.worst
    peak = worst.prediction
    need = f"{format_bytes(worst.needed_bytes)}, in {peak.peak_phase} ({peak.peak_place})"
    largest = max(peak.ledger, key=lambda row: row.bytes)
    part = f"{format_bytes(largest.bytes)} of it {largest.name}"
    if not others:
        within = f" within {percent(error_share(first.ranks), 0)}" if len(first.ranks) > 1 else ""
        return f"All {first.size:,} ranks need the same{within}: {need}; {part}."
    least = others[-1].worst
    there = {row.name: row.bytes for row in least.prediction.ledger}
    more = {row.name: row.bytes - there.get(row.name, 0) for row in peak.ledger}
    name = max(more, key=lambda row: more[row])
    if more[name] > 0:
        part = f"{format_bytes(more[name])} more {name} than rank {least.rank}"
    like = first.size - 1
    subject = f"Rank {worst.rank}" + (f" and {like:,} like it need" if like else " needs")
    return f"{subject} most: {need}; {part}."
