"""A step closes to the nanosecond: any kernels, any operators, and real traces."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sysbench.core.trace.time_ledger import Window, time_ledger
from sysbench.core.trace.trace_reader import read_trace
from tests.core.trace.ledgers import GEMM, NCCL, AssertClosed, ledger_of

KERNELS = st.lists(
    st.tuples(
        st.integers(0, 500),  # launched at
        st.integers(0, 60),  # until it starts
        st.integers(0, 60),  # how long it runs
        st.sampled_from([7, 14, 21]),
        st.sampled_from([GEMM, NCCL, "copy"]),
        st.sampled_from(["both", "no launch", "no kernel"]),
    ),
    max_size=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(KERNELS, st.integers(0, 300), st.integers(0, 400), st.booleans())
def test_any_kernels_on_any_streams_close_in_any_window(
    writer: Any,
    assert_closed: AssertClosed,
    kernels: list[tuple[int, int, int, int, str, str]],
    low: int,
    length: int,
    whole: bool,
) -> None:
    writer.events.clear()
    writer.op("phase:forward", 0, 200)
    writer.call("cudaStreamSynchronize", 100, 50)
    for at, wait, duration, stream, name, seen in kernels:
        if seen == "no launch":
            writer.work(name, at + wait, duration, stream=stream, correlation=10**6 + at)
        elif seen == "no kernel":
            writer.call("cudaLaunchKernel", at, 2)
        else:
            writer.launch(at, name, at + wait, duration, stream=stream)
    assert_closed(ledger_of(writer, None if whole else Window(low, low + length)))


CALLS = st.lists(
    st.tuples(
        st.integers(0, 300),  # begins
        st.integers(0, 120),  # lasts
        st.sampled_from([100, 101, 102]),  # on the thread
        st.sampled_from(
            ["aten::mm", "aten::add", "mod:head", "autograd::engine::x", "MmBackward0"]
        ),
    ),
    max_size=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(CALLS, st.integers(0, 200), st.integers(0, 300), st.booleans())
def test_any_operators_on_any_threads_close_in_any_window(
    writer: Any,
    assert_closed: AssertClosed,
    calls: list[tuple[int, int, int, str]],
    low: int,
    length: int,
    whole: bool,
) -> None:
    """Also those that overlap without nesting; none lasts longer than the window."""
    writer.events.clear()
    for begin, duration, thread, name in calls:
        writer.op(name, begin, duration, tid=thread)
    ledger = ledger_of(writer, None if whole else Window(low, low + length))
    table = assert_closed(ledger)
    assert all(row.exclusive_ns <= ledger.window.length for row in table.rows)


@pytest.mark.parametrize("name", ["qwen15_0.5b_h100_fwd", "v100_ddp_train"])
def test_real_traces_agree_with_their_oracle_to_the_nanosecond(
    name: str, shared_data: Path, assert_closed: AssertClosed
) -> None:
    oracle = json.loads((shared_data / "traces" / f"{name}.oracle.json").read_text())
    whole = oracle["whole_trace"]
    path = shared_data / "traces" / f"{name}.json.gz"
    ledger = time_ledger(read_trace(path))
    table = assert_closed(ledger)
    assert ledger.span == whole["span_ns"]
    assert ledger.busy == whole["busy_ns"]
    assert sum(ledger.idle.values()) + ledger.unattributed == whole["idle_ns"]
    kernels = [row for row in table.rows if not row.name.startswith("Mem")]
    assert sum(row.total_ns for row in kernels) == oracle["kernel_time_ns"]
    assert sum(row.calls for row in kernels) == oracle["kernels"]
    assert len({row.name for row in kernels}) == oracle["unique_kernel_names"]
    unlinked = [row for row in kernels if not row.linked]
    assert sum(row.calls for row in unlinked) == oracle["kernels_without_runtime_call"]
    # Its kernels_without_runtime_call_ns is 353,776 too small in qwen15: see below.
    assert sum(row.total_ns for row in unlinked) == _unlinked_ns(path)
    communication = [row for row in kernels if row.category == "communication"]
    assert sum(row.total_ns for row in communication) == oracle["comm_time_ns"]
    assert sum(row.exclusive_ns for row in communication) == whole["exposed_comm_ns(kernels only)"]
    for expected in oracle["top10"]:
        rows = [row for row in kernels if row.name == expected["name"]]
        assert sum(row.calls for row in rows) == expected["count"]
        assert sum(row.total_ns for row in rows) == expected["total_ns"]


def _unlinked_ns(path: Path) -> int:
    """Time of the kernels without a launch, with json and decimals alone.

    A kernel is launched by the call with its correlation id; an arrow of that number leads
    from the call to the kernel; and both are inside one operator, by their external id. In
    qwen15 each of the three by itself leaves the same 436 kernels, and 13,672,640 ns. The
    oracle has the 436 too, but a sum that these kernels' durations do not add up to.
    """
    text = gzip.decompress(path.read_bytes())
    events = json.loads(text, parse_float=Decimal)["traceEvents"]
    by_cat: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_cat.setdefault(event.get("cat", ""), []).append(event)
    kernels = by_cat["kernel"]
    calls = by_cat["cuda_runtime"] + by_cat.get("cuda_driver", [])
    launched = {call["args"].get("correlation") for call in calls}
    unlinked = [one for one in kernels if one["args"]["correlation"] not in launched]
    if path.name.startswith("qwen15"):
        arrows = {event["id"] for event in events if event["ph"] == "s"}
        operators = {one["args"].get("External id") for one in by_cat["cpu_op"]}
        assert unlinked == [one for one in kernels if one["args"]["correlation"] not in arrows]
        assert unlinked == [
            one for one in kernels if one["args"].get("External id") not in operators
        ]
    return int(sum(one["dur"] for one in unlinked) * 1000)
