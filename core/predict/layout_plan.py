"""Find the layouts of a number of devices on which a step fits."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from sysbench.core.errors import ModelError, SpecError, WorkerFailed
from sysbench.core.formatting import counted, format_bytes, percent
from sysbench.core.predict.allocator_settings import AllocatorSettings
from sysbench.core.predict.cache_forms import block_count
from sysbench.core.predict.closed_form import Prediction, predict
from sysbench.core.predict.dry_run_client import (
    PLAIN,
    ExactPrediction,
    RankPrediction,
    SentBytes,
    TrainingVariant,
    unsupported_reason,
)
from sysbench.core.predict.fit_grid import (
    AvailableMemory,
    Verdict,
    fit_verdict,
    missing_bytes,
    spare_bytes,
)
from sysbench.core.predict.savings import Play
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import ANY, CHOICES, LOOPED, World, check_world

MAX_DEVICES = 2**16
NODE_RANKS = 8
"""Ranks of a node, within which layouts with ``hsdp`` divide."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A division of the step, with what its rank of the highest need holds.

    Of a layout that does not fit it is the first rank that was found not to. If no rank can hold
    its part of weights and activations, none is played and its values are null.

    Attributes:
        world: The text of `World.parse`.
        samples: Of all ranks, in a step.
        headroom_bytes: Memory to spare; negative if it may lack some. Of a layout that does not fit
            at most this is left.
        place: Its indices in the dimensions of the mesh.
        peak_place: Module or operator at its peak.
        sent_bytes: What this rank sends in a step.
    """

    world: str
    verdict: Verdict
    samples: int
    headroom_bytes: int
    rank: int | None = None
    place: str | None = None
    peak_bytes: int | None = None
    peak_phase: str | None = None
    peak_place: str | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    sent_bytes: int | None = None
    sent: list[SentBytes] = msgspec.field(default_factory=list)

    @property
    def name(self) -> str:
        """The world, without its micro-batches if they are as many as stages."""
        world = World.parse(self.world)
        return self.world.replace(f",microbatches={world.pp}", "") if world.pp > 1 else self.world


class LayoutPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Layouts that divide the step, by verdict and headroom, and why others do not.

    Attributes:
        refused: Reasons, with the number of layouts.
        plays: Number of ranks that were played.
        seconds: Duration of the plan.
    """

    devices: int
    capacity_bytes: int
    layouts: list[Layout]
    refused: dict[str, int]
    plays: int
    seconds: float

    def count(self, verdict: Verdict) -> int:
        return sum(layout.verdict == verdict for layout in self.layouts)

    @property
    def ruled_out(self) -> int:
        """Number of layouts that do not fit, without a play."""
        return sum(layout.rank is None for layout in self.layouts)


class Need(NamedTuple):
    """What a rank needs of the available memory; the largest is that of the fullest rank."""

    verdict: Verdict
    headroom_bytes: int
    rank: RankPrediction

    @property
    def severity(self) -> tuple[int, int]:
        return _severity(self.verdict, self.headroom_bytes)


def _severity(verdict: Verdict, headroom_bytes: int) -> tuple[int, int]:
    return ("fits", "close", "over").index(verdict), -headroom_bytes


class PlayedRanks:
    """Plays of a spec's ranks, each of those that execute the same once; for several threads."""

    def __init__(self, spec: RunSpec, play: Play) -> None:
        self.spec = spec
        self._blocks = block_count(spec)
        self._play = play
        self._known: dict[tuple[object, ...], ExactPrediction] = {}
        self._locks: dict[tuple[object, ...], Lock] = defaultdict(Lock)

    @property
    def plays(self) -> int:
        """Number of ranks that were played."""
        return len(self._known)

    def distinct(self, world: World) -> dict[int, int]:
        """The first of the ranks that execute the same, and their number."""
        firsts, counts = dict[tuple[object, ...], int](), Counter[int]()
        for rank, alike in world.kinds.items():
            counts[firsts.setdefault(self._execution(world, rank), rank)] += alike
        return dict(counts)

    def extremes(self, world: World) -> Iterator[RankPrediction]:
        """The first, last and second stage, one of which needs the most; with cp or skew all ranks.

        The stages between have no more blocks than the second, receive the same, and keep no more
        micro-batches for backward. The second is left out if the first is sure to need more.
        """
        ranks = self.distinct(world)
        firsts = [*ranks]
        seconds = [] if _needs_most_at_first(self.spec, world) else firsts[1:2]
        is_chosen = world.cp > 1 or world.skew > 1
        chosen = firsts if is_chosen else dict.fromkeys((firsts[0], firsts[-1], *seconds))
        for rank in chosen:
            yield self.played(world, rank, ranks[rank])

    def fullest(
        self,
        world: World,
        room: AvailableMemory,
        settings: AllocatorSettings,
        *,
        is_over_enough: bool = False,
    ) -> Need:
        """The largest need; with ``is_over_enough`` the first one that does not fit, if any."""
        needs = list[Need]()
        for rank in self.extremes(world):
            needs.append(need_of(rank, room, settings))
            if is_over_enough and needs[-1].verdict == "over":
                break
        return max(needs, key=lambda need: need.severity)

    def played(self, world: World, rank: int, alike: int = 1) -> RankPrediction:
        key = self._execution(world, rank)
        with self._locks[key]:
            if key not in self._known:
                self._known[key] = self._play(self.spec, TrainingVariant(world=world, rank=rank))
        return RankPrediction(
            rank=rank,
            coordinates=world.coordinates(rank),
            alike=alike,
            prediction=self._known[key],
        )

    def _execution(self, world: World, rank: int) -> tuple[object, ...]:
        """What decides the operations of a rank: blocks, ends, and forwards before a backward."""
        coordinates = world.coordinates(rank)
        stage, part, is_light = coordinates["pp"], coordinates["cp"], world.is_light(rank)
        if world.pp == 1 or world.schedule in LOOPED:
            return world, stage, part, is_light
        blocks = len([*world.stage_blocks(self._blocks)][stage])
        plain = msgspec.structs.replace(world, schedule="gpipe")
        ends = stage == 0, stage == world.pp - 1
        return plain, part, is_light, blocks, ends, _in_flight(world, stage)


def play_ranks(
    spec: RunSpec, world: World, play: Play, only: int | None = None, players: int = 1
) -> list[RankPrediction]:
    """Play the first of the ranks that execute the same, or one rank; see `plan_layouts`."""
    ranks = PlayedRanks(spec, play)
    if only is not None:
        return [ranks.played(world, only)]
    distinct = ranks.distinct(world).items()
    if players == 1:  # a process that a thread starts ends with it
        return [ranks.played(world, rank, alike) for rank, alike in distinct]
    with ThreadPoolExecutor(players) as threads:
        futures = [threads.submit(ranks.played, world, *one) for one in distinct]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def plan_layouts(
    spec: RunSpec,
    devices: int,
    given: Mapping[str, Any],
    capacity_bytes: int,
    room: AvailableMemory,
    settings: AllocatorSettings,
    play: Play,
    players: int = 1,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> LayoutPlan:
    """Play the layouts that a lower bound does not rule out.

    Args:
        given: Settings that all layouts share, of `parse_division`.
        players: Number of threads that call ``play``.
        progress: Called with the number of layouts that were judged, and of all.

    Raises:
        SpecError: The number of devices is out of range, no layout has the settings, or the step
            cannot be played.
    """
    began = time.monotonic()
    if not 2 <= devices <= MAX_DEVICES:
        raise SpecError("--plan", devices, f"2 to {MAX_DEVICES:,} devices")
    if why := unsupported_reason(spec):
        raise SpecError("--plan", devices, f"not for this spec: {why}")
    refused, worlds = Counter[str](), list[World]()
    for division in _divisions(devices, given):
        try:
            world = World(**division)
            check_world(spec, world)
        except SpecError as error:
            refused[f"{error.field}: {error.allowed}"] += 1
        else:
            worlds.append(world)
    if not worlds and not refused:
        words = ",".join(f"{key}={value}" for key, value in given.items())
        raise SpecError("--world", words, f"settings of a layout of {devices} devices")
    ranks, whole, layouts = PlayedRanks(spec, play), _of_one_device(spec, play), list[Layout]()

    def judged(world: World) -> Layout:
        least = least_bytes(spec, world, whole)
        # Where a device leaves nothing, plays still show what each layout needs.
        if least > room.most and room.least:
            return Layout(
                world=world.words,
                verdict="over",
                samples=_samples(spec, world),
                headroom_bytes=room.least - least,
            )
        return layout_of(spec, world, ranks.fullest(world, room, settings, is_over_enough=True))

    with ThreadPoolExecutor(players) as threads:
        futures = [threads.submit(judged, world) for world in worlds]
        try:
            for number, future in enumerate(futures):
                progress(number, len(worlds))
                try:
                    layouts.append(future.result())
                except (ModelError, SpecError, WorkerFailed) as error:
                    refused[str(error)] += 1
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    layouts.sort(key=lambda layout: _severity(layout.verdict, layout.headroom_bytes))
    return LayoutPlan(
        devices=devices,
        capacity_bytes=capacity_bytes,
        layouts=layouts,
        refused=dict(refused),
        plays=ranks.plays,
        seconds=time.monotonic() - began,
    )


def layout_of(spec: RunSpec, world: World, need: Need) -> Layout:
    """The layout of a world, whose rank has this need."""
    rank, prediction = need.rank, need.rank.prediction
    indices = rank.coordinates.items()
    return Layout(
        world=world.words,
        verdict=need.verdict,
        samples=_samples(spec, world),
        headroom_bytes=need.headroom_bytes,
        rank=rank.rank,
        place=" ".join(f"{name}={index}" for name, index in indices if getattr(world, name) > 1),
        peak_bytes=rank.peak_bytes,
        peak_phase=prediction.peak_phase,
        peak_place=prediction.peak_place,
        allocated_bytes=rank.allocated_bytes,
        reserved_bytes=rank.reserved_bytes,
        sent_bytes=sum(row.bytes for row in prediction.sent),
        sent=prediction.sent,
    )


def _samples(spec: RunSpec, world: World) -> int:
    return world.dp * spec.batch * spec.accumulation


def need_of(rank: RankPrediction, room: AvailableMemory, settings: AllocatorSettings) -> Need:
    """Verdict and headroom of a rank."""
    verdict = fit_verdict(rank.prediction, room, settings)
    spare = spare_bytes(rank.prediction, room)
    if verdict != "fits":
        spare = min(spare, -missing_bytes(rank.prediction, room, settings))
    return Need(verdict, spare, rank)


def _divisions(devices: int, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Settings of worlds of that size; a pipeline has the fewest micro-batches."""
    shared = {key: given[key] for key in given.keys() & {"params", "reduce", "selective", "skew"}}
    cp = given.get("cp", 1)
    if devices % cp:
        return
    for pp in divisors(devices // cp):
        for tp in divisors(devices // (cp * pp)):
            sizes = {"pp": pp, "dp": devices // (cp * pp * tp), "cp": cp, "tp": tp}
            if any(given.get(key, size) != size for key, size in sizes.items()):
                continue
            tensors = {"sequence": given["sequence"]} if tp > 1 and "sequence" in given else {}
            for samples, stages in product(_data(sizes, given), _pipelines(pp, given)):
                yield sizes | shared | tensors | samples | stages


def _data(sizes: Mapping[str, int], given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    dp, tp = sizes["dp"], sizes["tp"]
    ranks = dp * sizes["cp"] * tp
    if dp == 1:
        yield from ({"ep": ep} for ep in _experts(ranks, given))
        return
    is_whole = given.get("ep", 1) in (1, ANY)
    nodes, rest = divmod(dp * tp, NODE_RANKS)
    replicas = given.get("replicas", 1 if rest or dp % max(1, nodes) else nodes)
    for data, reshard in product(_choices("data", given, ANY), _choices("reshard", given, True)):
        if data == "fsdp2" or (data == "hsdp" and 1 < replicas < dp):
            replicated = {"replicas": replicas} if data == "hsdp" else {}
            for ep in _experts(ranks // replicated.get("replicas", 1), given):
                yield {"data": data, "reshard": reshard, "ep": ep} | replicated
        elif data == "ddp" and reshard and is_whole and (tp == 1 or given.get("data") == "ddp"):
            yield {"data": data}


def _experts(ranks: int, given: Mapping[str, Any]) -> Sequence[int]:
    return divisors(ranks) if given.get("ep") == ANY else [given.get("ep", 1)]


def _pipelines(pp: int, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if pp == 1:
        yield {}
        return
    for schedule in _choices("schedule", given, "1f1b"):
        yield {
            "schedule": schedule,
            "stages": given.get("stages", 2) if schedule in LOOPED else 1,
            "microbatches": given.get("microbatches", pp),
        }


def _choices(key: str, given: Mapping[str, Any], default: object) -> tuple[Any, ...]:
    value = given.get(key, default)
    return CHOICES[key] if value == ANY else (value,)


def divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]


def _of_one_device(spec: RunSpec, play: Play) -> Prediction:
    """The same step on one device, as far as it can be predicted."""
    if not spec.is_own:
        return predict(spec.changed(accumulation=1))
    try:
        return play(spec, PLAIN)
    except WorkerFailed:
        return Prediction()


def least_bytes(spec: RunSpec, world: World, whole: Prediction) -> int:
    """Bytes that some rank holds at least, without a play of ranks.

    These are its part of weights and optimizer states, beside that of gradients or of what
    backward needs. Of a pipeline the latter is that of the first stage's blocks.

    Args:
        whole: The step on one device.
    """
    shards = world.tp * (1 if world.data == "ddp" else world.shards)
    states = sum(row.bytes for row in whole.ledger if row.name == "optimizer state")
    at_rest = whole.parameter_bytes + states
    trained = whole.parameter_bytes if spec.step == "train" and not spec.is_own else 0
    least = (at_rest + trained) // (world.pp * shards)
    if spec.checkpoint or world.params is not None:  # recomputed, or in another dtype
        return least
    if spec.is_own and world.pp > 1:  # what a block holds is unknown
        return least
    if world.pp == 1:
        return max(least, at_rest // shards + whole.saved_activation_bytes // (world.cp * world.tp))
    weights, saved = _bytes_of_block(spec)
    in_flight = 1 if world.schedule in LOOPED else _in_flight(world, 0)
    blocks = len(next(world.stage_blocks(spec.layers)))
    kept = at_rest * weights // (whole.parameter_bytes * shards)
    return max(least, blocks * (kept + saved * in_flight // (world.microbatches * world.tp)))


def _bytes_of_block(spec: RunSpec) -> tuple[int, int]:
    """Bytes of a built-in model's block: weights, and what backward needs of a batch."""
    one, two = (predict(spec.changed(accumulation=1, layers=layers)) for layers in (1, 2))
    return (
        two.parameter_bytes - one.parameter_bytes,
        two.saved_activation_bytes - one.saved_activation_bytes,
    )


def _needs_most_at_first(spec: RunSpec, world: World) -> bool:
    """Whether the first stage surely needs no less than the second.

    The second has no more blocks. It has what it receives, and lacks the micro-batch that only the
    first keeps for backward.
    """
    if world.pp < 3 or world.schedule in LOOPED or spec.checkpoint or world.params is not None:
        return False
    if spec.is_own:  # what a block holds is unknown
        return False
    _, saved = _bytes_of_block(spec)
    blocks = len(next(world.stage_blocks(spec.layers)))
    more = saved * blocks * (_in_flight(world, 0) - _in_flight(world, 1))
    received = 4 * spec.batch * world.tokens(spec.context) * spec.dimensions.d_model
    return more // (world.microbatches * world.tp) >= received


def _in_flight(world: World, stage: int) -> int:
    """Forwards of a stage before its first backward, without several stages a rank."""
    most = world.microbatches if world.schedule == "gpipe" else world.pp - stage
    return min(world.microbatches, most)


RANK_ERROR_SHARE = 0.01
"""Largest error of a played rank's memory; docs/validation/world.md found 0.6 %, and twice as much
or more of stages."""


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
    """Share by which needs may be wrong: of stages by more fragments."""
    return RANK_ERROR_SHARE * (2 if any(one.coordinates.get("pp") for one in ranks) else 1)


def why_worst(groups: Sequence[RankGroup]) -> str:
    """Which rank needs most and why, in a sentence."""
    first, *others = groups
    worst = first.worst
    peak = worst.prediction
    of = "" if worst.reserved_bytes is None else " reserved"
    need = f"{format_bytes(worst.needed_bytes)}{of}, in {peak.peak_phase} ({peak.peak_place})"
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
    subject = f"Rank {worst.rank}" + (f", like {counted(like, 'other')}," if like else "")
    return f"{subject} needs most: {need}; {part}."
