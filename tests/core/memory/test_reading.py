"""Reading allocator snapshots: the documented form, a real one, and hostile files."""

from __future__ import annotations

import json
import os
import pickle
import shlex
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.errors import DamagedFileError
from sysbench.core.memory.foreign import describe_snapshot
from sysbench.core.memory.history import pair
from sysbench.core.memory.snapshot_reading import Snapshot, read_snapshot, snapshot_from

SECOND_US = 1_000_000


def event(action: str, address: int, size: int, time_us: int = 0, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "time_us": time_us, **more}


def segment(*blocks: dict[str, Any], total: int = 2**21, device: int = 0) -> dict[str, Any]:
    return {"device": device, "address": 4096, "total_size": total, "blocks": list(blocks)}


def block(address: int, size: int, requested: int, state: str) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": requested, "state": state}


def write(path: Path, content: object) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=4))
    return path


@pytest.fixture
def oracle(shared_data: Path) -> dict[str, Any]:
    path = shared_data / "snapshots" / "allocator_test.oracle.json"
    content: dict[str, Any] = json.loads(path.read_text())
    return content


class TestRealSnapshot:
    @pytest.fixture
    def snapshot(self, shared_data: Path) -> Snapshot:
        return read_snapshot(shared_data / "snapshots" / "allocator_test.pickle")

    def test_curve_equals_the_oracle_to_the_byte(
        self, snapshot: Snapshot, oracle: dict[str, Any]
    ) -> None:
        history = snapshot.history(oracle["device"])
        allocations = pair(history)
        curve = allocations.curve(allocations.bytes)
        assert len(history) == oracle["events"]
        assert curve[0] == oracle["baseline"]
        assert curve.max() == oracle["peak_bytes"]
        assert curve.max() - curve[0] == oracle["dynamic_peak"]
        assert curve.argmax() - 1 == oracle["peak_event"]
        assert curve[-1] == oracle["last_bytes"]
        assert history.time_ns[oracle["peak_event"]] // 1000 == oracle["peak_time_us"]

    def test_blocks_alive_at_the_peak(self, snapshot: Snapshot, oracle: dict[str, Any]) -> None:
        allocations = pair(snapshot.history(0))
        alive = allocations.alive_at(oracle["peak_event"] + 1)
        assert (allocations.born[alive] > 0).sum() == oracle["live_at_peak"]
        assert (allocations.born[alive] == 0).sum() == oracle["static_blocks"]

    def test_tables_of_a_snapshot_without_notes(
        self, snapshot: Snapshot, oracle: dict[str, Any]
    ) -> None:
        memory = describe_snapshot(snapshot)
        assert memory.baseline_bytes == oracle["static_block_bytes"]
        assert memory.peak_reserved_bytes == oracle["reserved_peak"]
        assert sum(row.bytes for row in memory.ledger) == memory.peak_allocated_bytes
        rows = {row.name: row.bytes for row in memory.ledger}
        assert rows["not attributed"] == oracle["dynamic_peak"]
        assert rows["there before the recording"] == oracle["static_requested_bytes"]
        largest = [(one.bytes, one.stack[0].split("/")[-1]) for one in memory.largest[:5]]
        assert largest == [(row[0], row[3]) for row in oracle["top5_dynamic_at_peak"]]


class TestForm:
    def test_only_allocations_and_completed_frees_count(self) -> None:
        trace = [
            event("segment_alloc", 0, 2**21),
            event("alloc", 8, 100, 10),
            event("free_requested", 8, 100, 11),
            event("free_completed", 8, 100, 12),
            event("snapshot", 0, 0, 13),
            {"action": "oom", "size": 5, "device_free": 3, "time_us": 14},
        ]
        history = snapshot_from({"segments": [], "device_traces": [trace]}).history(0)
        assert history.change.tolist() == [100, -100]
        assert [time // 1000 for time in history.time_ns.tolist()] == [10, 12]

    def test_of_an_event_that_changes_no_bytes_nothing_else_is_read(self) -> None:
        marks = [event("alloc", 8, 100, 10), {"action": "user_defined", "addr": "here"}]
        snapshot = snapshot_from({"segments": [], "device_traces": [marks]})
        assert snapshot.history(0).change.tolist() == [100]
        assert snapshot.events[0].address.tolist() == [8]
        with pytest.raises(DamagedFileError, match="addr"):
            snapshot_from({"segments": [], "device_traces": [[marks[0] | {"addr": "here"}]]})

    def test_survivors_are_the_blocks_in_use(self) -> None:
        blocks = [
            block(1024, 512, 300, "active_allocated"),
            block(2048, 512, 200, "active_pending_free"),
            block(4096, 512, 100, "inactive"),
            {"address": 8192, "size": 512, "state": "active_allocated"},  # no requested size
        ]
        snapshot = snapshot_from({"segments": [segment(*blocks)], "device_traces": [[]]})
        assert list(snapshot.history(0).survivors) == [(1024, 300), (2048, 200), (8192, 512)]

    def test_devices_are_separate(self) -> None:
        snapshot = snapshot_from(
            {
                "segments": [segment(block(1, 512, 9, "active_allocated"), device=1)],
                "device_traces": [[event("alloc", 1, 5)], [event("alloc", 2, 6)] * 2],
            }
        )
        assert snapshot.default_device == 1
        assert snapshot.history(0).change.tolist() == [5]
        assert list(snapshot.history(0).survivors) == []
        assert list(snapshot.history(1).survivors) == [(1, 9)]
        assert len(snapshot.history(7)) == 0

    def test_equal_stacks_are_one(self) -> None:
        frames = [{"filename": "model.py", "line": 3, "name": "forward"}]
        copied = [dict(frame) for frame in frames]
        trace = [
            event("alloc", 1, 5, frames=frames),
            event("alloc", 2, 5, frames=copied),
            event("alloc", 3, 5),
        ]
        history = snapshot_from({"segments": [], "device_traces": [trace]}).history(0)
        assert history.stack.tolist() == [0, 0, -1]
        assert list(history.stacks) == [(("model.py", 3, "forward"),)]

    def test_reserved_peak_counts_back_from_the_end(self) -> None:
        trace = [
            event("segment_map", 0, 2**21),
            event("segment_alloc", 2**21, 2**22),
            event("segment_free", 2**21, 2**22),
        ]
        snapshot = snapshot_from({"segments": [segment(total=2**21)], "device_traces": [trace]})
        assert snapshot.peak_reserved_bytes(0) == 2**21 + 2**22

    def test_an_empty_snapshot_has_an_empty_description(self) -> None:
        memory = describe_snapshot(snapshot_from({"segments": [], "device_traces": []}))
        assert memory.peak_allocated_bytes == 0
        assert memory.ledger == []

    def test_round_trip_through_protocol_4(self, tmp_path: Path) -> None:
        content = {"segments": [segment()], "device_traces": [[event("alloc", 1, 5)]]}
        snapshot = read_snapshot(write(tmp_path / "snapshot.pickle", content))
        assert snapshot.history(0).change.tolist() == [5]


class Payload:
    """Runs a shell command when it is unpickled without care."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (shlex.join(("touch", str(self.proof))),)


class TestHostileFiles:
    @pytest.mark.parametrize("nested", [False, True])
    def test_code_in_a_pickle_is_refused_and_never_runs(self, tmp_path: Path, nested: bool) -> None:
        proof = tmp_path / "executed"
        payload: object = Payload(proof)
        if nested:
            payload = {"segments": [], "device_traces": [[event("alloc", 1, 5, frames=[payload])]]}
        path = write(tmp_path / "evil.pickle", payload)
        with pytest.raises(DamagedFileError, match="system"):
            read_snapshot(path)
        assert not proof.exists()
        pickle.loads(path.read_bytes())  # it would have run
        assert proof.exists()

    @pytest.mark.parametrize(
        "content",
        [
            [],
            "text",
            {"segments": []},
            {"segments": 3, "device_traces": []},
            {"segments": [], "device_traces": [3]},
            {"segments": [], "device_traces": [[3]]},
            {"segments": [], "device_traces": [[event("alloc", -1, 5)]]},
            {"segments": [], "device_traces": [[event("alloc", 1, -5)]]},
            {"segments": [], "device_traces": [[event("alloc", 1, 2**80)]]},
            {"segments": [], "device_traces": [[event("alloc", 1, 5, time_us=2**80)]]},
            {"segments": [segment(block(2**90, 1, 1, "inactive"))], "device_traces": []},
            {"segments": [segment(block(1, 1, 1, "inactive")) | {"device": -1}]}
            | {"device_traces": [[]]},
            {"segments": [], "device_traces": [[]] * 10_000},
        ],
        ids=repr,
    )
    def test_another_form_is_refused(self, tmp_path: Path, content: object) -> None:
        with pytest.raises(DamagedFileError):
            read_snapshot(write(tmp_path / "odd.pickle", content))

    @pytest.mark.parametrize("frames", [3, ["text"], [{"line": "text"}]], ids=repr)
    def test_odd_stacks_are_refused(self, frames: object) -> None:
        trace = [event("alloc", 1, 5, frames=frames)]
        with pytest.raises(DamagedFileError):
            snapshot_from({"segments": [], "device_traces": [trace]}).history(0)

    def test_a_truncated_file_is_refused(self, tmp_path: Path) -> None:
        content = {"segments": [], "device_traces": [[event("alloc", 1, 5)] * 100]}
        path = write(tmp_path / "torn.pickle", content)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(DamagedFileError, match=r"torn\.pickle"):
            read_snapshot(path)

    @pytest.mark.parametrize("data", [b"", b"\x80\x04", b"PK\x03\x04", b"{}", b"\xff" * 50])
    def test_other_files_are_refused(self, tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "other"
        path.write_bytes(data)
        with pytest.raises(DamagedFileError):
            read_snapshot(path)

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DamagedFileError):
            read_snapshot(tmp_path / "absent.pickle")

    def test_lists_that_share_their_elements_do_not_multiply(self, tmp_path: Path) -> None:
        trace = [event("alloc", 1, 5)] * 10_000
        content = {"segments": [], "device_traces": [trace] * 10_000}  # 10^8 events in 100 kB
        path = write(tmp_path / "bomb.pickle", content)
        assert path.stat().st_size < 200_000
        with pytest.raises(DamagedFileError, match="more than"):
            read_snapshot(path)
