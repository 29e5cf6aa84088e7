"""The timeline's lanes have every event, and the idle time of the ledger, cause by cause."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sysbench.core.errors import DamagedFileError
from sysbench.core.trace.classify import BETWEEN, HOST_LATE, LAUNCHING, ON_SYNC
from sysbench.core.trace.lane_drawing import DrawnLane, DrawnLanes, Gap, cell_edges
from sysbench.core.trace.lanes import (
    CALL,
    SYNC_CALL,
    UNATTRIBUTED,
    Lane,
    LaneEvents,
    Lanes,
    decode_lanes,
    encode_lanes,
    lanes_of,
)
from sysbench.core.trace.nsys_export import read_contents
from sysbench.core.trace.scopes import STEPS_RANGE
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_events import Trace
from sysbench.core.trace.trace_reader import read_trace
from tests.core.trace.ledgers import GEMM, NCCL

COPY = "Memcpy HtoD (Pageable -> Device)"


def lanes_in(trace: Trace, **choice: Any) -> Lanes:
    """The lanes after they were stored and read again."""
    return decode_lanes(
        encode_lanes(lanes_of(trace, time_ledger(trace, **choice))), Path("lanes.msgpack")
    )


def named(lanes: Lanes, group: str = "GPU 0") -> dict[str, Lane]:
    return {lane.name: lane for lane in lanes.lanes if lane.group == group}


def times(lane: Lane) -> list[tuple[int, int]]:
    return list(zip(lane.events.start.tolist(), lane.events.end.tolist(), strict=True))


def labels(lanes: Lanes, lane: Lane) -> list[str]:
    return [lanes.texts[number] for number in lane.events.label.tolist()]


def assert_complete(trace: Trace) -> None:
    """All device work is on a lane, and idle time is what the ledger says, with that of steps."""
    ledger, lanes = time_ledger(trace), lanes_in(trace)
    work = [lane for lane in lanes.lanes if lane.kind == "work" and lane.group != "CPU"]
    assert sum(len(lane.events) for lane in work) == len(trace.device)
    idle = named(lanes, f"GPU {ledger.device}")["idle"]
    by_cause: Counter[str] = Counter()
    for label, (start, end) in zip(labels(lanes, idle), times(idle), strict=True):
        by_cause[label] += end - start
    unattributed = by_cause.pop(UNATTRIBUTED, 0)
    rows = [*ledger.marked.rows, ledger.marked.outside] if ledger.marked else []
    idle_ns: Counter[str] = Counter()
    for row in rows:
        idle_ns.update(row.idle)
    assert unattributed == (sum(row.unattributed_ns for row in rows) or ledger.unattributed)
    assert by_cause == {cause: ns for cause, ns in (idle_ns or ledger.idle).items() if ns}


@pytest.mark.parametrize("name", ["qwen15_0.5b_h100_fwd", "v100_ddp_train"])
def test_a_real_trace_is_complete(shared_data: Path, name: str) -> None:
    assert_complete(read_trace(shared_data / "traces" / f"{name}.json.gz"))


def test_a_real_export_has_the_lanes_of_both_devices(shared_data: Path) -> None:
    trace = read_contents(shared_data / "nsys" / "h100_2gpu_1s.sqlite").events.trace
    assert_complete(trace)
    lanes = lanes_in(trace)
    for group, stream in (("GPU 0", 7), ("GPU 1", 15)):
        own = named(lanes, group)
        assert len(own[f"stream {stream} compute"].events) == 1721
        assert {"phases", "idle", f"stream {stream} copies"} <= own.keys()


def test_streams_are_named_by_what_they_carry(writer: Any) -> None:
    writer.op("aten::mm", 0, 40)
    writer.launch(5, GEMM, 10, 30, stream=7)
    writer.launch(15, NCCL, 20, 50, stream=14)
    writer.launch(25, COPY, 50, 5, stream=7, cat="gpu_memcpy")
    lanes = lanes_in(read_trace(writer.write()))
    own = named(lanes)
    assert times(own["stream 7 compute"]) == [(10, 40)]
    assert times(own["stream 7 copies"]) == [(50, 55)]
    assert times(own["stream 14 comm."]) == [(20, 70)]
    category = own["stream 14 comm."].events.category
    assert [lanes.texts[number] for number in category] == ["communication"]
    operator = own["stream 7 compute"].events.operator
    assert [lanes.texts[number] for number in operator] == ["aten::mm"]


def test_threads_that_launch_have_operators_and_calls(writer: Any) -> None:
    writer.op("aten::linear", 0, 100)
    writer.op("aten::mm", 10, 80)
    writer.launch(20, GEMM, 200, 10)
    writer.call("cudaDeviceSynchronize", 120, 95)
    writer.op("aten::add", 0, 10, tid=777)  # launches nothing
    lanes = lanes_in(read_trace(writer.write()))
    own = named(lanes, "CPU")
    assert labels(lanes, own["thread 1 operators"]) == ["aten::linear"]
    assert labels(lanes, own["thread 1 calls"]) == ["cudaLaunchKernel", "cudaDeviceSynchronize"]
    category = own["thread 1 calls"].events.category
    assert [lanes.texts[number] for number in category] == [CALL, SYNC_CALL]
    assert "thread 2 operators" not in own


def test_steps_and_phases_of_a_trace_pass(writer: Any) -> None:
    writer.op(f"{STEPS_RANGE}2", 0, 400)
    for begin in (0, 200):
        for place, phase in enumerate(("forward", "backward")):
            at = begin + 90 * place
            writer.op(f"phase:{phase}", at, 90)
            writer.op("aten::mm", at + 5, 20)
            writer.launch(at + 10, GEMM, at + 30, 50)
    lanes = lanes_in(read_trace(writer.write()))
    own = named(lanes)
    assert labels(lanes, own["steps"]) == ["step 1", "step 2"]
    assert labels(lanes, own["phases"]) == ["forward", "backward"] * 2
    assert times(own["phases"]) == [(30, 80), (120, 170), (230, 280), (320, 370)]


def test_marked_steps_of_an_imported_trace(writer: Any) -> None:
    for number in (7, 8):
        writer.add("user_annotation", f"ProfilerStep#{number}", 100 * number, 100)
        writer.launch(100 * number + 10, GEMM, 100 * number + 20, 50)
    trace = read_trace(writer.write())
    lanes = lanes_in(trace)
    rows = time_ledger(trace).marked
    assert rows is not None
    assert times(named(lanes)["steps"]) == [(r.start_ns, r.start_ns + r.ns) for r in rows.rows]
    chosen = lanes_in(trace, steps=(8, 8))
    assert chosen.window == (rows.rows[1].start_ns, rows.rows[1].start_ns + rows.rows[1].ns)
    assert len(named(chosen)["stream 7 compute"].events) == 2


def test_operators_of_a_host_are_lanes_by_thread(writer: Any) -> None:
    writer.op("aten::linear", 0, 100)
    writer.op("aten::mm", 20, 50)
    writer.op("aten::add", 130, 10, tid=777)
    lanes = lanes_in(read_trace(writer.write()))
    own = named(lanes, "CPU")
    assert times(own["thread 1"]) == [(0, 20), (20, 70), (70, 100)]
    assert labels(lanes, own["thread 1"]) == ["aten::linear", "aten::mm", "aten::linear"]
    assert times(own["thread 2"]) == [(130, 140)]
    assert times(own["idle"]) == [(100, 130)]


def gap_of(writer: Any, time: int) -> Gap | None:
    drawn = DrawnLanes(lanes_in(read_trace(writer.write())))
    row = next(row for row in drawn.rows if row.lane.name == "stream 7 compute")
    return drawn.gap_before(row, time)


def test_the_gap_before_an_event_is_split_as_in_the_ledger(writer: Any) -> None:
    writer.launch(0, GEMM, 10, 20)
    writer.op("aten::to", 40, 100)
    writer.launch(130, GEMM, 150, 10)  # the call takes 2 ns
    gap = gap_of(writer, 150)
    assert gap is not None
    assert gap.pieces == [(HOST_LATE, 30, 130), (LAUNCHING, 130, 132), (BETWEEN, 132, 150)]
    assert (gap.ns, gap.host) == (120, {"aten::to": 100, "cudaLaunchKernel": 2})
    assert gap_of(writer, 10) is None
    assert gap_of(writer, 149) is None


def test_work_on_another_stream_is_no_gap(writer: Any) -> None:
    writer.launch(0, GEMM, 10, 20)
    writer.launch(5, NCCL, 25, 100, stream=14)
    writer.launch(80, GEMM, 100, 10)
    assert gap_of(writer, 100) is None


def test_a_gap_after_a_synchronization_names_the_call(writer: Any) -> None:
    writer.launch(0, GEMM, 10, 20)
    writer.call("cudaStreamSynchronize", 5, 60)
    writer.launch(80, GEMM, 90, 10)
    gap = gap_of(writer, 90)
    assert gap is not None
    assert gap.pieces[:2] == [(ON_SYNC, 30, 65), (HOST_LATE, 65, 80)]
    assert gap.host == {"cudaStreamSynchronize": 35}


INTERVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 2)), min_size=1, max_size=30
)


def disjoint_lane(parts: list[tuple[int, int, int]]) -> DrawnLane:
    """Each event begins a while after the end of the one before."""
    gap, length, category = np.array(parts).T
    end = np.cumsum(gap + length)
    events = LaneEvents(
        start=end - length,
        end=end,
        label=category,
        category=category,
        operator=category,
        module=category,
        phase=category,
    )
    return DrawnLane(Lane(name="stream 7 compute", group="GPU 0", kind="work", events=events))


@given(INTERVALS, st.integers(-20, 500), st.integers(1, 700), st.integers(1, 40))
def test_cells_show_the_category_with_the_most_time(
    parts: list[tuple[int, int, int]], low: int, span: int, width: int
) -> None:
    lane = disjoint_lane(parts)
    cells = lane.cells(low, low + span, width)
    edges = cell_edges(low, low + span, width).tolist()
    assert (edges[0], edges[-1], len(edges)) == (low, low + span, width + 1)
    events = list(
        zip(*(column.tolist() for column in (lane.events.start, lane.events.end)), strict=True)
    )
    for cell, (begin, end) in enumerate(pairwise(edges)):
        inside: Counter[int] = Counter()
        for (start, stop), category in zip(events, lane.events.category.tolist(), strict=True):
            inside[category] += max(0, min(stop, end) - max(start, begin))
        if not sum(inside.values()):
            assert (cells.category[cell], cells.share[cell]) == (-1, 0)
        else:
            assert inside[int(cells.category[cell])] == max(inside.values())
            assert cells.share[cell] == sum(inside.values()) / (end - begin)


@example([(10, 30, 0), (30, 0, 0), (1, 0, 0)], 70, 1)  # an instant
@given(INTERVALS, st.integers(0, 900), st.integers(1, 100))
def test_the_event_under_a_cursor_is_open_there_or_the_next_of_its_cell(
    parts: list[tuple[int, int, int]], low: int, length: int
) -> None:
    lane = disjoint_lane(parts)
    events = [*zip(lane.events.start.tolist(), lane.events.end.tolist(), strict=True)]
    is_open = [at for at, (start, end) in enumerate(events) if start <= low < end]
    later = [at for at, (start, _) in enumerate(events) if low <= start < low + length]
    found = lane.event_at(low, low + length)
    if is_open:
        assert found == is_open[-1]
    elif not later:
        assert found == -1
    else:
        assert events[found][0] == events[later[0]][0] or found in later


def test_a_damaged_file_is_refused(writer: Any) -> None:
    writer.launch(0, GEMM, 10, 20)
    trace = read_trace(writer.write())
    data = encode_lanes(lanes_of(trace, time_ledger(trace)))
    for spoilt in (b"", data[:-1], data.replace(b"GPU 0", b"GPU\xff0"), b"\x93" + data):
        with pytest.raises(DamagedFileError, match=r"lanes\.msgpack is not a timeline"):
            decode_lanes(spoilt, Path("lanes.msgpack"))


def test_a_text_or_time_out_of_range_is_refused(writer: Any) -> None:
    writer.launch(0, GEMM, 10, 20)
    trace = read_trace(writer.write())
    lanes = lanes_of(trace, time_ledger(trace))
    for change in ({"texts": lanes.texts[:1]}, {"high": 15}, {"low": 20}):
        fields = {name: getattr(lanes, name) for name in Lanes.__slots__} | change
        with pytest.raises(DamagedFileError, match="is not a timeline: lane"):
            decode_lanes(encode_lanes(Lanes(**fields)), Path("lanes.msgpack"))
