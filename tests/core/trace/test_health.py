"""Doubtful events of a trace are repaired where one reading is left, and always reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sysbench.core.errors import DamagedFileError
from sysbench.core.inspection.inspection import Inspection
from sysbench.core.inspection.reading import read_tables
from sysbench.core.record.record import Kernels
from sysbench.core.tables.overview import overview_text
from sysbench.core.trace.health import check_health
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace
from sysbench.tui.commands.inspect_report import inspection_lines
from tests.core.trace.perfetto_writer import PerfettoWriter
from tests.nsys_double.build import PROCESS, ExportWriter

UNIX_US = 1_750_000_000_000_000
Events = list[dict[str, Any]]


def op(name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    at = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": 9, "ts": ts, "dur": dur}
    return at | more


def kernel(ts: Any, dur: Any, number: int = -1, **more: Any) -> dict[str, Any]:
    """A kernel named ``k``; its launch is not in the file unless ``launched`` wrote it."""
    args = {"device": 0, "stream": 3, "correlation": number} | more.pop("args", {})
    at = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 3, "ts": ts, "dur": dur}
    return at | more | {"args": args}


def launched(ts: Any, dur: Any, number: int, **more: Any) -> Events:
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9}
    call |= {"ts": ts - 9, "dur": 4, "args": {"correlation": number}}
    return [call, kernel(ts, dur, number, **more)]


def steady(count: int, first: int = UNIX_US) -> Events:
    """Kernels of 25 µs with their launches, one every 50 µs."""
    return [event for at in range(count) for event in launched(first + 50 * at, 25, at + 1)]


def read(path: Path, events: Events) -> Inspection:
    path.write_text(json.dumps({"traceEvents": events}))
    return read_tables(path, lambda *_: None).inspection


def kernels_of(inspection: Inspection) -> Kernels:
    kernels = inspection.kernels
    assert kernels is not None
    parts = sum(row.exclusive_ns for row in kernels.rows) + sum(row.ns for row in kernels.idle)
    assert parts + kernels.unattributed_ns == pytest.approx(kernels.step_ms * 1e6)
    return kernels


def health(inspection: Inspection) -> dict[str, str]:
    return {found.rule: found.verdict for found in inspection.findings if found.is_health}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def test_a_sound_trace_has_no_health_finding(path: Path) -> None:
    assert health(read(path, steady(12))) == {}


def test_an_impossible_duration_is_cut_at_the_next_start(path: Path) -> None:
    events = steady(12)
    events[9] |= {"dur": 70_000, "name": "flash_fwd_kernel"}  # the fifth kernel
    found = read(path, events)
    assert health(found) == {
        "health-impossible-duration": "An impossible duration: flash_fwd_kernel, 209 µs into the "
        "trace, lasts 70.0 ms by the file, over the start of 7 later kernels on its stream. It is "
        "cut to 50.0 µs."
    }
    kernels = kernels_of(found)
    assert kernels.step_ms == pytest.approx(0.575)
    assert kernels.busy_ns == 11 * 25_000 + 50_000
    text = overview_text(found.as_record(), 100)
    assert text.startswith("▌ Problem: An impossible duration: flash_fwd_kernel")


def test_dependent_launches_other_streams_and_graphs_may_overlap(path: Path) -> None:
    events = steady(6)
    events[5] |= {"dur": 60}  # ends after the next one began, and before that one ends
    events += launched(UNIX_US + 3, 260, 50, args={"stream": 8}, name="long")
    # Two branches of one launch of a graph, which the profiler puts on one stream.
    graph = [kernel(UNIX_US + 400, 90, 60), kernel(UNIX_US + 410, 20, 60)]
    found = read(path, [*events, *graph])
    assert health(found) == {}


def test_impossible_durations_of_several_streams_and_of_a_graph(path: Path) -> None:
    events = steady(6)
    events[3] |= {"dur": 9_000}
    for at in range(4):
        events += launched(UNIX_US + 70 * at, 30, 30 + at, args={"stream": 8, "device": 1})
    events[-7] |= {"dur": 800_000}
    events += [kernel(UNIX_US + 310, 5, 60), kernel(UNIX_US + 320, 700, 60)]
    events += launched(UNIX_US + 400, 10, 61)
    found = read(path, events)
    assert health(found)["health-impossible-duration"].startswith(
        "3 impossible durations; the longest: k, "
    )
    assert kernels_of(found).busy_ns == 5 * 25_000 + 50_000 + 5_000 + 80_000 + 10_000


@pytest.mark.parametrize("base", [UNIX_US, 6_000_000_000_000])
def test_kernels_at_time_zero_are_left_out(base: int, path: Path) -> None:
    zero = [kernel(0, 25, 70), kernel(0, 25, 71)]
    found = read(path, [*steady(10, base), *zero])
    assert health(found) == {
        "health-far-off": "2 of 12 kernels (k) start at time 0 and are left out."
    }
    assert kernels_of(found).step_ms == pytest.approx(0.475)


def test_a_gpu_without_any_time_has_no_table(path: Path) -> None:
    events = [op("aten::mm", UNIX_US, 500), *steady(3)]
    for event in events[2::2]:
        event["ts"] = 0
    found = health(read(path, events))
    assert found["health-far-off"] == "3 of 3 kernels (k) start at time 0 and are left out."
    assert "health-no-kernels" in found


def test_events_far_from_the_others_are_left_out(path: Path) -> None:
    day = 86_400_000_000
    events = [*steady(10), kernel(UNIX_US + 3 * day, 25, name="late"), op("x", UNIX_US - day, 1)]
    found = read(path, events)
    assert health(found)["health-far-off"] == (
        "1 of 11 kernels (late) starts 3.00 days after the others and is left out."
    )
    assert kernels_of(found).step_ms == pytest.approx(0.475)


def test_two_recordings_in_one_file_stay(path: Path) -> None:
    found = read(path, [*steady(10), *steady(10, UNIX_US + 7_200_000_000)])
    assert list(health(found)) == ["health-groups-apart"]
    assert kernels_of(found).rows[0].calls == 20


def test_clocks_of_gpu_and_cpu_that_are_years_apart(path: Path) -> None:
    events = steady(10)
    for event in events[::2]:
        event["ts"] -= UNIX_US - 500
    found = read(path, events)
    assert "55.5 years apart" in health(found)["health-clocks-apart"]
    assert kernels_of(found).rows[0].calls == 10


def test_duplicates_count_once(path: Path) -> None:
    events = steady(7)
    found = read(path, [*events, *events[1:6:2]])
    assert health(found) == {
        "health-duplicates": "3 of 10 kernels are exact copies and count once."
    }
    row = kernels_of(found).rows[0]
    assert (row.calls, row.total_ns) == (7, 7 * 25_000)
    found = read(path, [*events, *events])
    assert kernels_of(found).coverage.launches == 7
    assert kernels_of(found).rows[0].calls == 7


def test_kernels_without_a_valid_duration_are_left_out(path: Path) -> None:
    events = steady(9)
    events[3]["dur"] = -4
    events[5]["dur"] = None
    del events[7]["dur"]
    events[9]["dur"] = 2**64 / 1000  # an end before the start, without a sign
    found = read(path, events)
    assert health(found)["health-no-duration"] == (
        "4 of 9 kernels have no valid duration (1 negative, 2 missing, 1 longer than eleven days) "
        "and are left out: 5 count."
    )
    row = kernels_of(found).rows[0]
    assert (row.calls, row.total_ns, row.min_ns) == (5, 125_000, 25_000)


def test_operators_without_an_end_last_zero_and_are_counted(path: Path) -> None:
    found = read(path, [op("aten::mm", 5, 9), op("aten::add", 20, -1)])
    assert health(found) == {
        "health-no-duration": "1 CPU event without a valid duration (1 negative) last 0."
    }


def test_events_without_a_start_are_left_out(path: Path) -> None:
    lost = [kernel(None, 5), kernel("soon", 5), {"ph": "X", "cat": "kernel", "name": "k"}]
    found = read(path, [*steady(4), *lost])
    assert health(found)["health-no-time"] == "3 events without a start or an end are left out."
    assert kernels_of(found).rows[0].calls == 4


def test_begin_and_end_events_are_read_as_one(path: Path) -> None:
    def half(phase: str, name: str, ts: float) -> dict[str, Any]:
        return op(name, ts, 0) | {"ph": phase, "dur": None}

    pairs = [half("B", "outer", 10.5), half("B", "inner", 12), half("E", "inner", 15.25)]
    pairs += [half("E", "outer", 30), half("B", "never", 40)]
    found = read(path, pairs)
    own = {row.name: row.exclusive_ns for row in kernels_of(found).rows}
    assert own == {"outer": 16_250, "inner": 3_250}
    assert health(found)["health-no-time"] == "1 event without a start or an end is left out."


def device_process(name: str, pid: int, count: int) -> Events:
    named = {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    work = [
        {"ph": "X", "name": "fusion", "pid": pid, "tid": 1, "ts": UNIX_US + 40 * at, "dur": 30}
        for at in range(count)
    ]
    return [named, *work]


@pytest.mark.parametrize("name", ["Ascend Hardware", "/device:TPU:0", "HPU 3"])
def test_work_of_a_device_that_is_not_read_is_named(name: str, path: Path) -> None:
    events = [op("aten::mm", UNIX_US, 30), op("aten::mm", UNIX_US + 99, 30)]
    found = read(path, [*events, *device_process(name, 4, 17)])
    verdict = health(found)["health-no-kernels"]
    assert verdict.startswith("The device's work in this file has an unknown form; times below")
    assert f"17 events of {name}" in verdict
    lines = ["".join(text for text, _ in line) for line in inspection_lines(found, 100)]
    assert lines[3].startswith("▌ Problem: The device's work in this file has an unknown form")
    found = read(path, [*steady(3), *device_process(name, 4, 17)])
    assert f"17 events of {name}" in health(found)["health-unread-work"]
    with pytest.raises(DamagedFileError, match=f"17 events of {name}"):
        read(path, device_process(name, 4, 17))


def test_processes_without_a_name_or_a_category(path: Path) -> None:
    events = [op("aten::mm", UNIX_US, 30), *device_process("", 4, 5)]
    assert "5 events without a category" in health(read(path, events))["health-no-kernels"]
    work = [op("matmul", UNIX_US, 9, cat="npu_kernel"), op("copy", UNIX_US, 9, cat="npu_kernel")]
    found = read(path, [op("aten::mm", UNIX_US, 30), *work])
    assert "not read: 2 npu_kernel" in health(found)["health-no-kernels"]
    # Ranges of a user in the process of the operators, or with a category, are no device's.
    mine = [op("load", UNIX_US, 9, cat=""), op("save", UNIX_US, 9, cat="mine", pid=5)]
    assert health(read(path, [op("aten::mm", UNIX_US, 30), *mine])) == {}


def test_lost_kernels_come_first(path: Path) -> None:
    events = steady(20)
    found = read(path, [event for at, event in enumerate(events) if at not in (21, 23, 25)])
    assert health(found)["health-lost-kernels"].startswith(
        "3 of 20 launches have no kernel in the file"
    )


@pytest.mark.parametrize("is_by_external_id", [False, True])
def test_the_rules_of_torch_find_nothing_more(is_by_external_id: bool, path: Path) -> None:
    validator = pytest.importorskip("torch.profiler._trace_validator")
    events = steady(6)
    for number, event in enumerate(events):
        event["args"]["External id"] = number // 2 + 1
    rules = {
        "_check_gpu_kernel_causality": "health-early-kernels",
        "_check_stream_wait_corr_id_populated": "trace-synchronizations",
        "_check_stream_sync_overlap": "trace-synchronizations",
        "_check_stream_wait_corr_id_in_past": "trace-synchronizations",
        "_check_nccl_metadata": "trace-collective-arguments",
        "_check_backward_seq_id_uniqueness": "trace-shared-sequences",
    }

    def sync(kind: str, ts: float, waits_for: int) -> dict[str, Any]:
        args = {"cuda_sync_kind": kind, "device": 0, "stream": 3}
        args |= {"wait_on_cuda_event_record_corr_id": waits_for}
        return kernel(ts, 1, args=args, cat="cuda_sync", name=kind)

    record = {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventRecord", "pid": 9, "tid": 9}
    record |= {"ts": UNIX_US + 90, "dur": 1, "args": {"correlation": 80}}
    node = "autograd::engine::evaluate_function: "
    shared = {"Sequence number": 5}
    broken: dict[str, Events] = {
        "_check_gpu_kernel_causality": [],
        "_check_stream_wait_corr_id_populated": [sync("Event Sync", UNIX_US + 40, -1)],
        "_check_stream_sync_overlap": [sync("Stream Sync", UNIX_US + 60, -1)],
        "_check_stream_wait_corr_id_in_past": [sync("Stream Wait Event", UNIX_US + 30, 80)],
        "_check_nccl_metadata": [op("record_param_comms", UNIX_US, 5, args={"dtype": "Float"})],
        "_check_backward_seq_id_uniqueness": [
            op(f"{node}MmBackward0", UNIX_US, 5, args=shared),
            op(f"{node}AddBackward0", UNIX_US + 10, 5, args=shared),
        ],
    }
    sound = [sync("Stream Sync", UNIX_US + 30, -1), sync("Stream Wait Event", UNIX_US + 95, 80)]
    for rule, more in broken.items():
        changed = json.loads(json.dumps(events))
        if not more:
            changed[4]["ts"] += 40  # the third launch, now after its kernel began
            if is_by_external_id:
                for event in changed:
                    del event["args"]["correlation"]
        inspection = read(path, [*changed, record, *sound, *more])
        assert {found.rule_name for found in validator.validate_trace(str(path))[1]} == {rule}
        found = {finding.rule for finding in inspection.findings}
        assert found & set(rules.values()) == {rules[rule]}
        encoded = PerfettoWriter().write(path, path.with_name("trace.pftrace"))
        assert read_tables(encoded, lambda *_: None).inspection.findings == inspection.findings


MOMENTS = st.integers(0, 400).map(lambda at: UNIX_US + 5 * at)


@given(
    st.lists(
        st.tuples(
            st.one_of(MOMENTS, MOMENTS, MOMENTS, st.just(0)),
            st.sampled_from((-3, 0, 4, 30, 700, None)),
            st.integers(0, 2),  # stream
            st.integers(1, 5),  # launch
        ),
        min_size=1,
        max_size=30,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_repaired_is_sound(tmp_path: Path, rows: list[tuple[Any, ...]]) -> None:
    path = tmp_path / "trace.json"
    events = [
        kernel(ts, dur, launch, args={"stream": stream, "correlation": launch})
        for ts, dur, stream, launch in rows
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    whole = read_trace(path)
    trace, _ = check_health(whole)
    again, findings = check_health(trace)
    assert not findings and len(again.device) == len(trace.device)
    assert (trace.device.end >= trace.device.start).all()
    assert len(trace.device) <= len(whole.device)
    if len(trace.device):
        ledger = time_ledger(trace)
        parts = [*ledger.exclusive.tolist(), *ledger.idle.values(), ledger.unattributed]
        assert sum(parts) == ledger.window.length and min(parts) >= 0


PUBLIC: dict[str, tuple[str, Callable[[Kernels], object], object]] = {
    "f06_duration_runs_over_the_next_ones": (
        "health-impossible-duration",
        lambda kernels: (kernels.busy_ns, kernels.step_ms),
        (610_000, pytest.approx(0.79)),
    ),
    "f10_npu_is_no_cpu_run": (
        "health-no-kernels",
        lambda kernels: "Ascend Hardware" in kernels.missing["kernels"],
        True,
    ),
    "f25_kernels_twice": (
        "health-duplicates",
        lambda kernels: (kernels.rows[0].calls, kernels.rows[0].total_ns),
        (5, 150_000),
    ),
}


@pytest.mark.parametrize("case", PUBLIC)
def test_public_cases(case: str, shared_data: Path) -> None:
    rule, value, right = PUBLIC[case]
    path = shared_data / "cases" / "files" / f"{case}.json"
    found = read_tables(path, lambda *_: None).inspection
    assert rule in health(found)
    assert value(kernels_of(found)) == right


def test_an_export_of_nsys_is_checked_too(path: Path) -> None:
    writer = ExportWriter(path)
    other = 2 * PROCESS | 7
    writer.launch("long_kernel", 0, 10_000, 9_000_000)  # over the start of the next one
    writer.launch("k", 20_000, 30_000, 40_000)
    writer.launch("k", 50_000, 51_000, 90_000)
    # The other process has a stream of that number too; pages move while a kernel runs.
    writer.launch("k", 52_000, 55_000, 70_000, thread=other)
    writer.migration(60_000, 65_000, kind=11)
    found = read_tables(writer.write(), lambda *_: None).inspection
    assert health(found) == {
        "health-impossible-duration": "An impossible duration: long_kernel, 10.0 µs into the "
        "trace, lasts 8.99 ms by the file, over the start of 2 later kernels on its stream. It is "
        "cut to 20.0 µs."
    }
    assert kernels_of(found).step_ms == pytest.approx(0.08)
