"""Replay a recording: the owner of every allocation, and the live bytes at every instant."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.core.memory.card import Segments
from sysbench.core.memory.history import History, Integers, Lifetimes, innermost, pair
from sysbench.core.record.memory import BEFORE_RECORDING, LIBRARY_WORKSPACE, NO_OWNER, WORKSPACES
from sysbench.core.record.memory import KEPT as KEPT
from sysbench.core.record.record import LedgerRow
from sysbench.core.trace.classify import WHOLE_MODEL

MAX_OFFSET_US = 20.0
"""Microseconds above which a clock difference is reported."""

N = TypeVar("N", bound="Note")


class Offset(NamedTuple):
    """The allocator's clock minus the notes' clock at a time of the notes, off by at most
    ``error_ns``."""

    time_ns: int
    offset_ns: int
    error_ns: int


class JoinedClock(NamedTuple):
    """A history without clock probes, notes in its clock, and the offsets at both ends; fewer if
    events of probes were dropped."""

    history: History
    notes: Notes
    offsets: list[Offset]

    @property
    def offset_us(self) -> float | None:
        """The larger offset, in microseconds; None without any."""
        worst = max(self.offsets, key=lambda offset: abs(offset.offset_ns), default=None)
        return None if worst is None else worst.offset_ns / 1e3


def join_clocks(history: History, notes: Notes) -> JoinedClock:
    """Shift the notes into the clock of the history, and remove the clock probes from it.

    The offset is interpolated linearly between the ends. Without probes nothing changes.
    """
    probes = [
        (sounding, index)
        for sounding in notes.soundings
        if (index := _event_of(history, sounding)) is not None
    ]
    offsets = _ends([_offset(history, sounding, index) for sounding, index in probes])
    if not offsets:
        return JoinedClock(history, notes, [])
    shifted = msgspec.structs.replace(
        notes,
        phases=_shift(notes.phases, offsets),
        modules=_shift(notes.modules, offsets),
        tags=_shift(notes.tags, offsets),
        inputs=_shift(notes.inputs, offsets),
        released_ns=None
        if notes.released_ns is None
        else notes.released_ns + _offset_at(notes.released_ns, offsets),
    )
    return JoinedClock(_remove(history, [index for _, index in probes]), shifted, offsets)


def _event_of(history: History, sounding: Sounding) -> int | None:
    candidates = np.flatnonzero(history.change == sounding.bytes)
    if not len(candidates):
        return None
    distance = np.abs(history.time_ns[candidates] - sounding.middle_ns)
    return int(candidates[np.argmin(distance)])


def _offset(history: History, sounding: Sounding, index: int) -> Offset:
    middle_ns = sounding.middle_ns
    # The history's times are the middles of microseconds.
    error_ns = (sounding.after_ns - sounding.before_ns) // 2 + 500
    return Offset(middle_ns, int(history.time_ns[index]) - middle_ns, error_ns)


def _ends(offsets: Sequence[Offset]) -> list[Offset]:
    """The most exact offset of either end, that is of the probes before and after the middle."""
    if not offsets:
        return []
    times = [offset.time_ns for offset in offsets]
    middle_ns = (min(times) + max(times)) // 2
    sides = (
        [offset for offset in offsets if offset.time_ns <= middle_ns],
        [offset for offset in offsets if offset.time_ns > middle_ns],
    )
    return [min(side, key=lambda offset: offset.error_ns) for side in sides if side]


def _offset_at(time_ns: int, offsets: Sequence[Offset]) -> int:
    first, last = offsets[0], offsets[-1]
    between = last.time_ns - first.time_ns
    if not between:
        return first.offset_ns
    since = min(max(time_ns - first.time_ns, 0), between)
    return first.offset_ns + (last.offset_ns - first.offset_ns) * since // between


def _shift(notes: Sequence[N], offsets: Sequence[Offset]) -> list[N]:
    return [
        msgspec.structs.replace(note, time_ns=note.time_ns + _offset_at(note.time_ns, offsets))
        for note in notes
    ]


def _remove(history: History, births: Sequence[int]) -> History:
    gone = list(births)
    for birth in births:
        later = np.flatnonzero(history.address[birth + 1 :] == history.address[birth])
        gone += [birth + 1 + int(later[0])] if len(later) else []
    remains = np.ones(len(history), dtype=np.bool_)
    remains[gone] = False
    columns: dict[str, Any] = {
        field.name: column[remains]
        for field in fields(history)
        if isinstance(column := getattr(history, field.name), np.ndarray) and len(column)
    }
    return replace(history, **columns)


Owner = Literal[
    "parameters",
    "buffers",
    "other weights",
    "kv cache",
    "inputs",
    "optimizer state",
    "gradients",
    "gathered parameters",
    "communication buffers",
    "autocast weight copies",
    "activations",
    "outputs",
]
"""The owner of a storage. If an allocation has several, the first in this order counts.

``other weights`` are those of modules that a step of one's own has apart from its model.
"""


class Note(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A fact at a time, in nanoseconds since the Unix epoch."""

    time_ns: int


class PhaseMark(Note, frozen=True):
    """A phase began; ``""`` means that the step ended. Building the model is step -1."""

    step: int
    phase: str


class ModuleMark(Note, frozen=True):
    module: str


class InputMark(Note, frozen=True):
    """The model was called with tensors of these dtypes and shapes."""

    step: int
    shapes: str

    def is_like(self, other: InputMark) -> bool:
        return (self.step, self.shapes) == (other.step, other.shapes)


class Tag(Note, frozen=True):
    """The storage at this address belonged to this owner and module at this time."""

    address: int
    owner: Owner
    module: str


class Sounding(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A clock probe: an odd-sized allocation between two clock readings, freed at once."""

    before_ns: int
    after_ns: int
    bytes: int

    @property
    def middle_ns(self) -> int:
        return (self.before_ns + self.after_ns) // 2


class Notes(msgspec.Struct, frozen=True):
    """All notes of a pass, each list in order of time.

    The libraries freed their workspaces at ``released_ns``, after the last step; ``workspaces`` are
    addresses that they freed on request after memory had run out. ``soundings`` are clock probes.
    """

    phases: list[PhaseMark] = []
    modules: list[ModuleMark] = []
    tags: list[Tag] = []
    inputs: list[InputMark] = []
    released_ns: int | None = None
    workspaces: list[int] = []
    soundings: list[Sounding] = []

    @property
    def steps(self) -> list[int]:
        """The recorded steps, without building."""
        return sorted({mark.step for mark in self.phases if mark.step >= 0})

    def step_span(self, step: int) -> tuple[int, int]:
        times = [mark.time_ns for mark in self.phases if mark.step == step]
        return times[0], times[-1]

    def forward_end_ns(self, step: int) -> int | None:
        """End of a step's forward, its output alive; None if no mark shows it."""
        marks = [mark for mark in self.phases if mark.step == step]
        for mark, after in pairwise(marks):
            if mark.phase == "forward" and after.phase:
                return after.time_ns
            if mark.phase == "forward":  # the step ends with its output dropped
                times = [tag.time_ns for tag in self.tags if tag.owner == "outputs"]
                within = [ns for ns in times if mark.time_ns <= ns <= after.time_ns]
                return max(within, default=None)
        return None

    def phase_at(self, time_ns: int) -> str:
        """The phase at that time; ``""`` outside all phases."""
        position = bisect_right(self.phases, time_ns, key=lambda mark: mark.time_ns)
        return self.phases[position - 1].phase if position else ""


OWNERS: tuple[Owner, ...] = get_args(Owner)
CACHE: Owner = "kv cache"
BUILD = -1
"""Number of the step that builds the model."""
UNKNOWN = NO_OWNER

CLOCK_SLACK_NS = 100_000
"""Largest difference between the allocator's time and a tag's; both read the host's clock."""

COLLECTIVE = "c10d::"
"""Begin of the names of torch's collectives, within which gloo copies what it sends and gets."""

ALWAYS, NEVER = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


class Attribution(NamedTuple):
    """Owner, phase and module of each allocation, in the order of `Lifetimes`; ``""`` if unknown.

    A category is an `Owner`, ``temporaries (<phase>)``, or one of LIBRARY_WORKSPACE, WORKSPACES,
    KEPT, BEFORE_RECORDING, UNKNOWN. The phase is that of its birth, the module owns it or computed
    then.
    """

    category: list[str]
    phase: list[str]
    module: list[str]


def _annotated_phases(history: History, lifetimes: Lifetimes) -> list[str]:
    """Innermost range of the file at each birth; ``""`` before the first event."""
    if not history.ranges:
        return [""] * len(lifetimes)
    names = ["", *innermost(history.ranges, history.time_ns)]
    return [names[instant] for instant in lifetimes.born.tolist()]


def attribute(history: History, lifetimes: Lifetimes, notes: Notes) -> Attribution:
    """Assign an owner to each allocation from the worker's notes.

    A tag counts when its time lies within the allocation's life. An allocation without a tag is a
    temporary of the phase of its birth, unless it outlives its step. It is then a library's
    workspace if it died when the libraries freed theirs, else kept between steps. Blocks in
    ``notes.workspaces`` are always workspaces. An allocation that lived within one matrix product
    belongs to the library, whatever tag its address has.
    """
    is_workspace = _library_workspace(history, lifetimes)
    if not (notes.phases or notes.modules or notes.tags or notes.workspaces):
        # An imported file can be large: no loop over its allocations.
        names = (UNKNOWN, BEFORE_RECORDING, LIBRARY_WORKSPACE)
        # Without a single event nothing is older than the recording: there is none.
        came_before = (lifetimes.born == 0) & (len(history) > 0)
        which = np.where(is_workspace, 2, came_before).tolist()
        return Attribution(
            [names[number] for number in which],
            _annotated_phases(history, lifetimes),
            [""] * len(lifetimes),
        )
    # By instant: instant i begins with event i - 1. Before the first event it is always, and
    # what no event frees dies NEVER.
    times = np.concatenate([[ALWAYS], history.time_ns, [NEVER]])
    births, deaths = times[lifetimes.born].tolist(), times[lifetimes.died].tolist()
    tags = _tags_by_allocation(lifetimes, births, deaths, notes.tags)
    phase_at = _latest(notes.phases, births)
    module_at = _latest(notes.modules, births)
    last_ns = {mark.step: mark.time_ns for mark in notes.phases}  # a step's last mark ends it
    released_ns = NEVER if notes.released_ns is None else notes.released_ns - CLOCK_SLACK_NS
    freed_later = np.isin(lifetimes.address, notes.workspaces).tolist()

    innermost_of = [stack[0].name if stack else "" for stack in history.stacks]
    by_collective = {
        index
        for index, stack in enumerate(lifetimes.stack.tolist())
        if stack >= 0 and innermost_of[stack].startswith(COLLECTIVE)
    }
    began_ns = {mark.step: mark.time_ns for mark in reversed(notes.phases)}
    tagged_in = dict(
        zip(tags, _latest(notes.phases, [tag.time_ns for tag in tags.values()]), strict=True)
    )

    def is_older(index: int) -> bool:
        """Whether the allocation was there before the step whose graph saved it."""
        step = notes.phases[tagged_in[index]].step if tagged_in[index] >= 0 else BUILD
        return step > BUILD and births[index] + CLOCK_SLACK_NS < began_ns[step]

    def category_of(index: int) -> str:
        mark = notes.phases[phase_at[index]] if phase_at[index] >= 0 else None
        if is_workspace[index]:
            return LIBRARY_WORKSPACE
        if index in tags and not (tags[index].owner == "activations" and is_older(index)):
            return tags[index].owner
        if freed_later[index] and deaths[index] == NEVER:
            return WORKSPACES
        if births[index] == ALWAYS:
            return BEFORE_RECORDING
        if mark is None:
            return UNKNOWN
        if index in tags and mark.step == BUILD:
            return "inputs"
        if index in by_collective:
            return "communication buffers"
        if deaths[index] > last_ns[mark.step]:
            return WORKSPACES if released_ns <= deaths[index] < NEVER else KEPT
        return f"temporaries ({mark.phase})"

    def module_of(index: int) -> str:
        if index in tags:
            return tags[index].module
        mark = module_at[index]
        if mark >= 0:
            return notes.modules[mark].module
        return WHOLE_MODEL if notes.phases else ""

    everything = range(len(lifetimes))
    return Attribution(
        category=[category_of(index) for index in everything],
        phase=[notes.phases[mark].phase if mark >= 0 else "" for mark in phase_at],
        module=[module_of(index) for index in everything],
    )


def _library_workspace(history: History, lifetimes: Lifetimes) -> NDArray[np.bool_]:
    """Mask of the allocations that one matrix product took and freed before it returned.

    Libraries pack operands or accumulate in them, depending on the CPU's instructions. They are not
    tensors of the step: a product's result outlives the product.
    """
    if not len(history.product):
        return np.zeros(len(lifetimes), dtype=np.bool_)
    # By instant, as above: outside of the recording no product is under way.
    product = np.concatenate([[-1], history.product, [-1]])
    born, died = product[lifetimes.born], product[lifetimes.died]
    is_within_one: NDArray[np.bool_] = (born >= 0) & (born == died)
    return is_within_one


def _tags_by_allocation(
    lifetimes: Lifetimes, births: list[int], deaths: list[int], tags: Sequence[Tag]
) -> dict[int, Tag]:
    at_address: defaultdict[int, list[int]] = defaultdict(list)
    for index, address in enumerate(lifetimes.address.tolist()):
        at_address[address].append(index)
    chosen: dict[int, Tag] = {}
    for tag in tags:
        candidates = at_address.get(tag.address, [])
        # Allocations of one address are in order of birth: the tag belongs to the last born
        # before it, or by clock slack to the first born after it.
        born_before = bisect_right(candidates, tag.time_ns, key=births.__getitem__)

        def gap(index: int, time_ns: int = tag.time_ns) -> int:
            return max(births[index] - time_ns, time_ns - deaths[index], 0)

        near = min(candidates[max(0, born_before - 1) : born_before + 1], key=gap, default=None)
        if near is None or gap(near) > CLOCK_SLACK_NS:
            continue
        if near not in chosen or OWNERS.index(tag.owner) < OWNERS.index(chosen[near].owner):
            chosen[near] = tag
    return chosen


def _latest(notes: Sequence[Note], times: list[int]) -> list[int]:
    noted_ns = np.array([note.time_ns for note in notes], dtype=np.int64)
    positions: list[int] = (np.searchsorted(noted_ns, times, side="right") - 1).tolist()
    return positions


HELD_BY_GRAPHS = "held by CUDA graphs"
"""Category of memory reserved for CUDA graphs and not handed out: replays use it without events."""
UNSPLIT = "blocks larger than asked for"
"""Row of the bytes by which blocks exceed their rounded requests, because the allocator does not
split off small remainders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationHistory(Lifetimes):
    """Live memory at each instant, by category; see `Attribution` for those of each allocation.

    ``live`` are bytes in blocks, including what CUDA graphs hold. ``categories`` are bytes as
    requested, plus rows for rounding and for unsplit blocks, and sum to ``live``.
    """

    history: History
    notes: Notes
    category: list[str]
    phase: list[str]
    module: list[str]
    live: Integers
    categories: dict[str, Integers]

    @property
    def without_library(self) -> Integers:
        """Live bytes at each instant without library workspace, which predictions do not cover."""
        workspace = self.categories.get(LIBRARY_WORKSPACE)
        return self.live if workspace is None else self.live - workspace

    @property
    def shown_blocks(self) -> Integers | None:
        """Block sizes as tables show them: those in the file, else rounded requests; None if the
        allocator does not round."""
        if self.history.end_blocks:
            return self.blocks
        return self.rounded if self.history.granule > 1 else None

    def rows_at(self, instant: int) -> list[LedgerRow]:
        """The ledger: one row per category, summing to ``live``."""
        return [LedgerRow(name, int(curve[instant])) for name, curve in self.categories.items()]

    def requested_at(self, instant: int) -> int:
        return int(self.bytes[self.alive_at(instant)].sum())

    def held_by_graphs(self, instant: int) -> int:
        """Bytes held by CUDA graphs, which the allocator's own counters omit."""
        curve = self.categories.get(HELD_BY_GRAPHS)
        return 0 if curve is None else int(curve[instant])

    def peak(self, first: int, last: int) -> int:
        """The first instant with the most live bytes from ``first`` to ``last``, inclusive."""
        return first + int(np.argmax(self.live[first : last + 1]))

    def span(self, step: int | None) -> tuple[int, int]:
        """First and last instant of a step, inclusive; of the whole history for None."""
        if step is None:
            return 0, len(self.history)
        began_ns, ended_ns = self.notes.step_span(step)
        return self.history.instant(began_ns), self.history.instant(ended_ns)

    def phase_at(self, instant: int, step: int | None) -> str:
        """The phase of an instant within a step; ``""`` without phase marks."""
        if step is None:
            return ""
        return self.notes.phase_at(max(self.time_ns(instant), self.notes.step_span(step)[0]))

    def time_ns(self, instant: int) -> int:
        """Start of an instant; instant 0 starts with the recording."""
        if instant > 0:
            return int(self.history.time_ns[instant - 1])
        return _start_ns(self.history, self.notes)

    def since_start_ms(self, time_ns: int) -> float:
        return (time_ns - self.time_ns(0)) / 1e6

    def time_ms(self, instant: int) -> float:
        return self.since_start_ms(self.time_ns(instant))


def replay_allocations(
    history: History, notes: Notes, segments: Segments | None = None
) -> AllocationHistory:
    """Replay a history from its first event to its last.

    CUDA graph replays emit no events, so the unused reserve of their private pools in ``segments``
    becomes a category. Otherwise a step that only replays graphs would seem to need no memory.
    """
    lifetimes = pair(history)
    attribution = attribute(history, lifetimes, notes)
    names = _in_order(set(attribution.category))
    number_of = {name: number for number, name in enumerate(names)}
    numbers = np.array([number_of[name] for name in attribution.category], dtype=np.int64)
    categories = {
        name: lifetimes.curve(np.where(numbers == number, lifetimes.bytes, 0))
        for name, number in number_of.items()
    }
    live = lifetimes.curve(lifetimes.blocks)
    if segments is not None:
        is_private = segments.is_private(lifetimes.address)
        handed_out = lifetimes.curve(np.where(is_private, lifetimes.blocks, 0))
        times_ns = np.append(_start_ns(history, notes), history.time_ns)
        held = np.maximum(segments.private_bytes(times_ns) - handed_out, 0)
        if held.any():
            categories[HELD_BY_GRAPHS] = held
            live = live + held
    if history.granule > 1:
        rounding = lifetimes.curve(lifetimes.rounded - lifetimes.bytes)
        categories[f"rounding to {history.granule}-byte blocks"] = rounding
    if len(history.block) or (lifetimes.blocks > lifetimes.rounded).any():
        categories[UNSPLIT] = lifetimes.curve(lifetimes.blocks - lifetimes.rounded)
    return AllocationHistory(
        **{field.name: getattr(lifetimes, field.name) for field in fields(lifetimes)},
        **attribution._asdict(),
        history=history,
        notes=notes,
        live=live,
        categories=categories,
    )


def _start_ns(history: History, notes: Notes) -> int:
    """Start of the recording; 0 if unknown."""
    if notes.phases:
        return notes.phases[0].time_ns
    return int(history.time_ns[0]) if len(history) else 0


def _in_order(categories: Iterable[str]) -> list[str]:
    order = [*OWNERS, "temporaries", LIBRARY_WORKSPACE, WORKSPACES, KEPT, BEFORE_RECORDING, UNKNOWN]

    def rank(name: str) -> tuple[int, str]:
        return order.index(name.split(" (")[0]), name

    return sorted(categories, key=rank)
