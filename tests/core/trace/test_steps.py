"""Marked steps: with what lies outside they are the span, column by column, to the nanosecond."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sysbench.core.errors import DamagedFileError
from sysbench.core.inspection.reading import read_tables
from sysbench.core.record.steps import MarkedSteps
from sysbench.core.tables.host_tables import steps_notes, steps_table
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.time_ledger import Window, time_ledger
from sysbench.core.trace.trace_events import Trace
from sysbench.core.trace.trace_reader import read_trace
from tests.core.trace.ledgers import GEMM, NCCL

COPY = "Memcpy HtoD (Pageable -> Device)"
WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def marked(trace: Trace, **choice: Any) -> MarkedSteps:
    found = time_ledger(trace, **choice).marked
    assert found is not None
    return found


def assert_adds_up(trace: Trace, steps: MarkedSteps) -> None:
    """Each row closes, all rows are the span, and a choice of steps is their rows."""
    rows = [*steps.rows, steps.outside]
    for row in rows:
        assert min(row.ns, row.busy_ns, row.communication_ns, row.unattributed_ns) >= 0
        assert row.busy_ns + sum(row.idle.values()) + row.unattributed_ns == row.ns
        assert row.communication_ns <= row.busy_ns
    assert sum(row.ns for row in rows) == steps.span_ns
    ledger = time_ledger(trace)
    low = min(ledger.window.low, steps.rows[0].start_ns)
    high = max(ledger.window.high, steps.rows[-1].start_ns + steps.rows[-1].ns)
    assert steps.span_ns == high - low
    if steps.clock == "device":
        whole = time_ledger(trace, Window(low, high))
        assert sum(row.busy_ns for row in rows) == whole.busy == ledger.busy
        assert sum(row.unattributed_ns for row in rows) == whole.unattributed
        for cause, ns in whole.idle.items():
            assert sum(row.idle[cause] for row in rows) == ns
        for row in steps.rows:
            assert row.start_ns + row.ns >= (row.host_start_ns or 0) + (row.host_ns or 0)
    assert sum(row.kernels for row in rows) == len(ledger.work)
    for before, after in zip(steps.rows, steps.rows[1:], strict=False):
        assert before.start_ns + before.ns <= after.start_ns
    for row in steps.rows:
        if row.number is not None and (row.busy_ns or row.kernels):
            one = time_ledger(trace, steps=(row.number, row.number))
            assert (one.window.length, one.busy) == (row.ns, row.busy_ns)
            assert one.unattributed == row.unattributed_ns
            assert one.idle == row.idle
            assert sum(one.exclusive.tolist()) == row.busy_ns


MARKERS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 120)),  # begins, lasts
    min_size=1,
    max_size=6,
)
KERNELS = st.lists(
    st.tuples(
        st.integers(0, 500),  # launched at
        st.integers(0, 90),  # until it starts
        st.integers(0, 60),  # how long it runs
        st.sampled_from([7, 14, 21]),
        st.sampled_from([GEMM, NCCL, COPY]),
        st.sampled_from(["both", "both", "both", "no launch", "no kernel"]),
    ),
    min_size=1,
    max_size=20,
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
@given(MARKERS, KERNELS, st.booleans())
def test_any_steps_with_any_gaps_and_nesting_are_the_span(
    writer: Any, markers: list[Any], kernels: list[Any], on_device: bool
) -> None:
    writer.events.clear()
    for number, (begin, length) in enumerate(markers):
        writer.add("user_annotation", f"ProfilerStep#{number}", begin, length)
    writer.call("cudaStreamSynchronize", 100, 50)
    for at, wait, duration, stream, name, seen in kernels:
        if not on_device:
            writer.op(f"aten::{name}", at, duration, tid=stream)
        elif seen == "no kernel":
            writer.call("cudaLaunchKernel", at, 2)
        elif seen == "no launch":
            writer.work(name, at + wait, duration, stream=stream, correlation=10**6 + at)
        else:
            cat = "gpu_memcpy" if name == COPY else "kernel"
            writer.launch(at, name, at + wait, duration, stream=stream, cat=cat)
    trace = read_trace(writer.write())
    steps = time_ledger(trace).marked
    if steps is not None:  # else nothing ran
        assert_adds_up(trace, steps)
        assert len(steps.rows) + steps.left_out == len(markers)


def test_a_step_is_the_work_it_launched_and_the_gaps_its_marker_was_open_for(writer: Any) -> None:
    writer.launch(0, "warm-up", 10, 10)
    writer.add("user_annotation", "ProfilerStep#1", 30, 70)
    writer.launch(40, GEMM, 60, 30)
    writer.launch(45, NCCL, 80, 40, stream=14)  # 30 of it alone, after the marker's end
    writer.launch(95, COPY, 130, 5, cat="gpu_memcpy")
    writer.launch(105, "between", 150, 10)
    writer.add("user_annotation", "ProfilerStep#2", 110, 90)
    writer.launch(120, COPY, 132, 12, cat="gpu_memcpy", stream=21)  # 3 of it beside step 1
    writer.launch(125, GEMM, 170, 20)
    trace = read_trace(writer.write())
    steps = marked(trace)
    one, two = steps.rows
    assert (one.start_ns, one.ns, one.busy_ns, one.communication_ns) == (30, 105, 65, 30)
    assert (two.start_ns, two.ns, two.busy_ns, two.kernels) == (135, 65, 9 + 10 + 20, 2)
    assert (one.launched, two.launched) == (3, 2)
    assert (steps.outside.ns, steps.outside.busy_ns) == (20, 10)
    assert_adds_up(trace, steps)


def test_on_the_host_a_step_is_its_marker(writer: Any) -> None:
    writer.add("user_annotation", "ProfilerStep#1", 0, 100)
    writer.op("aten::mm", 10, 30)
    writer.op("aten::mm", 120, 30)
    trace = read_trace(writer.write())
    steps = marked(trace)
    assert (steps.clock, steps.span_ns) == ("host", 150)
    assert [(row.ns, row.busy_ns, row.kernels) for row in (*steps.rows, steps.outside)] == [
        (100, 30, 1),
        (50, 30, 1),
    ]
    assert_adds_up(trace, steps)


def five_steps(writer: Any, lengths: list[int], kinds: str = "ddddd") -> Trace:
    """Steps that fill their markers with one kernel each; a kind is d for decode, p for prefill."""
    writer.launch(0, "warm-up", 5, 5)
    for number, (length, kind) in enumerate(zip(lengths, kinds, strict=True), 1):
        name = "step[DECODE bs=4]" if kind == "d" else "step[EXTEND bs=1 toks=900]"
        writer.add("user_annotation", name, 1000 * number, length)
        writer.launch(1000 * number + 2, GEMM, 1000 * number + 10, length - 10)
    return read_trace(writer.write())


@pytest.mark.parametrize(
    ("lengths", "kinds", "odd"),
    [
        ([500, 502, 501, 800, 503], "ddddd", [4]),
        ([500, 502, 501, 530, 503], "ddddd", []),  # within 10 %
        ([500, 502, 501, 800, 503], "dddpd", []),  # prefill is not held against decode
        ([500, 800, 500, 800, 500], "dpdpd", []),
        ([400, 500, 600, 700, 800], "ddddd", []),  # no more than they differ anyway
    ],
)
def test_the_odd_step_is_named_among_its_kind(
    writer: Any, lengths: list[int], kinds: str, odd: list[int]
) -> None:
    steps = marked(five_steps(writer, lengths, kinds))
    assert [row.ns for row in steps.rows] == lengths
    assert [row.number for row in steps.rows if row.is_odd] == odd
    assert any("odd step: 4" in note for note in steps_notes(steps)) == bool(odd)


def test_steps_of_a_device_that_lags_are_compared_without_earlier_work(writer: Any) -> None:
    """The host launches far ahead: each step takes the device 100 ns, also the first."""
    for number in range(7):
        writer.launch(10 * number, GEMM, 100 * number, 100)
        if number > 1:
            writer.add("user_annotation", f"ProfilerStep#{number}", 10 * number, 9)
    trace = read_trace(writer.write())
    steps = marked(trace)
    assert [row.ns for row in steps.rows] == [280, 100, 100, 100, 100]
    assert steps.rows[0].start_ns == 20
    assert not any(row.is_odd for row in steps.rows)
    assert_adds_up(trace, steps)


def test_one_step_or_a_range_is_what_all_tables_are_of(writer: Any) -> None:
    trace = five_steps(writer, [510, 510, 520, 810, 530])
    table = kernel_rows(time_ledger(trace, steps=(2, 4)))
    assert (table.steps, table.whole) == (3, "step")
    assert table.marked_steps is not None and table.marked_steps.chosen == (2, 4)
    assert [(row.calls, row.total_ns) for row in table.rows] == [(1, (500 + 510 + 800) / 3)]
    assert (
        "all other tables are of steps 2–4: kernels and tree per step, others in sum"
        in steps_notes(table.marked_steps)
    )
    with pytest.raises(DamagedFileError, match=r"no step 9 in this file \(1 to 5\)"):
        time_ledger(trace, steps=(9, 9))


def test_without_a_marker_no_step_can_be_chosen(writer: Any) -> None:
    writer.launch(0, GEMM, 10, 10)
    trace = read_trace(writer.write())
    assert time_ledger(trace).marked is None
    with pytest.raises(DamagedFileError, match="no step markers found"):
        time_ledger(trace, steps=(1, 1))


def test_a_step_that_ran_nothing_has_no_tables(writer: Any) -> None:
    writer.add("user_annotation", "ProfilerStep#1", 0, 10)
    writer.add("user_annotation", "ProfilerStep#2", 20, 10)
    writer.launch(22, GEMM, 30, 10)
    trace = read_trace(writer.write())
    assert [row.ns for row in marked(trace).rows] == [10, 20]
    with pytest.raises(DamagedFileError, match="nothing ran in ProfilerStep#1"):
        time_ledger(trace, steps=(1, 1))


def test_the_five_steps_of_a_real_training_are_the_integers_of_their_events(
    shared_data: Path,
) -> None:
    path = shared_data / "traces" / "v100_ddp_train.json.gz"
    oracle = json.loads(path.with_name("v100_ddp_train.oracle.json").read_text())["whole_trace"]
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ranges = [event for event in events if event.get("name", "").startswith("ProfilerStep#")]
    base = min(event["ts"] for event in ranges)
    theirs = {event["name"]: (1000 * (event["ts"] - base), 1000 * event["dur"]) for event in ranges}
    trace = read_trace(path)
    steps = marked(trace)
    assert {row.name: (row.host_start_ns, row.host_ns) for row in steps.rows} == theirs
    # Each begins on an idle device and ends on one: the device's part is the marker's length.
    assert {row.name: row.ns for row in steps.rows} == {
        name: length for name, (_, length) in theirs.items()
    }
    work = [event for event in events if event.get("cat") in WORK]
    last = max(event["ts"] + event["dur"] for event in work)
    assert 1000 * (last - min(event["ts"] for event in work)) == oracle["span_ns"]
    last = max(last, *(event["ts"] + event["dur"] for event in ranges))
    assert steps.span_ns == 1000 * (last - base)
    rows = [*steps.rows, steps.outside]
    assert sum(row.busy_ns for row in rows) == oracle["busy_ns"]
    assert sum(row.communication_ns for row in rows) == oracle["exposed_comm_ns(kernels only)"]
    assert sum(row.ns for row in rows) == steps.span_ns
    assert [row.kernels for row in rows] == [4458] * 5 + [0]


@pytest.mark.parametrize(
    ("name", "kind", "tokens", "requests", "kernels"),
    [
        ("tl_vllm_decode_full_exec", "decode", 32, 32, 434),
        ("tl_vllm_piecewise_exec", "mixed", 8192, 46, 423),
        ("tl_sglang_prefilldecode", "prefill", 15360, 15, 525),
    ],
)
def test_real_steps_of_serving_engines_say_what_they_served(
    shared_data: Path, name: str, kind: str, tokens: int, requests: int, kernels: int
) -> None:
    """By json alone, 434, 423 and 524 pieces of work were launched while the marker was open; one
    more, launched before, runs among the last ones."""
    found = read_tables(shared_data / "more" / f"{name}.json.gz", lambda *_: None).inspection
    assert found.kernels is not None and found.kernels.marked_steps is not None
    (row,) = found.kernels.marked_steps.rows
    assert (row.kind, row.tokens, row.requests, row.kernels) == (kind, tokens, requests, kernels)
    table = steps_table(found.kernels.marked_steps)
    assert sum(ns for ns in table.column("time_ns") if isinstance(ns, int)) == (
        found.kernels.marked_steps.span_ns
    )
