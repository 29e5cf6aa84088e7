"""Replay a recording: the owner of every allocation, and the live bytes at every instant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from sysbench.core.memory.card import Segments
from sysbench.core.memory.history import History, Integers, Lifetimes, pair
from sysbench.core.memory.owners import (
    BEFORE,
    KEPT,
    OWNERS,
    UNKNOWN,
    WORKSPACES,
    Notes,
    attribute,
)
from sysbench.core.record.memory import LIBRARY_WORKSPACE
from sysbench.core.record.record import LedgerRow

HELD_BY_GRAPHS = "held by CUDA graphs"
"""Category of memory reserved for CUDA graphs and not handed out: replays use it without events."""
UNSPLIT = "blocks larger than asked for"
"""Row of the bytes by which blocks exceed their rounded requests, because the allocator does not
split off small remainders."""


def rounding_name(granule: int) -> str:
    return f"rounding to {granule}-byte blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationHistory(Lifetimes):
    """Live memory at each instant, by category.

    Attributes:
        category, phase, module: Of each allocation, see `Attribution`.
        live: Live bytes at each instant, in blocks, including what CUDA graphs hold.
        categories: Live bytes of each category at each instant, as requested, plus rows for
            rounding and for unsplit blocks. They sum to ``live``.
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

    Args:
        segments: Of the caching allocator. CUDA graph replays emit no events, so the unused reserve
            of their private pools becomes a category. Otherwise a step that only replays graphs
            would seem to need no memory.
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
        categories[rounding_name(history.granule)] = rounding
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
    """Sort owners first, then temporaries, then categories without a tensor of the step."""
    order = [*OWNERS, "temporaries", LIBRARY_WORKSPACE, WORKSPACES, KEPT, BEFORE, UNKNOWN]

    def rank(name: str) -> tuple[int, str]:
        return order.index(name.split(" (")[0]), name

    return sorted(categories, key=rank)
