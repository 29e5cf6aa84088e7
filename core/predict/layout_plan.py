"""Find the layouts of a number of devices on which a step fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import msgspec

from sysbench.core.errors import ModelError, SpecError, WorkerFailed
from sysbench.core.predict.allocator_settings import AllocatorSettings
from sysbench.core.predict.dry_run_client import RankPrediction, SentBytes, TrainingVariant
from sysbench.core.predict.fit_grid import (
    AvailableMemory,
    Verdict,
    fit_verdict,
    missing_bytes,
    spare_bytes,
)
from sysbench.core.predict.savings import Play
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import DIVISIONS, World

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
            sizes = dict(zip(DIVISIONS, (pp, devices // (pp * tp), tp), strict=True))
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
    elif world.pp > 1:
        raise SpecError("world.pp", world.pp, "1 with this model: only built-in ones are cut")
    if spec.precision_row.float8:
        allowed = f"{spec.precision_row.autocast_only}: float8 layers are not divided over ranks"
        raise SpecError("precision", spec.precision, allowed)
    if spec.has_cache and world.tp * world.pp > 1:
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
