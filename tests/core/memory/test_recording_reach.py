"""Gaps of an imported snapshot are reported: older blocks, other devices."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sysbench.core.errors import DamagedFileError
from sysbench.core.memory.foreign import describe_snapshot
from sysbench.core.memory.snapshot_reading import snapshot_from
from sysbench.core.tables.memory_tables import (
    devices_table,
    devices_text,
    largest_table,
    memory_table,
    origins_table,
    recording_notes,
)


def moved(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "time_us": address}


def segment(device: int, address: int, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"device": device, "address": address, "total_size": 2**21, "blocks": list(blocks)}


def held(address: int, size: int) -> dict[str, Any]:
    return {
        "address": address,
        "size": -(-size // 512) * 512,
        "requested_size": size,
        "state": "active_allocated",
    }


WRAPPED = [
    moved("free_completed", 512, 700),  # taken before the ring's first event
    moved("alloc", 4096, 3000),
    moved("free_completed", 4096, 3000),
]


def test_blocks_older_than_the_recording_are_counted_and_are_its_baseline() -> None:
    snapshot = {"segments": [segment(0, 512, held(8192, 100))], "device_traces": [WRAPPED]}
    memory = describe_snapshot(snapshot_from(snapshot))
    assert memory.baseline_blocks == 2  # one freed since, one that no event mentions
    assert memory.baseline_bytes == 1024 + 512
    assert memory.peak_allocated_bytes == 3072 + 512
    (note,) = recording_notes(memory)
    assert note.startswith("2 blocks are older than the recording: 1.50 KiB")
    assert "its event buffer overflowed" in note
    assert ("baseline_blocks", 2, "") in memory_table(memory).rows
    assert memory.devices == []


def test_a_recording_from_the_start_needs_no_note() -> None:
    snapshot = {"segments": [segment(0, 4096)], "device_traces": [WRAPPED[1:]]}
    assert recording_notes(describe_snapshot(snapshot_from(snapshot))) == []


def test_dropped_events_are_said() -> None:
    snapshot = {"segments": [segment(0, 4096)], "device_traces": [WRAPPED[1:]]}
    memory = describe_snapshot(snapshot_from(snapshot))
    wrapped = msgspec.structs.replace(memory, events_dropped=1234)
    assert recording_notes(wrapped) == ["the event buffer overflowed: the first 1,234 are lost"]


def test_requested_and_block_bytes_are_two_columns() -> None:
    snapshot = {"segments": [], "device_traces": [[moved("alloc", 512, 9000)]]}
    memory = describe_snapshot(snapshot_from(snapshot))
    for table in (largest_table(memory), origins_table(memory)):
        assert table.column("bytes") == [9000]
        assert table.column("block_bytes") == [9216]
    assert sum(row.block_bytes or 0 for row in memory.origins) == memory.peak_allocated_bytes


def test_another_device_can_be_chosen() -> None:
    other = [moved("alloc", 512, 9000)]
    raw = {"segments": [], "device_traces": [WRAPPED, other, []]}
    memory = describe_snapshot(snapshot_from(raw), 1)
    assert memory.peak_allocated_bytes == 9216
    assert devices_table(memory).column("is_described") == [False, True]
    assert devices_text(memory) == ["device 1", "other device: 0 (3.00 KiB)"]
    with pytest.raises(DamagedFileError, match="no device 2 in the snapshot, which has 0, 1"):
        describe_snapshot(snapshot_from(raw), 2)


def test_each_of_several_devices_has_its_own_peak() -> None:
    other = [moved("alloc", 512, 9000)]
    snapshot = {
        "segments": [segment(1, 512, held(512, 9000)), segment(3, 0)],
        "device_traces": [WRAPPED, other, [], []],
    }
    memory = describe_snapshot(snapshot_from(snapshot))
    table = devices_table(memory)
    assert table.column("device") == [0, 1, 3]
    assert table.column("peak_allocated_bytes") == [3072, 9216, 0]
    assert table.column("end_allocated_bytes") == [0, 9216, 0]
    assert table.column("is_described") == [False, True, False]  # the one with the most bytes
    assert memory.device == 1
    assert memory.peak_allocated_bytes == 9216
    assert devices_text(memory) == ["device 1", "other devices: 0 (3.00 KiB), 3 (0 B)"]
