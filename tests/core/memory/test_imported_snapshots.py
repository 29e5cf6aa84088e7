"""What an imported snapshot is said to be: its device, its history, its annotations, its holes."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.compare.difference import memory_difference_tree
from sysbench.core.errors import DamagedFileError
from sysbench.core.inspection.inspection import Inspection, encode_inspection
from sysbench.core.inspection.ranks_folder import FolderDecoding
from sysbench.core.inspection.reading import read_tables
from sysbench.core.memory.foreign import describe_snapshot
from sysbench.core.memory.peak_difference import memory_difference
from sysbench.core.memory.snapshot_reading import snapshot_from
from sysbench.core.record.record import Memory
from sysbench.core.tables.memory_tables import (
    largest_alike_table,
    largest_table,
    ledger_table,
    memory_table,
    origins_table,
    recording_notes,
)
from sysbench.core.tables.overview import overview_text
from sysbench.core.tables.ranks_tables import rank_memory_table, ranks_notes

MIB = 2**20
BASE = 1 << 40


def frames(file: str, line: int, name: str = "forward") -> list[dict[str, Any]]:
    return [{"filename": f"/work/{file}", "line": line, "name": name}]


def block(address: int, size: int, **more: Any) -> dict[str, Any]:
    found = {"address": address, "size": size, "requested_size": size}
    return found | {"state": "active_allocated", "frames": []} | more


def segment(*blocks: dict[str, Any], device: int = 0, total: int = 64 * MIB) -> dict[str, Any]:
    size = sum(row["size"] for row in blocks if row["state"] == "active_allocated")
    found = {"device": device, "address": BASE, "total_size": total, "allocated_size": size}
    return found | {"segment_type": "large", "stream": 0, "blocks": list(blocks)}


def event(action: str, address: int, size: int, at: int, **more: Any) -> dict[str, Any]:
    moved = {"action": action, "addr": address, "size": size, "time_us": at, "stream": 0}
    return moved | {"frames": []} | more


def mark(stage: str, name: str, at: int, **more: Any) -> dict[str, Any]:
    return {"stage": stage, "name": name, "time_us": at, "device": 0} | more


def inspected_as(path: Path, content: object) -> Inspection:
    path.write_bytes(pickle.dumps(content))
    return read_tables(path, lambda *_: None).inspection


def memory_of(path: Path, content: object) -> Memory:
    memory = inspected_as(path / "snapshot.pickle", content).memory
    assert memory is not None
    return memory


def state(device: int, *blocks: dict[str, Any]) -> dict[str, Any]:
    """All memory is on one device, and nothing was recorded."""
    return {"segments": [segment(*blocks, device=device)], "device_traces": [[]] * 4}


@pytest.mark.parametrize("events", [0, 3])
def test_the_device_with_the_most_bytes_is_shown_and_named(tmp_path: Path, events: int) -> None:
    content = state(2, block(BASE, 37 * MIB))
    content["device_traces"] = [[event("alloc", 9, 512, at) for at in range(events)], [], [], []]
    inspection = inspected_as(tmp_path / "s.pickle", content)
    memory = inspection.memory
    assert memory is not None and memory.device == 2
    assert (memory.end_allocated_bytes, memory.peak_reserved_bytes) == (37 * MIB, 64 * MIB)
    text = overview_text(inspection.as_record(), 100)
    assert text.startswith("37.0 MiB allocated on device 2")
    assert ("other device: 0" in text) == bool(events)
    assert ("device", 2, "") in memory_table(memory).rows
    chosen = read_tables(tmp_path / "s.pickle", lambda *_: None, device=2).inspection.memory
    assert chosen == memory


def test_the_device_that_failed_last_is_shown() -> None:
    failed = [[event("oom", 0, MIB, at=9)], [event("oom", 0, MIB, at=12)], []]
    failed[2] = [event("alloc", 1, 99 * MIB, 1)]
    for order in itertools.permutations(range(3)):
        raw = {"segments": [], "device_traces": [failed[place] for place in order]}
        assert describe_snapshot(snapshot_from(raw)).device == order.index(1)


def test_what_was_alive_when_memory_ran_out_is_shown_and_not_the_peak(tmp_path: Path) -> None:
    events = [event("alloc", BASE, 50 * MIB, 1), event("alloc", BASE + 64 * MIB, 40 * MIB, 2)]
    events += [event("free_completed", BASE, 50 * MIB, 3), event("oom", 0, 90 * MIB, 4)]
    content = {"segments": [], "device_traces": [events]}
    memory = memory_of(tmp_path, content)
    assert (memory.peak_allocated_bytes, memory.origins[0].bytes) == (90 * MIB, 90 * MIB)
    alike, stacks = largest_alike_table(memory), origins_table(memory)
    assert alike.title == "Largest of 1 allocation alive when memory ran out, by size and place"
    assert stacks.title.startswith("Alive when memory ran out, by category")
    assert alike.column("sum_bytes") == stacks.column("bytes") == [40 * MIB]
    assert largest_table(memory).column("bytes") == [40 * MIB]
    at_peak = memory_of(tmp_path, content | {"device_traces": [events[:-1]]})
    assert largest_alike_table(at_peak).title.endswith("alive at the peak, by size and place")


def test_a_state_without_a_history_is_not_called_a_peak(tmp_path: Path) -> None:
    many = [block(BASE + at * MIB, MIB, frames=frames("cache.py", 9)) for at in range(70)]
    few = [block(BASE + (90 + 3 * at) * MIB, 3 * MIB, frames=frames("m.py", 7)) for at in range(15)]
    inspection = inspected_as(tmp_path / "s.pickle", state(0, *few, *many))
    memory = inspection.memory
    assert memory is not None and memory.is_state
    (note,) = recording_notes(memory)
    assert note == (
        "nothing was recorded: this is the state when the snapshot was taken, and its peak is "
        "unknown"
    )
    rows = {row[0]: row[1] for row in memory_table(memory).rows}
    assert rows["peak_allocated_bytes"] is rows["peak_reserved_bytes"] is None
    assert rows["baseline_blocks"] is None
    assert rows["end_reserved_bytes"] == 64 * MIB
    assert rows["end_allocated_bytes"] == 115 * MIB
    titles = [table.title for table in (ledger_table(memory), origins_table(memory))]
    texts = [*titles, overview_text(inspection.as_record(), 100)]
    assert all("at the peak" not in text and "of the peak" not in text for text in texts)
    assert "61 % of the allocated bytes is work/cache.py:9 forward: 70.0 MiB" in texts[-1]

    largest = largest_alike_table(memory)
    assert largest.title.startswith("Largest of 85 allocations alive when the snapshot was taken")
    assert largest.column("blocks") == [70, 15]
    assert largest.column("sum_bytes") == [70 * MIB, 45 * MIB]
    # Without owners the memory of the overview and of the timeline is that of lines of code.
    assert {name: curve[0] for name, curve in memory.timeline.categories.items() if curve[0]} == {
        "work/cache.py:9 forward": 70 * MIB,
        "work/m.py:7 forward": 45 * MIB,
    }


@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=120), most=st.integers(1, 60))
def test_groups_of_all_blocks_add_up_wherever_they_are_cut(sizes: list[int], most: int) -> None:
    starts = itertools.accumulate(sizes, initial=0)
    blocks = [
        block(BASE + start * 512, size * 512, frames=frames("m.py", size % 7))
        for start, size in zip(starts, sizes, strict=False)
    ]
    memory = describe_snapshot(snapshot_from({"segments": [segment(*blocks)]}))
    for table in (largest_alike_table(memory), largest_alike_table(memory, most)):
        counts, sums = table.column("blocks"), table.column("sum_bytes")
        assert sum(count for count in counts if isinstance(count, int)) == len(sizes)
        assert sum(size for size in sums if isinstance(size, int)) == 512 * sum(sizes)
    assert len(largest_alike_table(memory, most).rows) <= most + 1


def test_a_list_of_segments_and_a_snapshot_without_traces_are_states(tmp_path: Path) -> None:
    """What `torch.cuda.memory_snapshot()` returns."""
    rows = [segment(block(BASE, 11 * MIB)), segment(block(BASE * 2, 5 * MIB), total=8 * MIB)]
    for content in (rows, {"segments": rows}):
        memory = memory_of(tmp_path, content)
        assert memory.is_state
        assert memory.end_allocated_bytes == 16 * MIB
        assert memory.peak_reserved_bytes == 72 * MIB


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "the list of segments is empty: the process had reserved no GPU memory"),
        ({"segments": []}, "its segments are empty: the process had reserved no GPU memory"),
        ([1, 2], "it is a list, but not of segments with blocks"),
        ({"weights": [1]}, "it has neither segments nor device_traces"),
        ("text", "it contains a str and not a dictionary"),
    ],
)
def test_other_content_is_refused_by_its_form(tmp_path: Path, content: object, words: str) -> None:
    with pytest.raises(DamagedFileError, match=words):
        inspected_as(tmp_path / "s.pickle", content)


def test_an_empty_snapshot_has_its_own_sentence(tmp_path: Path) -> None:
    inspection = inspected_as(tmp_path / "s.pickle", {"segments": [], "device_traces": [[], []]})
    (found,) = inspection.findings
    assert found.verdict == (
        "The snapshot is empty: no memory was reserved and nothing was recorded."
    )
    assert inspection.memory is None and inspection.missing["memory"] == "the snapshot is empty"


TRAIN = {
    "segments": [segment(block(BASE, 30 * MIB), total=128 * MIB)],
    "device_traces": [
        [
            event("alloc", BASE, 30 * MIB, 11, user_metadata="layer0"),
            event("alloc", BASE + 30 * MIB, 40 * MIB, 25, user_metadata={"layer": 1, "kind": "m"}),
            event("free_completed", BASE + 30 * MIB, 40 * MIB, 35),
        ]
    ],
    "external_annotations": [
        mark("START", "ProfilerStep#7", 9),
        mark("START", "forward", 10),
        mark("END", "forward", 20),
        mark("START", "Optimizer.step#SGD.step", 22),
        mark("END", "Optimizer.step#SGD.step", 40),
        mark("END", "ProfilerStep#7", 41),
    ],
}


def test_annotations_give_the_place_of_the_peak_and_of_each_request(tmp_path: Path) -> None:
    inspection = inspected_as(tmp_path / "s.pickle", TRAIN)
    memory = inspection.memory
    assert memory is not None
    assert memory.peak_phase == "Optimizer.step#SGD.step of ProfilerStep#7"
    assert [(row.bytes, row.phase, row.metadata) for row in memory.origins] == [
        (40 * MIB, "Optimizer.step#SGD.step", "layer: 1, kind: m"),
        (30 * MIB, "forward", "layer0"),
    ]
    assert ", in Optimizer.step#SGD.step of ProfilerStep#7" in overview_text(
        inspection.as_record(), 200
    )
    assert "peak_phase" not in {key for key, why in memory.missing.items() if "annotations" in why}


@pytest.mark.parametrize(
    ("marks", "place"),
    [
        # Two iterations; the peak of 25 µs lies between the annotations of the second.
        (
            [("zero_grad", 1, 2), ("step", 5, 6), ("zero_grad", 12, 13), ("step", 30, 31)],
            "between zero_grad 2 of 2 and step 2 of 2",
        ),
        ([("step", 30, 31)], "before step"),
        ([("load", 1, 2)], "after load"),
        ([("forward", 20, None)], "forward"),
        ([("forward", None, 90)], "forward"),
        ([("step", 2, 50), ("step", 3, 40)], "step of step 1 of 2"),
    ],
)
def test_a_peak_outside_all_annotations_is_between_two(
    tmp_path: Path, marks: list[tuple[str, int | None, int | None]], place: str
) -> None:
    pairs = [
        (stage, name, at)
        for name, *ends in marks
        for stage, at in zip(("START", "END"), ends, strict=True)
    ]
    rows = [mark(stage, name, at) for stage, name, at in pairs if at is not None]
    rows.sort(key=lambda row: row["time_us"])
    memory = memory_of(tmp_path, TRAIN | {"external_annotations": rows})
    assert memory.peak_phase == place


def test_text_that_is_no_utf_8_is_escaped(tmp_path: Path) -> None:
    """A pickle can contain lone surrogates, as in the name of a file that is not UTF-8."""
    trace = [event("alloc", BASE, MIB, 5, user_metadata="\ud800", frames=frames("\udcff.py", 3))]
    marks = [mark("START", "a\ud800", 1), mark("END", "a\ud800", 9)]
    raw = {"segments": [], "device_traces": [trace], "external_annotations": marks}
    inspection = inspected_as(tmp_path / "s.pickle", raw)
    assert encode_inspection(inspection)
    assert inspection.memory is not None and inspection.memory.peak_phase == "a\\ud800"


def test_what_a_snapshot_lacks_is_said_after_looking(tmp_path: Path) -> None:
    without = {key: TRAIN[key] for key in ("segments", "device_traces")}
    assert "no annotations" in memory_of(tmp_path, without).missing["peak_phase"]
    odd = memory_of(tmp_path, without | {"external_annotations": [{"name": 3}]})
    assert odd.missing["peak_phase"] == "the annotations of the snapshot cannot be read"


@pytest.mark.parametrize(
    "flags",
    [
        {"trace_alloc_overflowed": [False, True], "trace_alloc_max_entries": [4, 4]},
        {"allocator_settings": {"trace_alloc_overflowed": True, "trace_alloc_max_entries": 4}},
    ],
)
def test_an_overflowed_ring_is_said_as_the_file_says_it(
    tmp_path: Path, flags: dict[str, Any]
) -> None:
    memory = memory_of(tmp_path, TRAIN | flags)
    assert (memory.ring_events, memory.ring_overflowed) == (4, True)
    assert any("ring of 4 events overflowed" in note for note in recording_notes(memory))
    whole = memory_of(tmp_path, TRAIN | {"allocator_settings": {"trace_alloc_overflowed": False}})
    assert whole.ring_overflowed is False and recording_notes(whole) == []


def test_annotations_and_the_start_of_a_recording_make_no_difference(tmp_path: Path) -> None:
    plain = {key: TRAIN[key] for key in ("segments", "device_traces")}
    as_state = {"segments": [segment(block(BASE, 70 * MIB, frames=frames("m.py", 3)))]}
    late = as_state | {"device_traces": [[event("alloc", 3, 512, 1)]]}
    late["segments"] = [segment(*as_state["segments"][0]["blocks"], block(3, 512))]
    for one, other in ((plain, TRAIN), (as_state, late)):
        difference = memory_difference(memory_of(tmp_path, one), memory_of(tmp_path, other))
        assert sum(abs(row.a_bytes - row.b_bytes) for row in difference.origins) <= 512
        tree = memory_difference_tree(memory_of(tmp_path, one), memory_of(tmp_path, other))
        stacks = [
            row for part in tree.children for phase in part.children for row in phase.children
        ]
        assert stacks and all(abs(row.change) <= 512 for row in stacks)
    assert tree.name == "allocated memory"  # one side is a state


LOST_FREES = [event("alloc", BASE + at * 2 * MIB, MIB, 10 + at) for at in range(6)]
CONTRADICTIONS = {
    "frees that are lost": (LOST_FREES, "blocks taken, never freed, and in no segment: 5"),
    "an allocation that is lost": (
        [event("alloc", BASE, MIB, 1), event("free_completed", BASE, MIB, 2)],
        "blocks freed and still in use: 1",
    ),
    "another size": ([event("alloc", BASE, 3 * MIB, 1)], "blocks of another size: 1"),
    "two allocations at one place": (
        [event("alloc", BASE, MIB, 1), event("alloc", BASE, MIB, 2)],
        "blocks taken or freed twice: 1",
    ),
    "merged files": (
        [
            event("alloc", BASE + 4 * MIB, MIB, 90_000),
            event("free_completed", BASE + 4 * MIB, MIB, 95_000),
            event("alloc", BASE, MIB, 10),
        ],
        "events earlier than the one before: 1",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_events_that_contradict_the_segments_are_said(tmp_path: Path, name: str) -> None:
    trace, words = CONTRADICTIONS[name]
    raw = {"segments": [segment(block(BASE, MIB))], "device_traces": [trace]}
    inspection = inspected_as(tmp_path / "s.pickle", raw)
    memory = inspection.memory
    (found,) = [row for row in inspection.findings if row.rule == "file-contradicts-itself"]
    assert words in found.why.lower()
    assert "Problem: The events of this snapshot contradict" in overview_text(
        inspection.as_record(), 100
    )
    assert memory is not None and words in memory.missing["events"]
    # The end column adds up to what the segments have, whatever the events say.
    assert sum(row.bytes for row in memory.columns["end"]) == memory.end_allocated_bytes == MIB
    assert sum(row.bytes for row in memory.ledger) == memory.peak_allocated_bytes


def test_a_whole_recording_and_one_that_lost_its_beginning_do_not_contradict(
    tmp_path: Path, shared_data: Path
) -> None:
    moves = [
        event("alloc", BASE, MIB, 1),
        event("alloc", BASE + 2 * MIB, 2 * MIB, 2),
        event("free_requested", BASE + 2 * MIB, 2 * MIB, 3),
        event("free_completed", BASE + 2 * MIB, 2 * MIB, 3),
        event("alloc", BASE + 2 * MIB, MIB, 4),
        event("free_requested", BASE + 2 * MIB, MIB, 5),  # still awaits its free
    ]
    awaiting = block(BASE + 2 * MIB, MIB, state="active_awaiting_free")
    for lost in range(6):
        raw = {"segments": [segment(block(BASE, MIB), awaiting)], "device_traces": [moves[lost:]]}
        inspection = inspected_as(tmp_path / "s.pickle", raw)
        assert inspection.findings == [], lost
    real = read_tables(shared_data / "snapshots" / "allocator_test.pickle", lambda *_: None)
    assert real.inspection.findings == []


def test_each_rank_s_snapshot_without_a_history_shows_its_own_bytes(
    tmp_path: Path, sysbench_home: Path
) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(3):
        content = state(rank, block(BASE, (20 + rank) * MIB, frames=frames("m.py", 3)))
        (folder / f"rank{rank}.pickle").write_bytes(pickle.dumps(content))
    ranks = FolderDecoding(folder).run(lambda *_: None)
    table = rank_memory_table(ranks)
    assert table.column("device") == [0, 1, 2]
    assert table.column("end_bytes") == [20 * MIB, 21 * MIB, 22 * MIB]
    assert "peak_bytes" not in table.columns
    assert any("ranks 0, 1, 2 have no history" in note for note in ranks_notes(ranks))


Inspected = Callable[[Path], Inspection]


@pytest.mark.parametrize(
    ("case", "device", "allocated", "reserved"),
    [
        ("files/f03_memory_on_device_1", 1, 104_857_600, 134_217_728),
        ("files/f22_list_of_segments", 0, 104_857_600, 134_217_728),
        ("memory/snapshot-bare-list", 0, 1568 * MIB, 1568 * MIB),
        ("memory/snapshot-largest-cut-at-50", 0, 1568 * MIB, 1568 * MIB),
    ],
)
def test_states_that_were_misread(
    shared_data: Path, inspected: Inspected, case: str, device: int, allocated: int, reserved: int
) -> None:
    memory = inspected(shared_data / f"cases/{case}.pickle").memory
    assert memory is not None and memory.is_state
    assert (memory.device, memory.end_allocated_bytes) == (device, allocated)
    assert memory.peak_reserved_bytes == reserved
    if "cut" in case:
        table = largest_alike_table(memory)
        assert table.column("blocks") == [200, 96]
        assert table.column("sum_bytes") == [800 * MIB, 768 * MIB]


def test_annotations_of_a_snapshot_that_was_misread(
    shared_data: Path, inspected: Inspected
) -> None:
    memory = inspected(shared_data / "cases/files/f16_annotations_of_a_snapshot.pickle").memory
    assert memory is not None
    assert memory.peak_phase == "Optimizer.step#AdamW.step of ProfilerStep#3"
    assert memory.peak_ms == pytest.approx(0.014, abs=0.002)
    assert [(row.bytes, row.phase, row.metadata) for row in memory.origins] == [
        (40 * MIB, "Optimizer.step#AdamW.step", "layer1"),
        (30 * MIB, "forward", "layer0"),
    ]
    assert memory.ring_overflowed and memory.ring_events == 5
