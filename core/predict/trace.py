"""The requests of a shallow model with the block that each belongs to, and those of a deep one.

Blocks repeat each other: a block in the middle makes the requests of the block before it, and
returns what that block's counterpart returned. Four layers therefore give any depth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, NamedTuple

from sysbench.core.errors import WorkerFailed
from sysbench.core.predict.requests import Requests

SHALLOW = 4
"""Layers of a trace that can be extended: two blocks in the middle, to be told from the ends."""

STATE, STEP = "(state)", "(step)"
"""Marks that begin the requests of the optimizer's state, and those of the step."""


class Entry(NamedTuple):
    """A request or the return of its block, by number, or a mark by name."""

    kind: Literal["request", "return", "mark"]
    number: int = -1
    name: str = ""


@dataclass(slots=True)
class Trace:
    """Requests of build, optimizer state and one step.

    Attributes:
        bytes, blocks: By a request's number: its bytes, and its block's index from 1; 0 outside.
    """

    entries: list[Entry] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    def request(self, count: int, block: int = 0) -> int:
        """Note a request; returns its number, -1 for one of no bytes: no block is behind it."""
        if not count:
            return -1
        number = len(self.bytes)
        self.bytes.append(count)
        self.blocks.append(block)
        self.entries.append(Entry("request", number))
        return number

    def give_back(self, number: int) -> None:
        """Note that a request's block is returned."""
        if number >= 0:
            self.entries.append(Entry("return", number))

    def mark(self, name: str) -> None:
        """Note that something happens just before the next entry."""
        self.entries.append(Entry("mark", name=name))

    def mark_before(self, number: int | None, name: str) -> None:
        """Note that something happens just before a request; None: now."""
        at = len(self.entries)
        if number is not None:
            at = self.entries.index(Entry("request", number))
        self.entries.insert(at, Entry("mark", name=name))

    def without(self, dropped: Collection[int]) -> Trace:
        """A copy of the trace so far, without some requests and their returns, by number."""
        if not dropped:
            return Trace(list(self.entries), list(self.bytes), list(self.blocks))
        kept, numbers = Trace(), dict[int, int]()
        for entry in self.entries:
            old = entry.number
            if entry.kind == "mark":
                kept.mark(entry.name)
            elif old not in dropped and entry.kind == "request":
                numbers[old] = kept.request(self.bytes[old], self.blocks[old])
            elif old not in dropped:
                kept.give_back(numbers[old])
        return kept

    def requests(self) -> Requests:
        """The entries as numbers."""
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
        return Requests(build=lists[""], state=lists[STATE], step=lists[STEP], marks=marks)


class _Run(NamedTuple):
    """Entries in a row: requests of one block, and what is returned until the next run."""

    block: int
    entries: list[Entry]


_Key = tuple[int, int]
"""A request at any depth: its block, and how many the block made before."""


def extended_trace(trace: Trace, layers: int) -> Trace:
    """The trace at another depth, of at least one layer more, from one of `SHALLOW` layers.

    Raises:
        WorkerFailed: The two blocks in the middle differ.
    """
    return _Extension(trace, layers).trace


class _Extension:
    def __init__(self, trace: Trace, layers: int) -> None:
        self.trace = Trace()
        self._old, self._layers = trace, layers
        self._keys = list(_keys_of(trace))
        self._numbers: dict[_Key, int] = {}  # by key at the new depth
        self._counts: Counter[int] = Counter()
        self._extend(list(_runs_of(trace)))

    def _extend(self, runs: list[_Run]) -> None:
        last = self._layers
        # Blocks as a run knows them: itself and its neighbours.
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
                self._outside(run)
                continue
            self._emit(run, ends[run.block])
            step = following.block - run.block if following is not None else 0
            if {run.block, run.block + step} == {2, 3}:
                assert following is not None
                self._middle(run, following)
            elif run.block in (2, 3) and (before is None or {before.block, run.block} != {2, 3}):
                raise _differ()

    def _middle(self, run: _Run, following: _Run) -> None:
        """Fill the place between the second block and the last but one, in the run's direction."""
        second, third = (run, following) if run.block == 2 else (following, run)
        if self._sizes(second) != self._sizes(third):
            raise _differ()
        # The blocks at the ends may make requests of their own: the runs in the middle count
        # those of a neighbour there alike only where they are alike themselves.
        is_alike = self._relative(second) == self._relative(third)
        between = range(3, self._layers - 1)
        for block in between if run.block == 2 else reversed(between):
            if is_alike:
                self._emit(third, {2: block - 1, 3: block, 4: block + 1})
            elif self._known(third) <= {2, 3}:
                self._emit(third, {2: block - 1, 3: block})
            elif self._known(second) <= {2, 3}:
                self._emit(second, {2: block, 3: block + 1})
            else:
                raise _differ()

    def _outside(self, run: _Run) -> None:
        """A run outside the blocks may return what any block has, of all blocks in the middle."""
        of_second = {key[1] for key in self._returned(run) if key[0] == 2}
        if of_second != {key[1] for key in self._returned(run) if key[0] == 3}:
            raise _differ()
        for entry in run.entries:
            block, ordinal = (-1, -1) if entry.kind == "mark" else self._keys[entry.number]
            if block == 2:
                for one in range(2, self._layers):
                    self.trace.give_back(self._number((one, ordinal)))
            elif block != 3:
                self._one(entry, {0: 0, 1: 1, 4: self._layers})

    def _emit(self, run: _Run, blocks: Mapping[int, int]) -> None:
        for entry in run.entries:
            self._one(entry, blocks)

    def _one(self, entry: Entry, blocks: Mapping[int, int]) -> None:
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
        key = block, self._counts[block]
        self._counts[block] += 1
        self._numbers[key] = self.trace.request(self._old.bytes[entry.number], block)

    def _number(self, key: _Key) -> int:
        number = self._numbers.get(key)
        if number is None:
            raise _differ()
        return number

    def _sizes(self, run: _Run) -> list[int]:
        return [self._old.bytes[e.number] for e in run.entries if e.kind == "request"]

    def _relative(self, run: _Run) -> list[tuple[str, int, int]]:
        """The entries by the distance of their block, returns in a row in one order."""
        entries = []
        for kind, group in groupby(run.entries, key=lambda entry: entry.kind):
            keys = [self._keys[entry.number] for entry in group if kind != "mark"]
            rows = [(kind, block - run.block, ordinal) for block, ordinal in keys]
            entries += sorted(rows) if kind == "return" else rows
        return entries

    def _known(self, run: _Run) -> set[int]:
        """Blocks that a run speaks of; 0 for a mark, which comes once."""
        return {0 if e.kind == "mark" else self._keys[e.number][0] for e in run.entries}

    def _returned(self, run: _Run) -> Iterator[_Key]:
        return (self._keys[e.number] for e in run.entries if e.kind == "return")


def _keys_of(trace: Trace) -> Iterator[_Key]:
    counts: Counter[int] = Counter()
    for block in trace.blocks:
        yield block, counts[block]
        counts[block] += 1


def _runs_of(trace: Trace) -> Iterator[_Run]:
    run = _Run(0, [])
    for entry in trace.entries:
        block = trace.blocks[entry.number] if entry.kind == "request" else run.block
        if block != run.block:
            yield run
            run = _Run(block, [])
        run.entries.append(entry)
    yield run


def _differ() -> WorkerFailed:
    return WorkerFailed("the blocks of the model differ, so that depth cannot be extended")
