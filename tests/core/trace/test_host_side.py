"""Annotations, Python functions and calls of an imported file: times add up to busy time."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.core.inspection.inspection import Inspection
from sysbench.core.record.steps import HostRange, HostSide
from sysbench.core.trace.host_side import Work, host_side, range_rows
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_events import Ranges
from sysbench.core.trace.trace_reader import read_trace

Inspected = Callable[[Path], Inspection]
NAMES = ["a", "b", "c"]
REAL = (
    *("traces/v100_ddp_train", "more/hta_rank0", "more/hta_cupti", "more/kin_resnet50_autograd"),
    *("more/sid_transformer_b", "more/switch_moe_a", "more/tl_vllm_piecewise_exec"),
    *("more/tl_mi210_gpu_only", "nsys/h100_2gpu_1s.sqlite"),
)


def found(writer: Any, **choice: Any) -> HostSide:
    trace = read_trace(writer.write())
    return host_side(trace, time_ledger(trace, **choice), [])


def times(rows: list[HostRange]) -> dict[str, tuple[int, int, int, int, int]]:
    """Calls, host, own, total and all-thread time of each row."""
    return {
        row.name: (row.calls, row.host_ns, row.own_ns, row.total_ns, row.meanwhile_ns)
        for row in rows
    }


def test_work_counts_for_the_ranges_around_its_launch(writer: Any) -> None:
    writer.add("user_annotation", "outer", 0, 100)
    writer.add("user_annotation", "inner", 10, 20)
    writer.add("user_annotation", "inner", 50, 20)
    writer.add("user_annotation", "idle", 75, 5)
    writer.launch(5, "k", 200, 1)
    writer.launch(12, "k", 300, 10)
    writer.launch(52, "k", 400, 100)
    writer.launch(60, "k", 600, 1000, tid=101)  # of the engine: while outer and inner are open
    writer.launch(100, "k", 2000, 10_000)  # outer is over
    side = found(writer)
    assert times(side.annotations) == {
        "outer": (1, 100, 1, 111, 1111),
        "inner": (2, 40, 110, 110, 1110),
        "idle": (1, 5, 0, 0, 0),
    }
    assert side.elsewhere_ns == 11_000
    assert [row.launched for row in side.annotations] == [3, 2, 0]


def test_a_range_in_its_own_name_counts_once(writer: Any) -> None:
    writer.add("user_annotation", "again", 0, 100)
    writer.add("user_annotation", "again", 10, 20)
    writer.launch(12, "k", 300, 10)
    assert times(found(writer).annotations) == {"again": (2, 100, 10, 10, 10)}


def test_numbered_calls_are_one_range_and_numbered_parts_are_not(writer: Any) -> None:
    for number in range(8):
        writer.add("user_annotation", f"batch {number}", 100 * number, 50)
        writer.add("user_annotation", f"fc{number}", 100 * number + 10, 20)
        writer.launch(100 * number + 15, "k", 1000 + 100 * number, 7)
    for part in (1, 2):
        writer.add("user_annotation", f"norm {part}", 900 + part, 1)
    names = Counter(row.name for row in found(writer).annotations)
    assert names == Counter(
        ["batch *", "norm 1", "norm 2", *(f"fc{number}" for number in range(8))]
    )
    assert found(writer).annotations[0].total_ns == 56


def test_chosen_steps_have_their_own_ranges(writer: Any) -> None:
    for number in (1, 2):
        writer.add("user_annotation", f"ProfilerStep#{number}", 1000 * number, 500)
        writer.add("user_annotation", f"part of {number}", 1000 * number + 10, 100)
        writer.launch(1000 * number + 20, "k", 1000 * number + 30, 10 * number)
    assert {row.name: row.own_ns for row in found(writer, steps=(2, 2)).annotations} == {
        "ProfilerStep#*": 0,
        "part of 2": 20,
    }


def test_functions_by_file_and_line_without_torch_or_a_home(writer: Any) -> None:
    def frame(name: str, start: int, length: int) -> None:
        writer.add("python_function", name, start, length)

    frame("/home/jane/work/train.py(12): main", 0, 100)
    frame("torch/nn/modules/module.py(1501): _call_impl", 10, 50)
    frame("/opt/lib/site-packages/torch/nn/functional.py(7): relu", 11, 40)
    frame("<built-in function linear>", 12, 30)
    frame("model.py(3): forward", 13, 20)
    frame("model.py(40): launches_nothing", 35, 5)
    writer.launch(15, "k", 200, 10)
    writer.launch(70, "k", 300, 5)
    side = found(writer)
    assert times(side.functions) == {
        "model.py(3): forward": (1, 20, 10, 10, 10),
        "work/train.py(12): main": (1, 100, 5, 15, 15),
    }
    assert side.no_function_ns == 0


def test_a_file_without_a_host_has_the_projection_of_its_ranges(writer: Any) -> None:
    writer.add("gpu_user_annotation", "forward", 100, 50, device=0)
    writer.work("k", 110, 20, correlation=5)
    writer.work("k", 150, 30, correlation=6)
    side = found(writer)
    assert side.projected and side.elsewhere_ns == 30
    assert times(side.annotations) == {"forward": (1, 50, 20, 20, 20)}


spans = st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 30), st.integers(1, 30))
pieces = st.tuples(st.integers(-1, 1), st.integers(0, 60), st.integers(0, 9))


@settings(max_examples=25, deadline=None)
@given(st.lists(spans, max_size=12), st.lists(pieces, max_size=12))
def test_own_times_and_the_rest_are_all_the_work(
    opened: list[tuple[int, int, int, int]], launched: list[tuple[int, int, int]]
) -> None:
    name, thread, start, length = np.array(opened, dtype=np.int64).reshape(-1, 4).T
    ranges = Ranges(name=name, thread=thread, start=start, end=start + length)
    where, at, own = np.array(launched, dtype=np.int64).reshape(-1, 3).T
    work = Work(where, at, own, np.ones(len(own), dtype=np.int64))
    rows, elsewhere = range_rows(NAMES, ranges, work, np.ones(len(ranges), dtype=np.bool_))
    assert sum(row.own_ns for row in rows) + elsewhere == own.sum()
    assert sum(row.calls for row in rows) == len(opened)
    for row in rows:
        assert 0 <= row.own_ns <= row.total_ns <= row.meanwhile_ns
        open_now = [span for span in opened if NAMES[span[0]] == row.name]
        total = sum(
            ns
            for where_of, time, ns in launched
            if any(of == where_of and 0 <= time - at < n for _, of, at, n in open_now)
        )
        assert row.total_ns == total
        any_thread_ns = sum(
            ns
            for thread_of, time, ns in launched
            if thread_of >= 0 and any(first <= time < first + n for _, _, first, n in open_now)
        )
        assert row.meanwhile_ns == any_thread_ns


@pytest.mark.parametrize("name", REAL)
def test_real_files_close_to_the_nanosecond(
    shared_data: Path, name: str, inspected: Inspected
) -> None:
    path = shared_data / (name if "." in name else f"{name}.json.gz")
    kernels = inspected(path).kernels
    side = kernels.host if kernels else None
    assert kernels is not None and side is not None
    annotated = sum(row.own_ns for row in side.annotations) + side.more_ns + side.elsewhere_ns
    in_functions = sum(row.own_ns for row in side.functions)
    assert annotated == kernels.busy_ns
    assert in_functions + side.more_functions_ns + side.no_function_ns == kernels.busy_ns


def test_real_ranges_and_calls_are_those_of_the_file(
    shared_data: Path, inspected: Inspected
) -> None:
    path = shared_data / "more" / "hta_rank0.json.gz"
    events = [
        event
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        if event.get("ph") == "X"
    ]
    inspection = inspected(path)
    side = inspection.kernels.host if inspection.kernels else None
    assert side is not None
    opened = [event for event in events if event["cat"] == "user_annotation"]
    called = [event for event in events if event["cat"] == "cuda_runtime"]
    assert sum(row.calls for row in side.annotations) == len(opened) == 73
    own = {row.name: row for row in side.annotations}["## forward ##"]
    lengths = [event["dur"] for event in opened if event["name"] == own.name]
    assert (own.calls, own.host_ns) == (2, 1000 * sum(lengths))
    assert {row.name: row.instances for row in inspection.api_summary} == Counter(
        event["name"] for event in called
    )
    assert sum(row.total_ns for row in side.calls) == 1000 * sum(event["dur"] for event in called)


def test_real_functions_name_their_lines(shared_data: Path, inspected: Inspected) -> None:
    path = shared_data / "more" / "sid_transformer_h100.json.gz"
    kernels = inspected(path).kernels
    assert kernels is not None and kernels.host is not None
    first, *_ = kernels.host.functions
    assert (first.name, first.calls, first.own_ns) == (
        "torch_prof.py(36): forward",
        3,
        kernels.busy_ns,
    )
