"""The ordered allocation requests of a step, and their replay in the allocator model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, NamedTuple

import msgspec

from sysbench.core.errors import WorkerFailed
from sysbench.core.predict.allocator import AllocationRefused, CachedBlock, CachingAllocator
from sysbench.core.predict.allocator_settings import AllocatorSettings

SHALLOW = 4
"""Layers of a trace that can be extended: two middle blocks, distinguishable from the ends."""

STATE, STEP = "(state)", "(step)"
"""Marks that begin the requests of the optimizer's state and of the step."""


class TraceEntry(NamedTuple):
    """A request or the return of its block, by number, or a mark by name."""

    kind: Literal["request", "return", "mark"]
    number: int = -1
    name: str = ""


@dataclass(slots=True)
class RequestTrace:
    """Requests of build, optimizer state and one step.

    Attributes:
        bytes, blocks: Bytes and block index of each request; the index is from 1, 0 outside blocks.
        streams: Streams of requests, by number, that are not on the default stream.
    """

    entries: list[TraceEntry] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    streams: dict[int, int] = field(default_factory=dict)

    def request(self, count: int, block: int = 0, stream: int = 0) -> int:
        """Record a request; returns its number, or -1 for 0 bytes, which get no block."""
        if not count:
            return -1
        number = len(self.bytes)
        self.bytes.append(count)
        self.blocks.append(block)
        if stream:
            self.streams[number] = stream
        self.entries.append(TraceEntry("request", number))
        return number

    def kind_of(self, number: int) -> tuple[int, int, int]:
        """Bytes, block and stream of a request."""
        return self.bytes[number], self.blocks[number], self.streams.get(number, 0)

    def give_back(self, number: int) -> None:
        if number >= 0:
            self.entries.append(TraceEntry("return", number))

    def mark(self, name: str) -> None:
        self.entries.append(TraceEntry("mark", name=name))

    def mark_before(self, number: int | None, name: str) -> None:
        position = len(self.entries)
        if number is not None:
            position = self.entries.index(TraceEntry("request", number))
        self.entries.insert(position, TraceEntry("mark", name=name))

    def without(self, dropped: Collection[int]) -> RequestTrace:
        """Copy the trace without some requests and their returns, by number."""
        if not dropped:
            lists = list(self.entries), list(self.bytes), list(self.blocks)
            return RequestTrace(*lists, dict(self.streams))
        trace, numbers = RequestTrace(), dict[int, int]()
        for entry in self.entries:
            old = entry.number
            if entry.kind == "mark":
                trace.mark(entry.name)
            elif old not in dropped and entry.kind == "request":
                stream = self.streams.get(old, 0)
                numbers[old] = trace.request(self.bytes[old], self.blocks[old], stream)
            elif old not in dropped:
                trace.give_back(numbers[old])
        return trace

    def requests(self) -> Requests:
        lists: dict[str, list[int]] = {"": [], STATE: [], STEP: []}
        section, marks = "", []
        for entry in self.entries:
            if entry.kind == "request":
                lists[section].append(self.bytes[entry.number])
            elif entry.kind == "return":
                lists[section].append(~entry.number)
            elif entry.name in lists:
                section = entry.name
            else:
                marks.append((entry.name, len(lists[STEP])))
        return Requests(
            build=lists[""],
            state=lists[STATE],
            step=lists[STEP],
            marks=marks,
            streams=self.streams,
        )


class _Run(NamedTuple):
    """Consecutive entries: requests of one block, and the returns until the next run.

    Returns from blocks that are not adjacent are outside, as of all gradients.
    """

    block: int
    entries: list[TraceEntry]


_Key = tuple[int, tuple[int, ...]]
"""A request at any depth: its block, and its phase, stream, bytes, and number among the like."""

_Relative = tuple[str, int, tuple[int, ...]]
"""Kind of an entry, distance of its request's block from the run's, and the rest of its key."""


def extended_trace(
    trace: RequestTrace, layers: int, shallower: RequestTrace | None = None
) -> RequestTrace:
    """Extend a trace of `SHALLOW` layers by at least one layer.

    Args:
        shallower: A trace of one layer less. Requests outside the blocks may grow with the depth,
            as a list of all gradients' norms does; without it they do not.

    Raises:
        WorkerFailed: The two blocks in the middle differ.
    """
    return _Extension(trace, layers, shallower).trace


class _Extension:
    def __init__(self, trace: RequestTrace, layers: int, shallower: RequestTrace | None) -> None:
        self.trace = RequestTrace()
        self._old, self._layers = trace, layers
        self._keys = list(_keys_of(trace))
        self._numbers: dict[_Key, int] = {}  # by key at the new depth
        self._growth = _growth(trace, shallower) if shallower is not None else {}
        self._extend(list(_runs_of(trace)))

    def _extend(self, runs: list[_Run]) -> None:
        last = self._layers
        # A run refers to its own block and the adjacent ones.
        ends = {
            1: {0: 0, 1: 1, 2: 2},
            2: {0: 0, 1: 1, 2: 2, 3: 3},
            3: {0: 0, 2: last - 2, 3: last - 1, 4: last},
            4: {0: 0, 3: last - 1, 4: last},
        }
        after = None
        for run, following in zip(runs, [*runs[1:], None], strict=True):
            before, after = after, run
            if run.block == 0:
                self._extend_outside(run)
                continue
            self._emit(run, ends[run.block])
            step = following.block - run.block if following is not None else 0
            if {run.block, run.block + step} == {2, 3}:
                assert following is not None
                self._extend_middle(run, following)
            elif run.block in (2, 3) and (before is None or {before.block, run.block} != {2, 3}):
                raise _differ()

    def _extend_middle(self, run: _Run, following: _Run) -> None:
        """Fill the gap between the second block and the last but one, in the run's direction."""
        second, third = (run, following) if run.block == 2 else (following, run)
        if self._sizes(second) != self._sizes(third) or len(second.entries) != len(third.entries):
            raise _differ()
        rows = [*map(self._in_middle, self._relative(second), self._relative(third))]
        between = range(3, self._layers - 1)
        for block in between if run.block == 2 else reversed(between):
            for kind, step, ordinal in rows:
                if kind == "return":
                    self.trace.give_back(self._number((block + step, ordinal)))
                else:
                    _, stream, count, _ = ordinal
                    self._numbers[block, ordinal] = self.trace.request(count, block, stream)

    def _in_middle(self, second: _Relative, third: _Relative) -> _Relative:
        """The entry of a block whose neighbours are none of the ends, which may request more."""
        if second == third or second[1] in (0, 1):
            return second
        if second[0] != third[0] or third[1] not in (0, -1):
            raise _differ()
        return third

    def _extend_outside(self, run: _Run) -> None:
        """Extend a run outside the blocks, which may return memory of all middle blocks."""
        of_second = {key[1] for key in self._returned(run) if key[0] == 2}
        if of_second != {key[1] for key in self._returned(run) if key[0] == 3}:
            raise _differ()
        for entry in run.entries:
            block, ordinal = (-1, ()) if entry.kind == "mark" else self._keys[entry.number]
            if block == 2:
                for middle in range(2, self._layers):
                    self.trace.give_back(self._number((middle, ordinal)))
            elif block != 3:
                self._emit_entry(entry, {0: 0, 1: 1, 4: self._layers})

    def _emit(self, run: _Run, blocks: Mapping[int, int]) -> None:
        for entry in run.entries:
            self._emit_entry(entry, blocks)

    def _emit_entry(self, entry: TraceEntry, blocks: Mapping[int, int]) -> None:
        if entry.kind == "mark":
            self.trace.mark(entry.name)
            return
        old_block, ordinal = self._keys[entry.number]
        if old_block not in blocks:
            raise _differ()
        block = blocks[old_block]
        if entry.kind == "return":
            self.trace.give_back(self._number((block, ordinal)))
            return
        count = self._old.bytes[entry.number]
        count += (self._layers - SHALLOW) * self._growth.get(entry.number, 0)
        stream = self._old.streams.get(entry.number, 0)
        self._numbers[block, ordinal] = self.trace.request(count, block, stream)

    def _number(self, key: _Key) -> int:
        number = self._numbers.get(key)
        if number is None:
            raise _differ()
        return number

    def _sizes(self, run: _Run) -> list[int]:
        return [self._old.bytes[e.number] for e in run.entries if e.kind == "request"]

    def _relative(self, run: _Run) -> list[_Relative]:
        """The entries by the distance of their block, consecutive returns in one order."""
        entries = []
        for kind, group in groupby(run.entries, key=lambda entry: entry.kind):
            keys = [self._keys[entry.number] for entry in group if kind != "mark"]
            rows = [(kind, block - run.block, ordinal) for block, ordinal in keys]
            entries += sorted(rows) if kind == "return" else rows
        return entries

    def _returned(self, run: _Run) -> Iterator[_Key]:
        return (self._keys[e.number] for e in run.entries if e.kind == "return")


def _growth(trace: RequestTrace, shallower: RequestTrace) -> dict[int, int]:
    """Bytes that each request outside the blocks, by number, grows by with a layer."""
    outside, before = (
        [number for number, block in enumerate(one.blocks) if block == 0]
        for one in (trace, shallower)
    )
    if len(outside) != len(before):
        raise _differ()
    return {
        number: trace.bytes[number] - shallower.bytes[old]
        for number, old in zip(outside, before, strict=True)
    }


def _keys_of(trace: RequestTrace) -> Iterator[_Key]:
    counts, phases = Counter[tuple[int, ...]](), 0
    for entry in trace.entries:
        phases += entry.kind == "mark" and entry.name not in (PRODUCT, BACKWARD_PRODUCT)
        if entry.kind == "request":
            count, block, stream = trace.kind_of(entry.number)
            like = block, phases, stream, count
            yield block, (phases, stream, count, counts[like])
            counts[like] += 1


def _runs_of(trace: RequestTrace) -> Iterator[_Run]:
    run = _Run(0, [])
    for kind, group in groupby(trace.entries, key=lambda entry: entry.kind):
        entries = list(group)
        far = (
            kind == "return"
            and run.block
            and any(abs((trace.blocks[one.number] or run.block) - run.block) > 1 for one in entries)
        )
        for entry in entries:
            block = trace.blocks[entry.number] if kind == "request" else 0 if far else run.block
            if block != run.block:
                yield run
                run = _Run(block, [])
            run.entries.append(entry)
    yield run


def _differ() -> WorkerFailed:
    return WorkerFailed("the model's blocks differ, so its depth cannot be extrapolated")


PRODUCT = "product"
"""Mark of the first matrix product in the calling thread: its library starts."""

BACKWARD_PRODUCT = "backward product"
"""Mark of autograd's first matrix product: its thread has its own library handle."""

OPTIMIZER = "optimizer"
"""Mark, and name, of the phase in which the first step allocates the optimizer's state."""

WARMUP_STEPS = 2
"""Steps before the one whose peaks count: the first allocates the optimizer's state and the
libraries' workspaces, the second already runs in the memory of a steady step."""


OWN_STEPS = 16
"""Steps of one's own that are run at most, to see whether they differ."""


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """Requests for blocks and their returns.

    A positive number requests that many bytes; requests are numbered from 0 through all three
    lists. A negative number, ``~n``, returns the block of request ``n``.

    Attributes:
        build: From an empty device to the model with its inputs.
        state: Of the optimizer's state, in its first step.
        step: One step. The next step first returns what it leaves: the loss.
        marks: Name and index in ``step`` of events just before that entry: the phases, and the
            first products of each thread.
        streams: Streams of requests, by number, that are not on the default stream: a block is
            reused on the stream of its request only.
    """

    build: list[int]
    state: list[int]
    step: list[int]
    marks: list[tuple[str, int]]
    streams: dict[int, int] = {}

    @property
    def threads(self) -> int:
        """Number of threads that multiply, each with its own workspace."""
        names = {name for name, _ in self.marks}
        return len(names & {PRODUCT, BACKWARD_PRODUCT})


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    phase: str
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


class AllocatorPeak(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of an allocator in a steady step; ``most_reserved_bytes`` is at any time, and
    ``requested_bytes`` is of the moment of ``allocated_bytes``. They end at the ``shortage`` if a
    request was refused."""

    first_step_bytes: int
    allocated_bytes: int
    requested_bytes: int
    reserved_bytes: int
    most_reserved_bytes: int
    shortage: Shortage | None = None


def replay_requests(
    requests: Requests,
    workspace_bytes: int,
    settings: AllocatorSettings | None = None,
    capacity_bytes: int | None = None,
    *,
    is_limited: bool = False,
    leaves_nothing: bool = False,
) -> AllocatorPeak:
    """Replay build, warm-up and a steady step in the allocator model.

    Args:
        workspace_bytes: Of the matrix library, for each thread that multiplies.
        is_limited: Whether the capacity is a limit put on the process.
        leaves_nothing: Skip requests that the build itself returns. A user's model may make a
            random number of them as it draws its weights, and the cache they leave decides the
            layout of the step's blocks.
    """
    if leaves_nothing:
        requests = without_returned(requests)
    allocator = CachingAllocator(settings, capacity_bytes, is_limited=is_limited)
    return _Replay(requests, workspace_bytes, allocator).run()


def without_returned(requests: Requests) -> Requests:
    """Remove the requests that the build itself returns, with the steps that it ends with."""
    returned = {~entry for entry in requests.build + requests.state if entry < 0}
    numbers: dict[int, int] = {}
    number = 0

    def renumber(entries: list[int]) -> Iterator[int]:
        nonlocal number
        for entry in entries:
            if entry > 0:
                if number not in returned:
                    numbers[number] = len(numbers)
                    yield entry
                number += 1
            elif ~entry not in returned:
                yield ~numbers[~entry]

    build, state, step = requests.build, requests.state, requests.step
    # In this order: numbers run through all three lists.
    return Requests(
        build=list(renumber(build)),
        state=list(renumber(state)),
        step=list(renumber(step)),
        marks=requests.marks,
        streams={numbers[old]: one for old, one in requests.streams.items() if old in numbers},
    )


class _Replay:
    def __init__(
        self, requests: Requests, workspace_bytes: int, allocator: CachingAllocator
    ) -> None:
        self._requests = requests
        self._workspace_bytes = workspace_bytes
        self._allocator = allocator
        self._blocks: dict[int, CachedBlock] = {}
        self._marks: dict[int, list[str]] = {}
        for name, index in requests.marks:
            self._marks.setdefault(index, []).append(name)
        built = _requests_in(requests.build)
        self._state_from = built
        self._step_from = built + _requests_in(requests.state)
        self._step, self._phase = 0, "build"
        self._first_step = self._most_reserved = 0

    def run(self) -> AllocatorPeak:
        shortage = None
        try:
            self._replay(self._requests.build, 0)
            for self._step in range(1, WARMUP_STEPS + 2):
                self._begin_step()
                self._replay_step()
                if self._step == 1:
                    self._first_step = self._allocator.peak_allocated_bytes
        except AllocationRefused as error:
            shortage = Shortage(
                step=self._step,
                phase=self._phase,
                requested_bytes=error.requested_bytes,
                allocated_bytes=error.allocated_bytes,
                reserved_bytes=error.reserved_bytes,
            )
        allocator = self._allocator
        return AllocatorPeak(
            first_step_bytes=self._first_step or allocator.peak_allocated_bytes,
            allocated_bytes=allocator.peak_allocated_bytes,
            requested_bytes=allocator.requested_at_peak_bytes,
            reserved_bytes=allocator.peak_reserved_bytes,
            most_reserved_bytes=max(self._most_reserved, allocator.peak_reserved_bytes),
            shortage=shortage,
        )

    def _begin_step(self) -> None:
        """Free what the step before left; it takes the place of a block that this step frees."""
        sizes = [entry for entry in self._requests.build + self._requests.state if entry > 0]
        replaced = {
            ~entry: sizes[~entry]
            for entry in self._requests.step
            if entry < 0 and ~entry < self._step_from and ~entry not in self._blocks
        }
        of_step = [entry for entry in self._requests.step if entry > 0]
        for number in [number for number in self._blocks if number >= self._step_from]:
            block, size = self._blocks.pop(number), of_step[number - self._step_from]
            old = next((old for old, count in replaced.items() if count == size), None)
            if old is None:
                self._allocator.free(block)
            else:
                self._blocks[old] = block
                del replaced[old]
        self._most_reserved = max(self._most_reserved, self._allocator.peak_reserved_bytes)
        self._allocator.reset_peaks()

    def _replay_step(self) -> None:
        begin, number = 0, self._step_from
        for index in sorted(self._marks):
            number = self._replay(self._requests.step[begin:index], number)
            begin = index
            for name in self._marks[index]:
                self._apply_mark(name)
        self._replay(self._requests.step[begin:], number)

    def _apply_mark(self, mark: str) -> None:
        """Allocate what only the first step allocates at a mark, until the process exits."""
        is_product = mark in (PRODUCT, BACKWARD_PRODUCT)
        if not is_product:
            self._phase = mark
        if self._step > 1:
            return
        if is_product and self._workspace_bytes:
            self._allocator.allocate(self._workspace_bytes)
        elif mark == OPTIMIZER:
            self._replay(self._requests.state, self._state_from)

    def _replay(self, entries: list[int], number: int) -> int:
        """Replay entries, the first request having that number; returns the next number."""
        allocate, free, blocks = self._allocator.allocate, self._allocator.free, self._blocks
        stream_of = self._requests.streams.get
        for entry in entries:
            if entry > 0:
                blocks[number] = allocate(entry, stream_of(number, 0))
                number += 1
            elif ~entry in blocks:
                free(blocks.pop(~entry))
        return number


def _requests_in(entries: list[int]) -> int:
    return sum(entry > 0 for entry in entries)
