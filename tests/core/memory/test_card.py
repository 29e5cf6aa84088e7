"""From allocated bytes to the driver's figure, at every instant with a reading."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from sysbench.core.errors import DamagedFileError
from sysbench.core.memory.allocations import Notes, Tag
from sysbench.core.memory.block import Recording, describe_memory
from sysbench.core.memory.card import (
    GIVEN_BACK,
    CardReading,
    Segments,
    card_rows,
    segments_of,
)
from sysbench.core.memory.history import Counters
from sysbench.core.memory.snapshot_reading import snapshot_from
from sysbench.core.record.memory import Pool
from sysbench.core.record.record import LedgerRow, Memory
from tests.core.memory.two_steps import START_US, at, phases

MIB = 2**20
SMALL, LARGE = 2 * MIB, 20 * MIB


def amounts(rows: list[LedgerRow]) -> dict[str, int]:
    return {row.name: row.bytes for row in rows}


class TestRows:
    def test_on_the_cpu_the_rest_is_the_process_itself(self) -> None:
        assert amounts(card_rows(300, CardReading(used=1000))) == {
            "allocated": 300,
            "interpreter, libraries, recording": 700,
        }

    def test_nothing_is_said_of_an_unknown_total(self) -> None:
        assert card_rows(300, CardReading()) == []

    def test_slack_is_split_by_pool(self) -> None:
        pools = [Pool("large", 400, 250, 150, 100), Pool("small", 100, 60, 40, 40)]
        reading = CardReading(used=1000, reserved=500, process=700, others=200)
        assert amounts(card_rows(310, reading, pools)) == {
            "allocated": 310,
            "slack, large": 150,
            "slack, small": 40,
            "context and libraries": 200,
            "other processes": 200,
            "residual": 100,
        }

    def test_blocks_larger_than_asked_for_are_not_slack_twice(self) -> None:
        pools = [Pool("large", 400, 250, 150, 100), Pool("small", 100, 60, 40, 40)]
        rows = amounts(card_rows(330, CardReading(used=1000, reserved=500), pools))
        assert rows["slack, large"] == 130
        assert sum(rows.values()) == 1000

    def test_a_reading_is_carried_to_a_time_when_the_allocator_held_less(self) -> None:
        reading = CardReading(used=1000, reserved=500, process=700, others=200)
        earlier = reading.with_reserved(400)
        assert (earlier.used, earlier.reserved, earlier.process) == (900, 400, 600)
        assert amounts(card_rows(300, earlier))["context and libraries"] == 200

    def test_the_cpu_has_nothing_reserved_to_carry(self) -> None:
        reading = CardReading(used=1000)
        assert reading.with_reserved(400) == reading


class TestSegments:
    """A small segment from the start; a large one, two mapped ranges and one given back."""

    @pytest.fixture
    def segments(self) -> Segments:
        return Segments(
            at_end={
                0: (SMALL, "small"),
                100 * MIB: (LARGE, "large"),
                200 * MIB: (2 * LARGE, "large"),
            },
            events=[
                (10, 100 * MIB, LARGE, 1, True),
                (20, 200 * MIB, LARGE, 1, False),
                (30, 300 * MIB, LARGE, 1, True),
                (40, 200 * MIB + LARGE, LARGE, 1, False),
                (50, 300 * MIB, LARGE, -1, True),
            ],
        )

    @pytest.mark.parametrize(
        ("time_ns", "held"),
        [
            (0, SMALL),
            (10, SMALL + LARGE),
            (30, SMALL + 3 * LARGE),
            (40, SMALL + 4 * LARGE),
            (60, SMALL + 3 * LARGE),
        ],
    )
    def test_what_was_held_is_exact_at_every_time(
        self, segments: Segments, time_ns: int, held: int
    ) -> None:
        nothing = np.array([], dtype=np.int64)
        assert segments.reserved_bytes(time_ns) == held
        pools = segments.pools(time_ns, nothing, nothing)
        assert sum(pool.reserved_bytes for pool in pools) == held
        assert all(pool.free_bytes == pool.reserved_bytes for pool in pools)

    def test_free_pieces_lie_between_blocks_and_do_not_span_segments(
        self, segments: Segments
    ) -> None:
        address = np.array([200 * MIB + 8 * MIB, 0, 100 * MIB])
        size = np.array([4 * MIB, MIB, LARGE])
        large, small = segments.pools(60, address, size)
        assert small == Pool("small", SMALL, MIB, MIB, MIB)
        assert (large.reserved_bytes, large.allocated_bytes) == (3 * LARGE, LARGE + 4 * MIB)
        assert large.free_bytes == 2 * LARGE - 4 * MIB
        # Two mapped ranges are one piece; the first 8 MiB are another.
        assert large.largest_free_bytes == 2 * LARGE - 12 * MIB

    def test_of_what_was_given_back_since_the_pool_is_not_known(self, segments: Segments) -> None:
        nothing = np.array([], dtype=np.int64)
        pools = {pool.name: pool.reserved_bytes for pool in segments.pools(30, nothing, nothing)}
        assert pools == {"small": SMALL, "large": 2 * LARGE, GIVEN_BACK: LARGE}

    def test_adjacent_addresses_are_two_segments(self) -> None:
        segments = Segments(at_end={0: (LARGE, "large"), LARGE: (LARGE, "large")}, events=[])
        nothing = np.array([], dtype=np.int64)
        assert segments.pools(0, nothing, nothing)[0].largest_free_bytes == LARGE

    def test_private_pools_have_their_number(self) -> None:
        raw = {"segments": [segment(0, LARGE, segment_pool_id=(0, 3))], "device_traces": []}
        assert segments_of(raw, 0).at_end == {0: (LARGE, "private pool 3, large")}

    def test_another_form_of_snapshot_is_refused(self) -> None:
        with pytest.raises(DamagedFileError, match="not a memory snapshot"):
            segments_of({"segments": [{"address": "x"}]}, 0)


def segment(address: int, size: int, **changes: object) -> dict[str, object]:
    kind = "small" if size == SMALL else "large"
    return {
        "address": address,
        "total_size": size,
        "device": 0,
        "segment_type": kind,
        "segment_pool_id": (0, 0),
        "blocks": [],
        **changes,
    }


def event(at: int, action: str, address: int, size: int) -> dict[str, object]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "time_us": START_US + at,
        "frames": [],
    }


WEIGHT, STATE, SAVED, WORKSPACE = (100 * MIB + n * 4 * MIB for n in range(4))


def snapshot() -> dict[str, object]:
    """A build and two steps: state and a workspace stay from the first, activations come and go."""
    trace = [
        event(10, "segment_alloc", 100 * MIB, LARGE),
        event(11, "alloc", WEIGHT, 3 * MIB),
        event(110, "alloc", SAVED, 2 * MIB),
        event(120, "alloc", WORKSPACE, MIB),
        event(150, "free_completed", SAVED, 2 * MIB),
        event(160, "alloc", STATE, 4 * MIB),
        event(210, "alloc", SAVED, 2 * MIB),
        event(220, "segment_alloc", 0, SMALL),
        event(221, "alloc", 0, 1000),
        event(230, "free_completed", 0, 1000),
        event(250, "free_completed", SAVED, 2 * MIB),
        event(400, "free_completed", WORKSPACE, MIB),
    ]
    segments = [segment(100 * MIB, LARGE), segment(0, SMALL)]
    return {"segments": segments, "device_traces": [trace]}


def notes() -> Notes:
    return Notes(
        phases=phases(),
        tags=[
            Tag(at(20), WEIGHT, "parameters", "head"),
            Tag(at(112), SAVED, "activations", "head"),
            Tag(at(165), STATE, "optimizer state", "head"),
            Tag(at(212), SAVED, "activations", "head"),
        ],
        released_ns=at(390),
    )


@pytest.fixture
def memory() -> Memory:
    """Memory of a device of 1 GiB, with 100 MiB for this process and 50 for another one."""
    raw = snapshot()

    def reading(reserved: int, allocated: int) -> CardReading:
        return CardReading(
            used=reserved + 152 * MIB,
            allocated=allocated,
            reserved=reserved,
            process=reserved + 100 * MIB,
            others=50 * MIB,
        )

    readings = {
        "after build": reading(LARGE, 3 * MIB),
        "first step": reading(LARGE, 8 * MIB),
        "after warm-up": reading(LARGE, 8 * MIB),
        "steady end": reading(LARGE + SMALL, 8 * MIB),
    }
    recording = Recording(
        source="cuda-snapshot",
        history=snapshot_from(raw).history(0),
        counters=Counters(peak_allocated=11 * MIB, peak_reserved=LARGE + SMALL),
        readings=readings,
        segments=segments_of(raw, 0),
    )
    return describe_memory(recording, notes())


INSTANTS = ["after build", "first step", "after warm-up", "end of forward", "peak", "steady end"]


def test_every_instant_has_a_ledger_a_card_and_pools(memory: Memory) -> None:
    assert list(memory.columns) == list(memory.card_columns) == list(memory.pools) == INSTANTS


def test_every_card_goes_from_its_ledger_to_what_the_driver_said(memory: Memory) -> None:
    for name, card in memory.card_columns.items():
        rows = amounts(card)
        assert rows["allocated"] == sum(row.bytes for row in memory.columns[name])
        slack = sum(count for row, count in rows.items() if row.startswith("slack"))
        held = sum(pool.reserved_bytes for pool in memory.pools[name])
        assert rows["allocated"] + slack == held
        assert rows["context and libraries"] == 100 * MIB
        assert rows["other processes"] == 50 * MIB
        assert rows["residual"] == 2 * MIB
    assert memory.driver_used_bytes == sum(row.bytes for row in memory.card)
    assert memory.card == memory.card_columns["peak"]


def test_the_card_of_a_peak_has_what_the_allocator_held_then(memory: Memory) -> None:
    assert sum(amounts(memory.card_columns["end of forward"]).values()) == (
        LARGE + SMALL + 152 * MIB
    )
    assert sum(amounts(memory.card_columns["first step"]).values()) == LARGE + 152 * MIB
    assert memory.driver_used_bytes == LARGE + SMALL + 152 * MIB


def test_fragmentation_is_reported_at_the_peak(memory: Memory) -> None:
    large, small = memory.pools["peak"]
    assert (small.name, small.free_bytes) == ("small", SMALL - 1024)
    assert large.free_bytes == LARGE - 10 * MIB
    # After the weights 1 MiB, after the saved tensor 2, after the workspace the rest.
    assert large.largest_free_bytes == LARGE - 13 * MIB


def test_what_the_libraries_gave_back_was_their_workspace(memory: Memory) -> None:
    end = amounts(memory.columns["steady end"])
    assert end["workspaces"] == MIB
    assert end["optimizer state"] == 4 * MIB
    assert "kept between steps" not in end


def test_without_that_it_is_only_kept() -> None:
    raw = snapshot()
    recording = Recording(source="cuda-snapshot", history=snapshot_from(raw).history(0))
    untold = notes()
    untold = Notes(phases=untold.phases, modules=untold.modules, tags=untold.tags)
    end = amounts(describe_memory(recording, untold).columns["steady end"])
    assert end["kept between steps"] == MIB
    assert "workspaces" not in end


def test_what_the_counters_have_and_no_event_explains_is_the_residual(memory: Memory) -> None:
    assert amounts(memory.columns["peak"])["residual"] == memory.residual_bytes == MIB - 1024
    assert amounts(memory.columns["steady end"])["residual"] == 0


def test_the_segments_of_a_real_snapshot_are_what_it_says_it_holds(shared_data: Path) -> None:
    raw = pickle.loads((shared_data / "snapshots" / "allocator_test.pickle").read_bytes())
    device = snapshot_from(raw).default_device
    segments = segments_of(raw, device)
    own = [one for one in raw["segments"] if one["device"] == device]
    assert segments.reserved_bytes(2**62) == sum(one["total_size"] for one in own)
    blocks = [
        (block["address"], block["size"])
        for one in own
        for block in one["blocks"]
        if block["state"] != "inactive"
    ]
    address, size = np.array(blocks, dtype=np.int64).reshape(-1, 2).T
    pools = segments.pools(2**62, address, size)
    assert sum(pool.reserved_bytes for pool in pools) == segments.reserved_bytes(2**62)
    assert sum(pool.allocated_bytes for pool in pools) == sum(size) > 0
    assert {pool.name for pool in pools} == {one["segment_type"] for one in own}
    assert max(pool.largest_free_bytes for pool in pools) <= max(one["total_size"] for one in own)
