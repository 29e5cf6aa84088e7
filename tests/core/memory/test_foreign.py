"""Facts and owners in an imported snapshot or trace beyond its events."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.inspection.inspection import Inspection
from sysbench.core.inspection.reading import read_tables
from sysbench.core.memory.foreign import describe_snapshot
from sysbench.core.memory.snapshot_reading import read_snapshot, snapshot_from
from sysbench.core.record.record import Memory
from sysbench.core.tables.memory_tables import largest_alike_table, largest_table, memory_table

MIB = 2**20
NATIVE = [{"filename": "??", "line": 0, "name": f"torch::unwind::{n}"} for n in range(40)]


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


def taken(address: int, size: int, frames: list[dict[str, Any]], at: int = 2000) -> dict[str, Any]:
    return {"action": "alloc", "addr": address, "size": size, "time_us": at, "frames": frames}


def in_use(address: int, size: int, requested: int, **more: Any) -> dict[str, Any]:
    block = {"address": address, "size": size, "requested_size": requested}
    return block | {"state": "active_allocated"} | more


def described(events: list[dict[str, Any]], *blocks: dict[str, Any], **segment: Any) -> Memory:
    segments = [{"address": 0, "total_size": 64 * MIB, "blocks": list(blocks)} | segment]
    return describe_snapshot(
        snapshot_from({"segments": segments if blocks else [], "device_traces": [events]})
    )


def test_python_frames_are_found_under_any_number_of_native_ones() -> None:
    """As ``stacks="all"``, torch's default, records them: C++ first, Python between it."""
    adam = "/usr/lib/python3/dist-packages/torch/optim/adam.py"
    wrapper = frame("/usr/lib/python3/dist-packages/torch/optim/optimizer.py", 480, "wrapper")
    step = frame("/home/ann/train.py", 12, "main")
    stacks = [
        [*NATIVE, frame(adam, line, "_init_group"), NATIVE[0], wrapper, *NATIVE, step]
        for line in (139, 143)
    ]
    memory = described([taken(0, 3 * MIB, stacks[0]), taken(4 * MIB, 2 * MIB, stacks[1])])
    assert [(row.bytes, row.stack) for row in memory.origins] == [
        (3 * MIB, ["optim/adam.py:139 _init_group", "train.py:12 main"]),
        (2 * MIB, ["optim/adam.py:143 _init_group", "train.py:12 main"]),
    ]


def test_without_python_native_frames_are_what_there_is() -> None:
    memory = described([taken(0, MIB, NATIVE[:2])])
    assert [row.stack for row in memory.origins] == [
        ["??:0 torch::unwind::0", "??:0 torch::unwind::1"]
    ]


def test_blocks_in_use_have_the_bytes_that_the_file_says() -> None:
    """The allocator handed out 3 MiB for 2 MiB + 1, and 2 MiB that nobody's event mentions."""
    memory = described(
        [taken(0, 2 * MIB + 1, []), taken(8 * MIB, 700, [])],
        in_use(0, 3 * MIB, 2 * MIB + 1),
        in_use(8 * MIB, 1024, 700, state="active_awaiting_free"),
        in_use(16 * MIB, 2 * MIB, MIB, frames=[frame("old.py", 1, "load")]),
    )
    assert memory.peak_allocated_bytes == 5 * MIB + 1024
    assert memory.end_allocated_bytes == 5 * MIB  # torch counts what awaits its free no more
    assert memory.peak_requested_bytes == memory.end_requested_bytes == 3 * MIB + 701
    assert sum(row.bytes for row in memory.ledger) == memory.peak_allocated_bytes
    assert {(row.bytes, row.block_bytes, *row.stack) for row in memory.largest} == {
        (2 * MIB + 1, 3 * MIB),
        (700, 1024),
        (MIB, 2 * MIB, "old.py:1 load"),
    }
    rows = {row[0]: row[1] for row in memory_table(memory).rows}
    assert (rows["peak_requested_bytes"], rows["peak_allocated_bytes"]) == (
        3 * MIB + 701,
        5 * MIB + 1024,
    )


def test_contradicting_segments_and_blocks_are_reported() -> None:
    whole = described([], in_use(0, MIB, MIB), allocated_size=MIB)
    assert "allocated_size" not in whole.missing
    changed = described([], in_use(0, MIB, MIB), allocated_size=7 * MIB)
    assert changed.end_allocated_bytes == MIB
    assert "7.00 MiB" in changed.missing["allocated_size"]


def test_a_real_snapshot_of_torch_2_0_is_read_packed_as_it_is(shared_data: Path) -> None:
    path = shared_data / "more" / "yiyi_1.3b.pickle.gz"
    raw = pickle.loads(gzip.decompress(path.read_bytes()))
    memory = describe_snapshot(read_snapshot(path))
    assert memory.end_allocated_bytes == sum(one["allocated_size"] for one in raw["segments"])
    assert memory.end_requested_bytes == sum(one["requested_size"] for one in raw["segments"])
    assert memory.origins[0].stack[0].startswith("flexgen/pytorch_backend.py:195 allocate")
    largest = largest_table(memory)
    assert "born_ms" not in largest.columns  # its events have no times
    in_use = [
        block["size"]
        for segment in raw["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    count = len(in_use) + 1  # its one event frees a block
    assert len(set(largest.rows)) == len(largest.rows) < 40
    alike = largest_alike_table(memory, 8)
    for table in (largest, alike):
        assert sum(blocks for blocks in table.column("blocks") if isinstance(blocks, int)) == count
    assert len(alike.rows) == 9 and alike.column("stack")[-1] == "(smaller)"
    assert f"{count} allocations" in alike.title


def test_the_counters_of_a_real_gpu_trace_are_drawn(shared_data: Path) -> None:
    path = shared_data / "more" / "switch_moe_a.json.gz"
    counters = [
        event["args"]
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == 1
    ]
    found = read_tables(path, lambda *_: None).inspection
    memory = found.memory
    assert found.kernels is not None and found.kernels.source == "kernels"
    assert memory is not None and memory.source == "cuda-profiler"
    assert memory.peak_allocated_bytes == 23_111_038_976
    assert memory.peak_allocated_bytes == max(row["Total Allocated"] for row in counters)
    assert memory.end_allocated_bytes == counters[-1]["Total Allocated"]
    assert memory.residual_bytes == 0
    assert max(memory.timeline.live_bytes) == memory.peak_allocated_bytes
    assert sum(row.bytes for row in memory.ledger) == memory.peak_allocated_bytes


@pytest.mark.parametrize("bad", [{"Bytes": 2**70}, {"Total Allocated": "x"}, {"Device Id": []}])
def test_damaged_counters_leave_the_kernels_alone(tmp_path: Path, bad: dict[str, Any]) -> None:
    place = {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    args = {"Bytes": 512, "Addr": 1, "Device Type": 1, "Device Id": 0, "Total Allocated": 512}
    events = [
        place | {"cat": "kernel", "name": "k", "args": {"device": 0, "correlation": 1}},
        place | {"cat": "cpu_instant_event", "name": "[memory]", "ph": "i", "args": args | bad},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = read_tables(path, lambda *_: None).inspection
    assert found.memory is None and found.kernels is not None
    assert "is not a chrome trace" in found.missing["memory"]  # not that there are no requests


def test_the_timeline_of_a_snapshot_is_divided_by_the_frames_that_hold_the_most() -> None:
    """As one category it would be one block of one colour."""
    lines = [frame("/home/ann/model.py", line, "forward") for line in (10, 20)]
    events = [taken(at * MIB, MIB, [lines[at % 2]], 2000 + at) for at in range(6)]
    memory = described([*events, taken(9 * MIB, MIB, [], 2010)])
    curves = memory.timeline.categories
    assert {name: max(values) for name, values in curves.items() if any(values)} == {
        "model.py:10 forward": 3 * MIB,
        "model.py:20 forward": 3 * MIB,
        "not attributed": MIB,
    }
    assert [row.name for row in memory.ledger if row.bytes] == ["not attributed"]

    # Of many lines no few hold half: then by function.
    scattered = [
        taken(line * MIB, MIB, [frame("/home/ann/model.py", line, "ab"[line % 2])], 2000 + line)
        for line in range(40)
    ]
    timeline = described(scattered).timeline
    held = {name for name, values in timeline.categories.items() if any(values)}
    assert held == {"model.py a", "model.py b"}
    for at, live in enumerate(timeline.live_bytes):
        assert sum(values[at] for values in timeline.categories.values()) == live


def counted_trace(path: Path, requests: list[tuple[int, int, int]]) -> Inspection:
    """A kernel and requests for memory: address, bytes and the counter after each."""
    place = {"pid": 1, "tid": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 5}
    kernel |= {"args": {"device": 0, "stream": 7, "correlation": 1}}
    events = [place | kernel]
    for number, (address, size, total) in enumerate(requests):
        args = {"Bytes": size, "Addr": address, "Device Type": 1, "Device Id": 0}
        args |= {"Total Allocated": total, "Total Reserved": 2**22}
        instant = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 10 + number}
        events.append(place | instant | {"args": args})
    path.write_text(json.dumps({"traceEvents": events}))
    return read_tables(path, lambda *_: None).inspection


SOUND = [(1, MIB, 3 * MIB), (2, 512, 3 * MIB + 512), (1, -MIB, 2 * MIB + 512)]


@pytest.mark.parametrize(
    "requests",
    [
        [(1, MIB, 4096)],
        [*SOUND, (3, MIB, 2 * MIB + 512)],  # not counted
        [SOUND[0], SOUND[2]],  # lost
        [SOUND[2], SOUND[0], SOUND[1]],  # reordered
    ],
)
def test_counters_that_contradict_the_requests_are_left_out(
    requests: list[tuple[int, int, int]], tmp_path: Path
) -> None:
    memory = counted_trace(tmp_path / "sound.json", SOUND).memory
    assert memory is not None and memory.residual_bytes == 0
    assert memory.peak_allocated_bytes == 3 * MIB + 512
    found = counted_trace(tmp_path / "trace.json", requests)
    (doubt,) = (finding for finding in found.findings if finding.rule == "health-counters")
    assert doubt.verdict.startswith("The file's counters of memory contradict its requests")
    memory = found.memory
    assert memory is not None and memory.residual_bytes is None
    assert sum(row.bytes for row in memory.ledger) == memory.peak_allocated_bytes
    assert sum(row.bytes for row in memory.columns["end"]) == memory.end_allocated_bytes
    assert max(memory.timeline.live_bytes) == memory.peak_allocated_bytes
    assert min(row.bytes for row in memory.ledger) >= 0
    assert memory.peak_reserved_bytes is None


@pytest.mark.parametrize("total", [2**51, 2**63, 10**30])
def test_a_counter_above_any_memory_leaves_the_kernels(total: int, tmp_path: Path) -> None:
    found = counted_trace(tmp_path / "trace.json", [(1, MIB, total)])
    assert found.kernels is not None and found.kernels.rows[0].name == "k"
    (doubt,) = (finding for finding in found.findings if finding.rule == "health-memory")
    assert doubt.verdict == (
        "The kernels were read, the memory requests were not: a number of bytes is larger than "
        "any memory."
    )
