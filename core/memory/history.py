"""Events of an allocator, the allocations that follow from them, and annotated ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Frame(NamedTuple):
    """One level of a stack: Python code, or an operator with ``line`` 0 and no file."""

    file: str
    line: int
    name: str


def is_python(file: str) -> bool:
    """True for Python files and for code without a file, such as ``<string>``."""
    return file.endswith(".py") or file.startswith("<")


Stack = tuple[Frame, ...]
"""Innermost frame first."""

MAX_FRAMES = 100
MAX_FRAMES_READ = 2000
"""Frames of one stack that are searched for Python: with torch's default ``stacks="all"`` many C++
frames come first."""
MAX_ALIKE = 64
"""Maximum number of stacks compared per key; a hostile file can have a million."""


class AnnotationRange(NamedTuple):
    """A named range of time, both ends included, in nanoseconds since the Unix epoch."""

    begin_ns: int
    end_ns: int
    name: str


class RawFrame(msgspec.Struct, gc=False):
    filename: str = ""
    line: int = 0
    name: str = ""


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """An allocator's own counters, in bytes; ``end_in_use`` has blocks that await their free."""

    peak_allocated: int | None = None
    peak_reserved: int | None = None
    end_allocated: int | None = None
    end_in_use: int | None = None


def encodable(text: str) -> str:
    """Escape lone surrogates, which a pickle can contain and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class Stacks:
    """Numbers distinct stacks. Snapshots share frames, so comparing equal stacks is fast."""

    def __init__(self) -> None:
        self.distinct: list[Stack] = []
        self._numbers: dict[Stack, int] = {}
        self._alike: defaultdict[int, list[tuple[list[Any], int]]] = defaultdict(list)

    def number(self, frames: Any) -> int:
        if not frames:
            return -1
        # An integer key is faster than a tuple; stacks may share a key.
        key = id(frames[0]) ^ id(frames[len(frames) // 2]) ^ id(frames[-1])
        alike = self._alike[key]
        for stored, number in alike:
            if stored == frames:
                return number
        number = self._new(frames[:MAX_FRAMES_READ])
        if len(alike) < MAX_ALIKE:
            alike.append((frames, number))
        return number

    def _new(self, frames: list[Any]) -> int:
        typed = msgspec.convert(frames, list[RawFrame])
        python = [frame for frame in typed if is_python(frame.filename)]
        stack = tuple(
            Frame(encodable(frame.filename), frame.line, encodable(frame.name))
            for frame in (python or typed)[:MAX_FRAMES]
        )
        number = self._numbers.setdefault(stack, len(self.distinct))
        if number == len(self.distinct):
            self.distinct.append(stack)
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The events of one device's allocator, in order; arrays have one element an event.

    Attributes:
        time_ns: Nanoseconds since the Unix epoch, never falling.
        address: Start of the block.
        change: Requested bytes: positive when taken, negative when given back.
        stack: Index into ``stacks``, -1 if unknown.
        survivors: (address, requested bytes) of blocks in use when the recording ended.
        product: Number of the matrix product in progress, -1 outside; empty if operators were not
            recorded.
        block: Bytes of the block handed out, which can exceed the rounded request, 0 for returns;
            empty if unknown.
        survivor_stacks: Address of a survivor to the index of its stack, -1 if unknown.
        end_blocks: Address to block bytes of blocks in use at the end, if the file has them.
        granule: Bytes that the allocator rounds every request up to; 1 if it does not.
        labels: Texts that the user attached to allocations.
        label: Index into ``labels``, -1 for none; empty if nothing was attached.
        survivor_labels: Address of a survivor to its index in ``labels``, -1 for none.
        ranges: Named ranges of time that the file has, as of ``record_function``.
    """

    time_ns: Integers
    address: Integers
    change: Integers
    stack: Integers
    stacks: Sequence[Stack]
    survivors: Sequence[tuple[int, int]] = ()
    product: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    block: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    survivor_stacks: Mapping[int, int] = field(default_factory=dict)
    end_blocks: Mapping[int, int] = field(default_factory=dict)
    granule: int = 1
    labels: Sequence[str] = ()
    label: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    survivor_labels: Mapping[int, int] = field(default_factory=dict)
    ranges: Sequence[AnnotationRange] = ()

    def __len__(self) -> int:
        return len(self.change)

    def instant(self, time_ns: int) -> int:
        """Number of events at or before that time: 0 is before the first event."""
        return int(np.searchsorted(self.time_ns, time_ns, side="right"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Every allocation of a history, oldest first; arrays have one element an allocation.

    An allocation lives from one instant to another: 0 is before the first event, i is just after
    the i-th. ``died`` is ``instants`` if no event freed it, stack and label are -1 if unknown.
    ``bytes`` are as requested, ``rounded`` up to the granule, ``blocks`` as handed out, if known.
    """

    address: Integers
    bytes: Integers
    rounded: Integers
    blocks: Integers
    born: Integers
    died: Integers
    stack: Integers
    label: Integers
    instants: int

    def __len__(self) -> int:
        return len(self.address)

    def alive_at(self, instant: int) -> Integers:
        return np.flatnonzero((self.born <= instant) & (instant < self.died))

    def curve(self, weights: Integers) -> Integers:
        """Sum of the weights of live allocations, one element an instant."""
        # int64: the weights are bytes, and their sum exceeds 2**31. One element more than the
        # result takes the deaths of allocations that nothing freed.
        change = np.zeros(self.instants + 1, dtype=np.int64)
        # ``add.at`` and not ``+=``: several allocations can share an instant.
        np.add.at(change, self.born, weights)
        np.subtract.at(change, self.died, weights)
        return np.cumsum(change)[:-1]


def pair(history: History) -> Lifetimes:
    """Pair each event that takes memory with the one that gives it back.

    Exact even if the ring buffer dropped the beginning: an address freed without having been taken,
    and a survivor that no event mentions, was alive before the first event.
    """
    instants = len(history) + 1
    # A stable sort keeps the events of one address in order of time, so that adjacent events pair.
    order = np.argsort(history.address, kind="stable")
    addresses = history.address[order]
    taken = history.change[order] > 0
    follows = np.zeros(len(history), dtype=np.bool_)  # same address as the event before it
    follows[1:] = np.diff(addresses) == 0
    after_taken = np.zeros(len(history), dtype=np.bool_)  # the event before took memory
    after_taken[1:] = taken[:-1]

    # By event: the instant of the next event at its address, ``instants`` if none follows.
    ends = np.full(len(history), instants, dtype=np.int64)
    ends[order[:-1]] = np.where(follows[1:], order[1:] + 1, instants)
    births = np.flatnonzero(history.change > 0)
    # Frees whose predecessor at the address is no allocation: it was before the recording.
    orphans = order[~taken & ~(follows & after_taken)]
    survivors = np.array(history.survivors, dtype=np.int64).reshape(-1, 2)
    # Only survivors that no event mentions: the others are counted by their own event.
    place = np.searchsorted(addresses, survivors[:, 0])
    # The appended -1 is for survivors beyond the largest address.
    untouched = survivors[np.append(addresses, -1)[place] != survivors[:, 0]]
    before = untouched[:, 0].tolist()
    stacks = [history.survivor_stacks.get(address, -1) for address in before]
    labels = [history.survivor_labels.get(address, -1) for address in before]
    none = np.full(len(orphans), -1)
    at_birth = history.label[births] if len(history.label) else np.full(len(births), -1)

    size = _join(-history.change[orphans], untouched[:, 1], history.change[births])
    born = _join(np.zeros(len(orphans) + len(untouched)), births + 1)
    died = _join(orphans + 1, np.full(len(untouched), instants), ends[births])
    address = _join(history.address[orphans], untouched[:, 0], history.address[births])
    rounded = -(-size // history.granule) * history.granule  # rounds up in integers
    return Lifetimes(
        address=address,
        bytes=size,
        rounded=rounded,
        blocks=_blocks(history, address, rounded, born, died),
        born=born,
        died=died,
        stack=_join(none, stacks, history.stack[births]),
        label=_join(none, labels, at_birth),
        instants=instants,
    )


def _blocks(
    history: History, address: Integers, rounded: Integers, born: Integers, died: Integers
) -> Integers:
    blocks = rounded
    if len(history.block):
        # Events have the block that they handed out; births before the first event have none.
        blocks = np.maximum(blocks, np.append(0, history.block)[born])
    if history.end_blocks:
        at_end = np.flatnonzero(died > len(history))
        sizes = [history.end_blocks.get(start, 0) for start in address[at_end].tolist()]
        blocks = blocks.copy()
        blocks[at_end] = np.maximum(blocks[at_end], sizes)
    return blocks


def _join(*parts: NDArray[Any] | list[int]) -> Integers:
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class OomEvent:
    """A request for which the allocator had no memory, at Unix nanoseconds; ``op`` as recorded."""

    time_ns: int
    bytes: int
    stack: Stack = ()
    op: str | None = None


START, END = "START", "END"
ALWAYS_NS, NEVER_NS = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


ANNOTATIONS = "external_annotations"
RING_EVENTS, OVERFLOWED = "trace_alloc_max_entries", "trace_alloc_overflowed"
MAX_MARKS = 1_000_000
MAX_RING = 2**40
MAX_LABEL = 200
"""Characters of a text that are kept."""


class AnnotationMark(msgspec.Struct, gc=False):
    """Begin (``START``) or end (``END``) of a range."""

    name: str
    stage: str
    device: int | None = None
    time_us: Annotated[int, msgspec.Meta(ge=0, le=2**52)] = 0


def read_annotations(content: Mapping[str, Any]) -> list[AnnotationMark] | None:
    """Marks of all devices in the order of the file; None if they cannot be read."""
    marks = content.get(ANNOTATIONS) or []
    try:
        return msgspec.convert(marks, list[AnnotationMark]) if len(marks) <= MAX_MARKS else None
    except (TypeError, msgspec.ValidationError):
        return None  # the allocations remain valid; the memory block has the reason


def read_ring(content: Mapping[str, Any]) -> tuple[int | None, bool | None]:
    """Events that the ring holds, and whether it overflowed; None for what is not in the file.

    torch has both in ``allocator_settings``; lists have one value a device.
    """
    settings = content.get("allocator_settings")
    places = [settings, content] if isinstance(settings, dict) else [content]

    def first(key: str) -> object:
        value = next((place[key] for place in places if key in place), None)
        if isinstance(value, list | tuple):
            return max((each for each in value if isinstance(each, int)), default=None)
        return value

    length, is_overflowed = first(RING_EVENTS), first(OVERFLOWED)
    return (
        length if isinstance(length, int) and 0 < length <= MAX_RING else None,
        None if is_overflowed is None else bool(is_overflowed),
    )


class Labels:
    """Numbers distinct texts that the user attached to allocations."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, metadata: Any) -> int:
        """Return the number of a text or a mapping; -1 for none."""
        if isinstance(metadata, dict):
            metadata = ", ".join(f"{key}: {value}" for key, value in metadata.items())
        if not metadata or not isinstance(metadata, str):
            return -1
        return self.numbers.setdefault(encodable(metadata[:MAX_LABEL]), len(self.numbers))


def annotation_ranges(marks: Iterable[AnnotationMark], device: int) -> list[AnnotationRange]:
    """Pair the marks of a device, or all if it has none, into ranges in order of their begin.

    A range without its end is open until the recording ends, one without its begin from before it.
    """
    marks = list(marks)
    own = [mark for mark in marks if mark.device == device] or marks
    opened: defaultdict[str, list[int]] = defaultdict(list)
    ranges = []
    for mark in own:
        if mark.stage == START:
            opened[encodable(mark.name)].append(mark.time_us * 1000)
        elif mark.stage == END:
            name = encodable(mark.name)
            begin_ns = opened[name].pop() if opened[name] else ALWAYS_NS
            # The last nanosecond of the microsecond that was recorded.
            ranges.append(AnnotationRange(begin_ns, mark.time_us * 1000 + 999, name))
    ranges += [
        AnnotationRange(begin_ns, NEVER_NS, name)
        for name, begins in opened.items()
        for begin_ns in begins
    ]
    # Of two that begin together the longer one is around the other.
    return sorted(ranges, key=lambda row: (row.begin_ns, -row.end_ns))


def innermost(ranges: Sequence[AnnotationRange], times_ns: Integers) -> list[str]:
    """Name of the range around each time that began last; ``""`` outside all ranges."""
    names = [""] * len(times_ns)
    if not ranges:
        return names
    opened: list[AnnotationRange] = []
    position = 0
    order = np.argsort(times_ns, kind="stable")
    for index, time_ns in zip(order.tolist(), times_ns[order].tolist(), strict=True):
        while position < len(ranges) and ranges[position].begin_ns <= time_ns:
            opened.append(ranges[position])
            position += 1
        # One that ended below another one is dropped when that one has ended.
        while opened and opened[-1].end_ns < time_ns:
            opened.pop()
        if opened:
            names[index] = opened[-1].name
    return names


def annotated_place(ranges: Sequence[AnnotationRange], time_ns: int) -> str:
    """Where a time lies: ``Optimizer.step#AdamW.step of ProfilerStep#3``; ``""`` without ranges.

    Names that occur several times have a number: ``forward 2 of 6``. Outside all ranges it is the
    one before and the one after: ``between forward 2 of 6 and backward 2 of 6``.
    """
    around = [row for row in ranges if row.begin_ns <= time_ns <= row.end_ns]
    if around:
        outer, inner = around[0], around[-1]
        if inner is outer:
            return _numbered(ranges, inner)
        return f"{inner.name} of {_numbered(ranges, outer)}"
    following = bisect_right(ranges, time_ns, key=lambda row: row.begin_ns)
    before = max(ranges[:following], key=lambda row: row.end_ns, default=None)
    after = ranges[following] if following < len(ranges) else None
    if before and after:
        return f"between {_numbered(ranges, before)} and {_numbered(ranges, after)}"
    if before:
        return f"after {_numbered(ranges, before)}"
    return f"before {_numbered(ranges, after)}" if after else ""


def _numbered(ranges: Sequence[AnnotationRange], row: AnnotationRange) -> str:
    alike = [other for other in ranges if other.name == row.name]
    return f"{row.name} {alike.index(row) + 1} of {len(alike)}" if len(alike) > 1 else row.name
