"""Block sizes inferred from recorded addresses, and the ledger checked against them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.findings.memory_rules import ledger_does_not_close
from sysbench.core.memory.allocations import Notes, PhaseMark
from sysbench.core.memory.block import Recording, describe_memory
from sysbench.core.memory.card import block_sizes, segments_of
from sysbench.core.memory.history import Counters
from sysbench.core.memory.snapshot_reading import snapshot_from
from sysbench.core.record.memory import RESIDUAL
from sysbench.core.record.record import LedgerRow, Memory
from sysbench.core.runs.run_directory import RunDirectory

MIB = 2**20
UNSPLIT = "blocks larger than asked for"
START_US = 1_800_000_000_000_000


class Allocator:
    """A best-fit allocator with torch's pools, roundings and splits. Unlike the replay it searches
    for a place itself, and never looks at its own events."""

    def __init__(self, *, expands: bool = False) -> None:
        self.expands = expands
        self.events: list[dict[str, Any]] = []
        self.segments: list[list[list[Any]]] = []  # of [address, size, requested or None]
        self.small: list[bool] = []

    def take(self, requested: int) -> int:
        rounded = max(512, (requested + 511) // 512 * 512)
        small = rounded <= MIB
        fitting = [
            (block[1], block[0], index, place)
            for index, segment in enumerate(self.segments)
            if self.small[index] == small
            for place, block in enumerate(segment)
            if block[2] is None and block[1] >= rounded
        ]
        if not fitting:
            self._grow(rounded, small)
            return self.take(requested)
        address: int
        _, address, index, place = min(fitting)
        block = self.segments[index][place]
        rest = block[1] - rounded
        if rest >= 512 if small or self.expands else rest > MIB:
            self.segments[index].insert(place + 1, [address + rounded, rest, None])
            block[1] = rounded
        block[2] = requested
        self._note("alloc", address, requested)
        return address

    def give_back(self, address: int) -> None:
        for segment in self.segments:
            for place, block in enumerate(segment):
                if block[0] == address and block[2] is not None:
                    self._note("free_completed", address, block[2])
                    block[2] = None
                    self._merge(segment, place + 1)
                    self._merge(segment, place)
                    return

    def _merge(self, segment: list[list[Any]], place: int) -> None:
        if 0 < place < len(segment) and segment[place - 1][2] is None and segment[place][2] is None:
            segment[place - 1][1] += segment.pop(place)[1]

    def _grow(self, rounded: int, small: bool) -> None:
        size = 2 * MIB if small else 20 * MIB
        if not small and rounded >= 10 * MIB:
            size = -(-rounded // (2 * MIB)) * 2 * MIB
        # Adjacent in address, across which nothing may merge.
        address = 2**40 + sum(sum(block[1] for block in segment) for segment in self.segments)
        if self.expands:
            address += len(self.segments) * 2**30
        self.segments.append([[address, size, None]])
        self.small.append(small)
        self._note("segment_map" if self.expands else "segment_alloc", address, size)

    def _note(self, action: str, address: int, size: int) -> None:
        at = START_US + 10 * len(self.events)
        self.events.append(
            {"action": action, "addr": address, "size": size, "time_us": at, "frames": []}
        )

    @property
    def in_use(self) -> int:
        """Bytes of the blocks that are handed out, as torch counts."""
        return sum(block[1] for segment in self.segments for block in segment if block[2])

    def snapshot(self) -> dict[str, Any]:
        return {
            "segments": [
                {
                    "address": segment[0][0],
                    "total_size": sum(block[1] for block in segment),
                    "device": 0,
                    "segment_type": "small" if small else "large",
                    "segment_pool_id": (0, 0),
                    "blocks": [
                        {
                            "address": address,
                            "size": size,
                            "requested_size": requested or 0,
                            "state": "active_allocated" if requested else "inactive",
                        }
                        for address, size, requested in segment
                    ],
                }
                for segment, small in zip(self.segments, self.small, strict=True)
            ],
            "device_traces": [list(self.events)],
        }


sizes = st.one_of(st.integers(1, 3 * MIB), st.integers(MIB + 1, 30 * MIB))


@given(st.lists(st.tuples(sizes, st.booleans(), st.integers(0, 50)), max_size=60), st.booleans())
def test_the_replay_counts_what_the_allocator_handed_out(
    requests: list[tuple[int, bool, int]], expands: bool
) -> None:
    allocator = Allocator(expands=expands)
    alive: list[int] = []
    counted = [0]
    for requested, frees, which in requests:
        alive.append(allocator.take(requested))
        counted.append(allocator.in_use)
        if frees:
            allocator.give_back(alive.pop(which % len(alive)))
            counted.append(allocator.in_use)
    raw = allocator.snapshot()
    sizes = block_sizes(raw, 0)
    assert sizes.missing == ""
    assert sizes.bytes is not None
    history = replace(snapshot_from(raw).history(0), block=sizes.bytes)
    memory = describe_memory(Recording(source="cuda-snapshot", history=history), Notes())
    assert memory.peak_allocated_bytes == max(counted)
    assert memory.end_allocated_bytes == counted[-1]


def steps(allocator: Allocator) -> Notes:
    """A build and two steps: the second takes a block with a rest too small to split off."""

    def mark(step: int, phase: str) -> PhaseMark:
        time_us = START_US + 10 * len(allocator.events) - 5
        return PhaseMark(time_us * 1000, step, phase)

    phases = [mark(-1, "build")]
    allocator.take(3 * MIB)
    phases.append(mark(-1, ""))
    for step, saved in enumerate((10 * MIB, 9 * MIB + 1000)):
        phases.append(mark(step, "forward"))
        address = allocator.take(saved)
        # After the first saved tensor, so that its place is that large in the second step too.
        wall = allocator.take(2 * MIB)
        phases.append(mark(step, "backward"))
        allocator.give_back(address)
        phases.append(mark(step, ""))
        if step:
            allocator.give_back(wall)
    return Notes(phases=phases)


def described(peak_bytes: int | None = None) -> Memory:
    """The memory block of `steps`, optionally with another counter of the peak."""
    allocator = Allocator()
    notes = steps(allocator)
    raw = allocator.snapshot()
    sizes = block_sizes(raw, 0)
    assert sizes.bytes is not None
    counted = 3 * MIB + 2 * MIB + 10 * MIB + 2 * MIB if peak_bytes is None else peak_bytes
    recording = Recording(
        source="cuda-snapshot",
        history=replace(snapshot_from(raw).history(0), block=sizes.bytes),
        counters=Counters(peak_allocated=counted),
        segments=segments_of(raw, 0),
    )
    return describe_memory(recording, notes)


def amounts(rows: list[LedgerRow]) -> dict[str, int]:
    return {row.name: row.bytes for row in rows}


def test_the_excess_of_a_block_is_computed_and_leaves_no_residual() -> None:
    memory = described()
    peak = amounts(memory.columns["peak"])
    assert peak[UNSPLIT] == 10 * MIB - (9 * MIB + 1024)
    assert peak["rounding to 512-byte blocks"] == 24
    assert (memory.residual_bytes, peak.get(RESIDUAL)) == (0, None)
    assert sum(peak.values()) == memory.peak_allocated_bytes


def test_the_end_of_the_forward_is_in_blocks_like_other_columns() -> None:
    memory = described()
    assert amounts(memory.columns["end of forward"]) == amounts(memory.columns["peak"])
    pools = {pool.name: pool for pool in memory.pools["end of forward"]}
    assert pools["large"].allocated_bytes == sum(amounts(memory.columns["peak"]).values())


@pytest.mark.parametrize("off", [MIB, -512])
def test_bytes_that_no_event_explains_stay_visible(off: int, tiny_run: RunDirectory) -> None:
    right, record = described(), tiny_run.record()
    memory = described(right.peak_allocated_bytes + off)
    assert memory.residual_bytes == off
    assert amounts(memory.ledger)[RESIDUAL] == off
    assert amounts(memory.ledger)[UNSPLIT] == amounts(right.ledger)[UNSPLIT]
    for block, is_reported in ((right, False), (memory, True)):
        finding = ledger_does_not_close(with_memory(record, block))
        assert (finding is not None) is is_reported
    assert finding is not None
    assert finding.numbers["residual_bytes"] == off
    assert ("less" if off < 0 else "more") in finding.why


def with_memory(record: Any, memory: Memory) -> Any:
    return msgspec.structs.replace(record, memory=memory)


def test_a_little_that_is_not_explained_is_no_finding(tiny_run: RunDirectory) -> None:
    memory = described(described().peak_allocated_bytes + 512)
    assert memory.residual_bytes == 512
    assert ledger_does_not_close(with_memory(tiny_run.record(), memory)) is None


class TestWhereTheReplayCannotKnow:
    @pytest.fixture
    def raw(self) -> dict[str, Any]:
        allocator = Allocator()
        steps(allocator)
        return allocator.snapshot()

    def test_an_allocator_with_other_rules_is_not_replayed(self, raw: dict[str, Any]) -> None:
        blocks = raw["segments"][0]["blocks"]
        taken = next(block for block in blocks if block["state"] != "inactive")
        taken["size"] += 512
        sizes = block_sizes(raw, 0)
        assert sizes.bytes is None
        assert "differ from the replayed" in sizes.missing

    def test_events_that_the_ring_dropped_are_a_reason(self, raw: dict[str, Any]) -> None:
        freed = next(e["addr"] for e in raw["device_traces"][0] if e["action"] == "free_completed")
        events = raw["device_traces"][0]
        first = next(n for n, event in enumerate(events) if event["addr"] == freed)
        raw["device_traces"][0] = events[:first] + events[first + 1 :]
        sizes = block_sizes(raw, 0)
        assert sizes.bytes is None
        assert sizes.missing

    def test_a_limit_to_splitting_is_followed(self) -> None:
        """With max_split_size a large block keeps all of its rest."""
        at = 2**40
        segment = {
            "address": at,
            "total_size": 40 * MIB,
            "blocks": [{"address": at, "size": 40 * MIB, "state": "active_allocated"}],
        }
        events = [
            {"action": "segment_alloc", "addr": at, "size": 40 * MIB},
            {"action": "alloc", "addr": at, "size": 30 * MIB},
        ]
        raw = {"segments": [segment], "device_traces": [events]}
        assert block_sizes(raw, 0).bytes is None
        limited = raw | {"allocator_settings": {"max_split_size": 20 * MIB}}
        found = block_sizes(limited, 0).bytes
        assert found is not None
        assert found.tolist() == [40 * MIB]


def test_the_blocks_of_a_real_snapshot_are_not_guessed(shared_data: Path) -> None:
    """Its ring begins late: 17 blocks and all segments are older than its events."""
    raw = pickle.loads((shared_data / "snapshots" / "allocator_test.pickle").read_bytes())
    sizes = block_sizes(raw, snapshot_from(raw).default_device)
    assert (sizes.bytes is None) == bool(sizes.missing)
