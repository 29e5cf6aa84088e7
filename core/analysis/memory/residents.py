"""Resident bytes at one instant: named rows that add up to the live bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ...record.memory import LIBRARY_WORKSPACE
from ...record.record import LedgerRow
from .history import Allocations, History, Integers, pair
from .owners import (
    BEFORE,
    KEPT,
    OWNERS,
    UNKNOWN,
    WORKSPACES,
    Attribution,
    Notes,
    attribute,
)

HELD_BY_GRAPHS = "held by CUDA graphs"
"""Category of what is reserved for CUDA graphs and not handed out: a replay works in it unseen."""
UNSPLIT = "blocks larger than asked for"
"""Row of the bytes by which blocks exceed their rounded requests: the allocator does not split off
a rest that is too small."""


def rounding_name(granule: int) -> str:
    """Name of the row that holds the difference between block bytes and requested bytes."""
    return f"rounding to {granule}-byte blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Residents:
    """Live bytes by category over a whole history.

    An instant is counted in events: 0 is before the first, i is after the i-th.

    Attributes:
        history: The events that were replayed.
        notes: The worker's notes of the same time.
        allocations: Every allocation of the history.
        attribution: Their owners.
        blocks: Bytes of each allocation's block, where the history or the state at its end has
            them; else its request rounded to the allocator's granule.
        live: Live bytes at each instant, in blocks, and what CUDA graphs hold.
        categories: Live bytes of each category at each instant, as requested; further ones for
            the rounding, and for blocks larger than that. They sum to ``live``.
    """

    history: History
    notes: Notes
    allocations: Allocations
    attribution: Attribution
    blocks: Integers
    live: Integers
    categories: dict[str, Integers]

    def with_graphs(self, held: Integers) -> Residents:
        """The residents with one more category.

        Args:
            held: Bytes that CUDA graphs hold, at each instant.
        """
        if not held.any():
            return self
        rounding = rounding_name(self.history.granule)
        categories = {name: curve for name, curve in self.categories.items() if name != rounding}
        categories[HELD_BY_GRAPHS] = held
        if rounding in self.categories:
            categories[rounding] = self.categories[rounding]
        return replace(self, live=self.live + held, categories=categories)

    def held(self, instant: int) -> int:
        """Bytes that CUDA graphs hold; the allocator's own counters do not have them."""
        curve = self.categories.get(HELD_BY_GRAPHS)
        return 0 if curve is None else int(curve[instant])

    def instant(self, time_ns: int) -> int:
        """The instant that a time belongs to."""
        return self.history.last_before(time_ns) + 1

    def time_ns(self, instant: int) -> int:
        """Start of an instant in nanoseconds; the first one starts with the recording."""
        if instant > 0:
            return int(self.history.time_ns[instant - 1])
        if self.notes.phases:
            return self.notes.phases[0].time_ns
        return self.time_ns(1) if len(self.history) else 0

    def since_start_ms(self, time_ns: int) -> float:
        """Milliseconds since recording began."""
        return (time_ns - self.time_ns(0)) / 1e6

    def time_ms(self, instant: int) -> float:
        """Start of an instant, in milliseconds since recording began."""
        return self.since_start_ms(self.time_ns(instant))

    def phase(self, instant: int, step: int | None) -> str:
        """The phase of an instant within a step; ``""`` without notes of phases."""
        if step is None:
            return ""
        return self.notes.phase_at(max(self.time_ns(instant), self.notes.step_span(step)[0]))

    def span(self, step: int | None) -> tuple[int, int]:
        """First and last instant of a step, both included; of the whole history for None."""
        if step is None:
            return 0, len(self.history)
        began_ns, ended_ns = self.notes.step_span(step)
        return self.instant(began_ns), self.instant(ended_ns)

    def peak(self, first: int, last: int) -> int:
        """The first instant of the most live bytes from ``first`` to ``last``, both included."""
        return first + int(np.argmax(self.live[first : last + 1]))

    def peak_of_tensors(self, first: int, last: int) -> int:
        """The same without library workspace, which no prediction covers."""
        return first + int(np.argmax(self._tensors[first : last + 1]))

    def added_by_library(self, first: int, last: int) -> int:
        """Bytes by which the peak exceeds that of tensors; the two instants can differ."""
        span = slice(first, last + 1)
        return int(self.live[span].max() - self._tensors[span].max())

    @property
    def _tensors(self) -> Integers:
        workspace = self.categories.get(LIBRARY_WORKSPACE)
        return self.live if workspace is None else self.live - workspace

    def block_bytes(self, index: int) -> int | None:
        """An allocation's bytes rounded up to the allocator's granule, or its block's where the
        file has that; None where the allocator has no granule."""
        granule = self.history.granule
        if self.history.end_blocks:
            return int(self.blocks[index])
        # ``-(-a // b)`` rounds up in integers: floats lose bytes from 2**53.
        return -(-int(self.allocations.bytes[index]) // granule) * granule if granule > 1 else None

    def rows(self, instant: int) -> list[LedgerRow]:
        """The ledger: a row for every category of the history, summing to ``live`` there."""
        return [
            LedgerRow(name, int(live_bytes[instant]))
            for name, live_bytes in self.categories.items()
        ]


def replay(history: History, notes: Notes) -> Residents:
    """Follow a history from its first event to its last."""
    allocations = pair(history)
    attribution = attribute(history, allocations, notes)
    rounded = allocations.rounded(history.granule)
    blocks = block_bytes(history, allocations)
    names = _in_order(set(attribution.category))
    number_of = {name: number for number, name in enumerate(names)}
    named = map(number_of.__getitem__, attribution.category)
    numbers = np.fromiter(named, np.int64, len(allocations))
    categories = {
        name: allocations.curve(np.where(numbers == number, allocations.bytes, 0))
        for name, number in number_of.items()
    }
    if history.granule > 1:
        rounding = allocations.curve(rounded - allocations.bytes)
        categories[rounding_name(history.granule)] = rounding
    if len(history.block) or (blocks > rounded).any():
        categories[UNSPLIT] = allocations.curve(blocks - rounded)
    return Residents(
        history=history,
        notes=notes,
        allocations=allocations,
        attribution=attribution,
        blocks=blocks,
        live=allocations.curve(blocks),
        categories=categories,
    )


def block_bytes(history: History, allocations: Allocations) -> Integers:
    """Bytes of each allocation's block; at least its request, rounded to the granule."""
    blocks = allocations.rounded(history.granule)
    if len(history.block):
        # The index -1 of a birth before the recording reaches the last element, which is no block.
        blocks = np.maximum(blocks, np.append(history.block, 0)[allocations.born])
    if history.end_blocks:
        alive = np.flatnonzero(allocations.died == allocations.events)
        sizes = map(history.end_blocks.get, allocations.address[alive].tolist())
        at_end = np.array([size or 0 for size in sizes], dtype=np.int64)
        blocks[alive] = np.maximum(blocks[alive], at_end)
    return blocks


def _in_order(categories: Iterable[str]) -> list[str]:
    """Owners first, then temporaries, then the categories that have no tensor of the step."""
    order = [*OWNERS, "temporaries", LIBRARY_WORKSPACE, WORKSPACES, KEPT, BEFORE, UNKNOWN]

    def rank(name: str) -> tuple[int, str]:
        return order.index(name.split(" (")[0]), name

    return sorted(categories, key=rank)
