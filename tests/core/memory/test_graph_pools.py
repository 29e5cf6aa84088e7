"""CUDA graphs: replays use reserved memory without allocator events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.memory.allocations import Notes, Tag
from sysbench.core.memory.block import Recording, describe_memory
from sysbench.core.memory.card import CardReading, Segments, segments_of
from sysbench.core.memory.history import Counters
from sysbench.core.memory.snapshot_reading import snapshot_from
from sysbench.core.record.memory import Pool
from sysbench.core.record.record import LedgerRow, Memory
from tests.core.memory.two_steps import START_US, at, phases

MIB = 2**20
SHARED, PRIVATE, GROWN = 0, 100 * MIB, 200 * MIB
HELD = "held by CUDA graphs"


def amounts(rows: list[LedgerRow]) -> dict[str, int]:
    return {row.name: row.bytes for row in rows}


def segment(address: int, size: int, pool: int) -> dict[str, Any]:
    return {
        "address": address,
        "total_size": size,
        "device": 0,
        "segment_type": "large",
        "segment_pool_id": (0, pool),
        "blocks": [],
    }


def event(at: int, action: str, address: int, size: int) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "time_us": START_US + at,
        "frames": [],
    }


def snapshot() -> dict[str, Any]:
    """Weights in the shared pool; a step that captures in a private one, and one that replays."""
    trace = [
        event(10, "segment_alloc", SHARED, 20 * MIB),
        event(11, "alloc", SHARED, 3 * MIB),
        event(110, "segment_alloc", PRIVATE, 20 * MIB),
        event(111, "alloc", PRIVATE, 8 * MIB),
        event(120, "segment_alloc", GROWN, 20 * MIB),
        event(121, "alloc", GROWN, 12 * MIB),
        event(150, "free_completed", PRIVATE, 8 * MIB),
        event(210, "alloc", SHARED + 4 * MIB, MIB),  # of the replay: a copy of its input
        event(240, "free_completed", SHARED + 4 * MIB, MIB),
    ]
    segments = [
        segment(SHARED, 20 * MIB, 0),
        *(segment(at, 20 * MIB, 1) for at in (PRIVATE, GROWN)),
    ]
    return {"segments": segments, "device_traces": [trace]}


def notes() -> Notes:
    return Notes(
        phases=phases(),
        tags=[Tag(at(20), SHARED, "parameters", "head")],
    )


@pytest.fixture
def memory() -> Memory:
    raw = snapshot()
    reading = CardReading(
        used=60 * MIB + 100 * MIB,
        allocated=15 * MIB,
        reserved=60 * MIB,
        process=60 * MIB + 100 * MIB,
        others=0,
    )
    recording = Recording(
        source="cuda-snapshot",
        history=snapshot_from(raw).history(0),
        counters=Counters(peak_allocated=16 * MIB, peak_reserved=60 * MIB, end_allocated=15 * MIB),
        readings={"after warm-up": reading, "steady end": reading},
        segments=segments_of(raw, 0),
    )
    return describe_memory(recording, notes())


def test_the_peak_has_what_the_graphs_hold(memory: Memory) -> None:
    peak = amounts(memory.ledger)
    assert peak[HELD] == 40 * MIB - 12 * MIB
    assert peak["parameters"] == 3 * MIB
    assert memory.peak_allocated_bytes == sum(peak.values()) == 44 * MIB
    assert memory.end_allocated_bytes == 43 * MIB
    assert "emits no allocator events" in memory.missing[f"ledger.{HELD}"]


def test_while_it_is_captured_only_the_free_part_is_held(memory: Memory) -> None:
    # 40 MiB are reserved from the second segment on, and 20 of them handed out at the most.
    assert amounts(memory.columns["first step"])[HELD] == 40 * MIB - 20 * MIB
    assert memory.first_step_peak_bytes == 43 * MIB
    assert amounts(memory.columns["after build"])[HELD] == 0


def test_what_is_held_is_no_slack(memory: Memory) -> None:
    for name in ("after warm-up", "peak", "steady end"):
        card = amounts(memory.card_columns[name])
        assert card["allocated"] == sum(row.bytes for row in memory.columns[name])
        slack = {row: count for row, count in card.items() if row.startswith("slack")}
        assert slack == {"slack, large": 60 * MIB - card["allocated"]}
        assert sum(card.values()) == 160 * MIB


def test_the_timeline_shows_it(memory: Memory) -> None:
    assert max(memory.timeline.live_bytes) == 44 * MIB
    assert max(memory.timeline.categories[HELD]) == 28 * MIB
    for index, live_bytes in enumerate(memory.timeline.live_bytes):
        assert sum(row[index] for row in memory.timeline.categories.values()) == live_bytes


def test_the_pools_stay_as_they_are(memory: Memory) -> None:
    assert memory.pools["peak"] == [
        Pool("large", 20 * MIB, 4 * MIB, 16 * MIB, 15 * MIB),
        Pool("private pool 1, large", 40 * MIB, 12 * MIB, 28 * MIB, 20 * MIB),
    ]


def test_without_a_private_pool_there_is_no_such_row() -> None:
    raw = snapshot()
    for one in raw["segments"]:
        one["segment_pool_id"] = (0, 0)
    recording = Recording(
        source="cuda-snapshot", history=snapshot_from(raw).history(0), segments=segments_of(raw, 0)
    )
    memory = describe_memory(recording, notes())
    assert HELD not in memory.timeline.categories
    assert f"ledger.{HELD}" not in memory.missing


SEGMENTS = st.lists(
    st.tuples(
        st.integers(0, 100),  # reserved at
        st.integers(1, 20),  # MiB
        st.booleans(),  # whether of a private pool
        st.booleans(),  # whether there when the recording began
    ),
    max_size=8,
)


@given(SEGMENTS, st.lists(st.integers(-5, 120), min_size=1, max_size=5))
def test_private_bytes_are_those_of_the_segments_that_exist_at_each_time(
    rows: list[tuple[int, int, bool, bool]], times_ns: list[int]
) -> None:
    at_end: dict[int, tuple[int, str]] = {}
    events: list[tuple[int, int, int, int, bool]] = []
    for index, (began_ns, size, is_private, was_there) in enumerate(rows):
        address = index * 100 * MIB
        at_end[address] = (size * MIB, "private pool 7, small" if is_private else "small")
        if not was_there:
            events.append((began_ns, address, size * MIB, 1, True))
    segments = Segments(at_end=at_end, events=sorted(events))
    expected = [
        sum(
            size * MIB
            for began_ns, size, is_private, was_there in rows
            if is_private and (was_there or began_ns <= time_ns)
        )
        for time_ns in times_ns
    ]
    assert segments.private_bytes(np.array(times_ns)).tolist() == expected
