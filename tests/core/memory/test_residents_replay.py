"""Replaying allocator histories: exact at every event, wherever the history begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.memory.allocations import Notes, PhaseMark, Tag, replay_allocations
from sysbench.core.memory.history import History, pair


@dataclass(frozen=True)
class Truth:
    """A whole history and what was alive after each of its events."""

    moves: list[tuple[int, int]]  # (address, signed bytes)
    alive: list[dict[int, int]]  # one more than moves: before the first, after each


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    """Random allocations and frees over few addresses, so that addresses are reused."""
    live: dict[int, int] = {}
    moves: list[tuple[int, int]] = []
    alive = [dict(live)]
    for _ in range(draw(st.integers(1, 40))):
        address = draw(st.integers(1, 8)) * 4096
        size = live.pop(address, None)
        if size is None:
            size = draw(st.integers(1, 2**40))
            live[address] = size
            moves.append((address, size))
        else:
            moves.append((address, -size))
        alive.append(dict(live))
    return Truth(moves, alive)


def history_of(moves: list[tuple[int, int]], survivors: dict[int, int], granule: int) -> History:
    addresses, changes = np.array(moves, dtype=np.int64).reshape(-1, 2).T
    return History(
        time_ns=np.arange(len(moves), dtype=np.int64) * 1000,
        address=addresses,
        change=changes,
        stack=np.full(len(moves), -1),
        stacks=[],
        survivors=list(survivors.items()),
        granule=granule,
    )


@given(truths(), st.data())
def test_live_bytes_equal_the_truth_from_any_cut(truth: Truth, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(truth.moves)))
    allocations = pair(history_of(truth.moves[cut:], truth.alive[-1], 1))
    expected = [sum(live.values()) for live in truth.alive[cut:]]
    assert allocations.curve(allocations.bytes).tolist() == expected


@given(truths(), st.data())
def test_alive_blocks_equal_the_truth_from_any_cut(truth: Truth, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(truth.moves)))
    allocations = pair(history_of(truth.moves[cut:], truth.alive[-1], 1))
    for instant, live in enumerate(truth.alive[cut:]):
        found = allocations.alive_at(instant)
        pairs = zip(
            allocations.address[found].tolist(), allocations.bytes[found].tolist(), strict=True
        )
        assert dict(pairs) == live


@given(truths(), st.data())
def test_ledger_sums_to_the_live_blocks_at_every_instant(truth: Truth, data: st.DataObject) -> None:
    granule = data.draw(st.sampled_from([1, 512]))
    cut = data.draw(st.integers(0, len(truth.moves)))
    times = st.integers(0, len(truth.moves) * 1000)
    phases = [
        PhaseMark(time, data.draw(st.integers(-1, 2)), data.draw(st.sampled_from(["", "forward"])))
        for time in sorted(data.draw(st.lists(times, max_size=5)))
    ]
    tags = [
        Tag(time, data.draw(st.integers(1, 8)) * 4096, "activations", "blocks.0")
        for time in data.draw(st.lists(times, max_size=5))
    ]
    history = history_of(truth.moves[cut:], truth.alive[-1], granule)
    residents = replay_allocations(history, Notes(phases=phases, tags=tags))
    for instant, live in enumerate(truth.alive[cut:]):
        blocks = sum(-(-size // granule) * granule for size in live.values())
        assert residents.live[instant] == blocks
        assert sum(row.bytes for row in residents.rows_at(instant)) == blocks


@given(truths(), st.data())
def test_of_equal_peaks_the_first_counts(truth: Truth, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(truth.moves)))
    last = data.draw(st.integers(first, len(truth.moves)))
    residents = replay_allocations(history_of(truth.moves, truth.alive[-1], 1), Notes())
    totals = [sum(live.values()) for live in truth.alive]
    window = totals[first : last + 1]
    assert residents.peak(first, last) == first + window.index(max(window))


def test_a_lost_free_ends_with_the_next_allocation_of_its_address() -> None:
    residents = replay_allocations(
        history_of([(4096, 10), (4096, 30), (4096, -30)], {}, 1), Notes()
    )
    assert residents.live.tolist() == [0, 10, 30, 0]
