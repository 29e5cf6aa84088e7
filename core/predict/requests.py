"""The ordered allocation requests of a step, and their replay in a model of the allocator."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sysbench.core.predict.allocator import CachingAllocator, Refused
from sysbench.core.predict.allocator_blocks import Block
from sysbench.core.predict.allocator_settings import AllocatorSettings

PRODUCT = "product"
"""Mark of the first matrix product of the thread that calls the model: its library starts."""

BACKWARD_PRODUCT = "backward product"
"""Mark of autograd's first matrix product: its thread has a library handle of its own."""

OPTIMIZER = "optimizer"
"""Mark, and name, of the phase in which the first step allocates the optimizer's state."""

WARMUP_STEPS = 2
"""Steps before the one whose peaks count, as in the memory pass."""


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """Requests for blocks and their returns.

    A positive number is a request for that many bytes; requests are numbered from 0 through all
    three lists. A negative one, ``~n``, returns the block of request ``n``.

    Attributes:
        build: From an empty device to the model with its inputs.
        state: Of the optimizer's state, in its first step.
        step: One step. What it leaves, the loss, the next step returns before it begins.
        marks: Name and index in ``step`` of what happens just before that entry: the phases,
            and the first products of each thread.
    """

    build: list[int]
    state: list[int]
    step: list[int]
    marks: list[tuple[str, int]]

    @property
    def threads(self) -> int:
        """Threads that multiply, each with a workspace of its own."""
        names = {name for name, _ in self.marks}
        return len(names & {PRODUCT, BACKWARD_PRODUCT})


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """The request that a device had no memory for.

    Attributes:
        step: 0 while the model is built, then the step's number.
    """

    step: int
    phase: str
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


class AllocatorPeak(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of an allocator while requests were replayed.

    Attributes:
        first_step_bytes: Peak of its blocks in the first step.
        allocated_bytes: Peak of its blocks in a steady step.
        reserved_bytes: Peak of its segments in a steady step.
        most_reserved_bytes: Peak of its segments at any time.
        shortage: The request that was refused; then the amounts are those until there.
    """

    first_step_bytes: int
    allocated_bytes: int
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
    """Replay build, warm-up and a steady step in a model of the allocator.

    Args:
        workspace_bytes: Of the matrix library, for each thread that multiplies.
        capacity_bytes: What the device has for the allocator; None: no end.
        is_limited: Whether that is a limit put on the process.
        leaves_nothing: Whether the build makes no request that it returns, as drawing weights
            does by chance: what it leaves to the cache decides how the step's blocks lie.
    """
    if leaves_nothing:
        requests = without_returned(requests)
    allocator = CachingAllocator(settings, capacity_bytes, is_limited=is_limited)
    return _Player(requests, workspace_bytes, allocator).held()


def without_returned(requests: Requests) -> Requests:
    """The requests without those of the build that it returns itself."""
    returned = {~entry for entry in requests.build if entry < 0}
    numbers: dict[int, int] = {}
    number = 0

    def renumbered(entries: list[int]) -> Iterator[int]:
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
        build=list(renumbered(build)),
        state=list(renumbered(state)),
        step=list(renumbered(step)),
        marks=requests.marks,
    )


class _Player:
    def __init__(
        self, requests: Requests, workspace_bytes: int, allocator: CachingAllocator
    ) -> None:
        self._requests = requests
        self._workspace_bytes = workspace_bytes
        self._allocator = allocator
        self._blocks: dict[int, Block] = {}
        self._marks: dict[int, list[str]] = {}
        for name, index in requests.marks:
            self._marks.setdefault(index, []).append(name)
        built = _requests_in(requests.build)
        self._state_from = built
        self._step_from = built + _requests_in(requests.state)
        self._step, self._phase = 0, "build"
        self._first_step = self._most_reserved = 0

    def held(self) -> AllocatorPeak:
        shortage = None
        try:
            self._play_all()
        except Refused as error:
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
            reserved_bytes=allocator.peak_reserved_bytes,
            most_reserved_bytes=max(self._most_reserved, allocator.peak_reserved_bytes),
            shortage=shortage,
        )

    def _play_all(self) -> None:
        self._play(self._requests.build, 0)
        for self._step in range(1, WARMUP_STEPS + 2):
            self._begin_step()
            self._play_step()
            if self._step == 1:
                self._first_step = self._allocator.peak_allocated_bytes

    def _begin_step(self) -> None:
        """Return what the step before has left, and reset the peaks."""
        for number in [number for number in self._blocks if number >= self._step_from]:
            self._allocator.free(self._blocks.pop(number))
        self._most_reserved = max(self._most_reserved, self._allocator.peak_reserved_bytes)
        self._allocator.reset_peaks()

    def _play_step(self) -> None:
        begin, number = 0, self._step_from
        for index in sorted(self._marks):
            number = self._play(self._requests.step[begin:index], number)
            begin = index
            for name in self._marks[index]:
                self._pass(name)
        self._play(self._requests.step[begin:], number)

    def _pass(self, mark: str) -> None:
        """Do what only the first step does at a mark: its blocks stay until the process exits."""
        is_product = mark in (PRODUCT, BACKWARD_PRODUCT)
        if not is_product:
            self._phase = mark
        if self._step > 1:
            return
        if is_product and self._workspace_bytes:
            self._allocator.allocate(self._workspace_bytes)
        elif mark == OPTIMIZER:
            self._play(self._requests.state, self._state_from)

    def _play(self, entries: list[int], number: int) -> int:
        """Play entries, whose first request has that number; returns the next one."""
        allocate, free, blocks = self._allocator.allocate, self._allocator.free, self._blocks
        for entry in entries:
            if entry > 0:
                blocks[number] = allocate(entry)
                number += 1
            else:
                free(blocks.pop(~entry))
        return number


def _requests_in(entries: list[int]) -> int:
    return sum(entry > 0 for entry in entries)
