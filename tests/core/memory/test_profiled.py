"""Allocation events out of a chrome trace: written by hand, and by a real profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.errors import DamagedFileError
from sysbench.core.memory.allocations import Notes, replay_allocations
from sysbench.core.memory.history import Frame
from sysbench.core.memory.profiled import (
    HOST,
    ProfiledTrace,
    read_profiled_allocations,
)
from sysbench.core.record.memory import LIBRARY_WORKSPACE

BASE_NS = 1_790_857_026_000_000_000


def move(ts: float, address: int, size: int, *, tid: int = 1, device: int = 0) -> dict[str, Any]:
    args = {"Addr": address, "Bytes": size, "Device Type": device, "Total Allocated": 0}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "tid": tid, "ts": ts} | {
        "args": args
    }


def span(cat: str, name: str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "tid": tid, "ts": ts, "dur": dur}


def encode(*events: dict[str, Any]) -> bytes:
    content = {"baseTimeNanoseconds": BASE_NS, "traceEvents": list(events)}
    return json.dumps(content).encode()


def test_columns_are_exact_and_in_order_of_time() -> None:
    data = encode(
        move(4365311774387.254, 4096, -64, tid=2),
        move(4365311774387.253, 4096, 64),
        move(4365311774400.001, 8192, 0),
        move(4365311774400.002, 8192, 32, device=1),
    )
    history = ProfiledTrace(data).history(HOST)[0]
    assert history.time_ns.tolist() == [
        BASE_NS + 4_365_311_774_387_253,
        BASE_NS + 4_365_311_774_387_254,
    ]
    assert history.change.tolist() == [64, -64]
    assert history.address.tolist() == [4096, 4096]


def test_a_stack_is_the_operator_and_the_open_functions() -> None:
    data = encode(
        span("python_function", "train.py(3): main", 0, 100),
        span("python_function", "model.py(7): forward", 10, 50),
        span("python_function", "<built-in method matmul of type object at 0x7f>", 11, 40),
        span("cpu_op", "aten::matmul", 12, 30),
        span("cpu_op", "aten::mm", 13, 20),
        move(14, 4096, 64),
        span("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 70, 20),
        move(75, 8192, 64),
        move(99, 12288, 64),
        move(200, 16384, 64),
    )
    history = ProfiledTrace(data).history(HOST)[0]
    main = Frame("train.py", 3, "main")
    assert [history.stacks[number] for number in history.stack] == [
        (Frame("", 0, "aten::matmul"), Frame("model.py", 7, "forward"), main),
        (Frame("", 0, "MmBackward0"), main),
        (main,),
        (),
    ]


def test_threads_have_stacks_of_their_own() -> None:
    data = encode(
        span("python_function", "train.py(3): main", 0, 100, tid=1),
        move(50, 4096, 64, tid=2),
    )
    history = ProfiledTrace(data).history(HOST)[0]
    assert history.stacks[history.stack[0]] == ()


def workspaces_in(*events: dict[str, Any]) -> list[int]:
    """Bytes of each allocation that a product took for itself."""
    allocations = replay_allocations(ProfiledTrace(encode(*events)).history(HOST)[0], Notes())
    is_workspace = [category == LIBRARY_WORKSPACE for category in allocations.category]
    found: list[int] = allocations.bytes[is_workspace].tolist()
    return found


def test_what_lives_within_one_product_is_library_workspace() -> None:
    assert workspaces_in(
        span("cpu_op", "aten::linear", 0, 100),
        move(1, 0, 1),  # of linear, a composite operator
        span("cpu_op", "aten::mm", 10, 40),
        move(11, 4096, 2),  # the result
        move(12, 8192, 4),  # oneDNN asks the allocator itself
        span("cpu_op", "aten::empty", 13, 2),
        move(14, 12288, 8),  # a kernel of torch asks for a tensor
        move(48, 12288, -8),
        move(49, 8192, -4),
        move(60, 4096, -2),
        move(99, 0, -1),
    ) == [4, 8]


def test_two_products_have_no_workspace_in_common() -> None:
    assert not workspaces_in(
        span("cpu_op", "aten::bmm", 0, 10),
        move(5, 4096, 64),
        span("cpu_op", "aten::bmm", 20, 10),
        move(25, 4096, -64),
    )


def test_a_product_on_another_thread_is_not_around_it() -> None:
    assert not workspaces_in(
        span("cpu_op", "aten::mm", 0, 100, tid=1),
        move(10, 4096, 64, tid=2),
        move(20, 4096, -64, tid=2),
    )


@pytest.mark.parametrize("operator", ["aten::linear", "aten::matmul", "aten::softmax", "aten::mmm"])
def test_what_is_no_product_has_no_workspace(operator: str) -> None:
    around = span("cpu_op", operator, 0, 100)
    assert not workspaces_in(around, move(10, 4096, 64), move(20, 4096, -64))


def test_a_function_of_that_name_is_no_product() -> None:
    around = span("python_function", "aten::mm", 0, 100)
    assert not workspaces_in(around, move(10, 4096, 64), move(20, 4096, -64))


def test_what_is_never_freed_is_no_workspace() -> None:
    assert not workspaces_in(span("cpu_op", "aten::mm", 0, 100), move(10, 4096, 64))


def test_names_that_are_not_utf8_do_no_harm(tmp_path: Path) -> None:
    data = encode(span("python_function", "model.py(7): NAME", 0, 9), move(1, 4096, 64))
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(data.replace(b"NAME", b"\xe0\x00\x80"[::2])))
    history = read_profiled_allocations(path)
    assert history.change.tolist() == [64]
    assert history.stacks[history.stack[0]][0].file == "model.py"


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"traceEvents": 3}', b"\x1f\x8bbroken", b"\x80\x04."]
)
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"odd\.json"):
        read_profiled_allocations(path)


def test_a_torn_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "torn.json.gz"
    path.write_bytes(gzip.compress(encode(*[move(n, n, 64) for n in range(1000)]))[:-100])
    with pytest.raises(DamagedFileError):
        read_profiled_allocations(path)


def test_names_that_break_the_json_do_no_harm() -> None:
    broken = (
        '{"traceEvents": [\n  {\n    "ph": "X", "cat": "python_function",\n'
        '    "name": "sharding.py(0): \n   """ \\ \x01",\n    "pid": 1, "tid": 1,\n'
        '    "ts": 1.5, "dur": 3\n  },\n'
        '  {"ph": "i", "name": "[memory]", "tid": 1, "ts": 2,\n'
        '   "args": {"Addr": 7, "Bytes": 64, "Device Type": 0}}]}'
    )
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken)
    history = ProfiledTrace(broken.encode()).history(HOST)[0]
    assert history.change.tolist() == [64]
    assert history.stacks[history.stack[0]][0].file == "sharding.py"
