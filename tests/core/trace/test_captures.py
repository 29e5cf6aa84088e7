"""Replays of graphs and the trace of their capture: operators and FLOPs, and no time moved."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.errors import DamagedFileError
from sysbench.core.inspection.inspection import Inspection
from sysbench.core.inspection.reading import read_tables
from sysbench.core.record.record import Kernels
from sysbench.core.trace.captures import AGAINST, AMBIGUOUS, NOT_CAPTURED

GEMM, ADD = "ampere_bf16_s16816gemm_128x64_tn", "void at::native::add_kernel<float>()"


def shapes(rows: int) -> dict[str, Any]:
    return {
        "Input Dims": [[rows, 32], [32, 16]],
        "Input type": ["c10::BFloat16", "c10::BFloat16"],
        "Concrete Inputs": ["", ""],
    }


def capture(path: Path, *rows: int) -> Path:
    """A graph for each number of rows: a product, then a sum, each of a module of its own."""
    events: list[dict[str, Any]] = []
    for number, count in enumerate(rows):
        at = 1000 * number

        def call(name: str, start: int, correlation: int) -> dict[str, Any]:
            return {"cat": "cuda_runtime", "name": name, "ts": start, "dur": 2} | {
                "args": {"correlation": correlation}
            }

        def module(name: str, start: int) -> dict[str, Any]:
            return {"cat": "python_function", "name": f"nn.Module: {name}", "ts": start, "dur": 90}

        events += [
            call("cudaStreamBeginCapture", at, 10 * number + 1),
            module(f"Linear_{number}", at + 100),
            {"cat": "cpu_op", "name": "aten::mm", "ts": at + 110, "dur": 20}
            | {"args": shapes(count)},
            call("cudaLaunchKernel", at + 115, 10 * number + 2),
            module(f"Sum_{number}", at + 200),
            {"cat": "cpu_op", "name": "aten::add", "ts": at + 210, "dur": 20},
            call("cudaLaunchKernel", at + 215, 10 * number + 3),
            call("cudaStreamEndCapture", at + 500, 10 * number + 4),
        ]
    place = {"ph": "X", "pid": 1, "tid": 1}
    path.write_text(json.dumps({"traceEvents": [place | event for event in events]}))
    return path


def replays(path: Path, *names: tuple[str, ...]) -> Path:
    """A replay for each tuple of kernels, which take 10, 11, … µs."""
    events: list[dict[str, Any]] = []
    for number, kernels in enumerate(names, 1):
        at = 1000 * number
        events.append(
            {"cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": at, "dur": 5}
            | {"args": {"correlation": number}}
        )
        events += [
            {"cat": "kernel", "name": kernel, "ts": at + 100 * place, "dur": 9 + place, "tid": 7}
            | {"args": {"correlation": number, "device": 0}}
            for place, kernel in enumerate(kernels, 1)
        ]
    place = {"ph": "X", "pid": 1, "tid": 1}
    path.write_text(json.dumps({"traceEvents": [place | event for event in events]}))
    return path


def read(path: Path, capture: Path | None = None) -> Kernels:
    found = read_tables(path, lambda *_: None, capture=capture).inspection.kernels
    assert found is not None
    return found


def by_name(kernels: Kernels) -> dict[str, float]:
    """The time of each kernel, whatever launched it."""
    sums: defaultdict[str, float] = defaultdict(float)
    for row in kernels.rows:
        sums[row.name] += row.exclusive_ns
    return sums


def test_a_replay_has_the_operators_modules_and_flops_of_its_capture(tmp_path: Path) -> None:
    path = replays(tmp_path / "replays.json", (GEMM, ADD), (GEMM, ADD))
    without, joined = read(path), read(path, capture(tmp_path / "capture.json", 64))
    assert {(row.op, row.module, row.flops) for row in without.rows} == {("", "", None)}
    assert {(row.op, row.module, row.phase) for row in joined.rows} == {
        ("aten::mm", "Linear_*", "forward"),
        ("aten::add", "Sum_*", "forward"),
    }
    (product,) = [row for row in joined.rows if row.op == "aten::mm"]
    assert product.flops == 2 * (2 * 64 * 32 * 16)
    assert joined.counted_flops == {"forward": product.flops}
    assert joined.missing["capture"] == (
        "4 of 4 kernels of graph replays are joined with their capture, by their order"
    )
    assert (joined.busy_ns, joined.idle, joined.unattributed_ns) == (
        *(without.busy_ns, without.idle, without.unattributed_ns),
    )
    assert sum(row.exclusive_ns for row in joined.rows) == joined.busy_ns == 42_000


def test_as_many_captures_as_replays_are_one_each(tmp_path: Path) -> None:
    path = replays(tmp_path / "replays.json", (GEMM, ADD), (GEMM, ADD))
    tables = read_tables(path, lambda *_: None, capture=capture(tmp_path / "c.json", 64, 64))
    assert tables.layers is not None
    assert {row.module for row in tables.layers.rows if row.op == "aten::mm"} == {
        "Linear_0",
        "Linear_1",
    }


@pytest.mark.parametrize(
    ("kernels", "rows", "why"),
    [
        ((GEMM, ADD, ADD), (64,), NOT_CAPTURED),
        ((ADD, GEMM), (64,), AGAINST),
    ],
)
def test_ambiguous_captures_are_not_joined(
    tmp_path: Path, kernels: tuple[str, ...], rows: tuple[int, ...], why: str
) -> None:
    path = replays(tmp_path / "replays.json", kernels)
    without, joined = read(path), read(path, capture(tmp_path / "capture.json", *rows))
    assert joined.missing["capture"].endswith(f"{len(kernels)} not: {why}")
    assert all((row.op, row.flops) == ("", None) for row in joined.rows)
    assert by_name(joined) == by_name(without)


def test_captures_of_several_shapes_give_operators_and_no_flops(tmp_path: Path) -> None:
    path = replays(tmp_path / "replays.json", (GEMM, ADD))
    joined = read(path, capture(tmp_path / "capture.json", 64, 128))
    assert {(row.op, row.flops) for row in joined.rows} == {("aten::mm", None), ("aten::add", None)}
    assert joined.missing["capture"] == (
        "2 of 2 kernels of graph replays are joined with their capture, by their order; "
        "2 without FLOPs: captures with different shapes fit"
    )


def test_captures_of_several_operators_give_none(tmp_path: Path) -> None:
    path = replays(tmp_path / "replays.json", (GEMM, ADD))
    file = capture(tmp_path / "capture.json", 64, 64)
    file.write_text("aten::sub".join(file.read_text().rsplit("aten::add", 1)))
    joined = read(path, file)
    assert joined.missing["capture"].endswith(f"2 not: {AMBIGUOUS}")
    assert all((row.op, row.flops) == ("", None) for row in joined.rows)


def hip_capture(path: Path, *launches: tuple[str, str]) -> Path:
    """One graph whose launches name their kernels: an operator and a kernel each."""
    events: list[dict[str, Any]] = [
        {"cat": "cuda_runtime", "name": "hipStreamBeginCapture", "ts": 0, "dur": 2},
        {"cat": "cuda_runtime", "name": "hipStreamEndCapture", "ts": 9000, "dur": 2},
    ]
    for number, (operator, kernel) in enumerate(launches, 1):
        args = {"correlation": number, "kernel": kernel}
        events += [
            {"cat": "cpu_op", "name": operator, "ts": 100 * number, "dur": 50},
            {"cat": "cuda_runtime", "name": "hipModuleLaunchKernel"}
            | {"ts": 100 * number + 10, "dur": 2, "args": args},
        ]
    place = {"ph": "X", "pid": 1, "tid": 1}
    path.write_text(json.dumps({"traceEvents": [place | event for event in events]}))
    return path


LAYER = (("aten::norm", "rms"), ("aten::mm", "gemm_a"), ("aten::silu", "act"))
WHOLE = (*LAYER, ("aten::mm", "gemm_a"), *LAYER, ("aten::mm", "last"))


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ([7], "; 2 replays lack launches of the capture: launch 8 is in no replay"),
        ([0], "; 2 replays lack launches of the capture: launch 1 is in no replay"),
        ([2], "; 2 replays lack launches of the capture: launch 3 is in no replay"),
        (
            [2, 6],
            "; 2 replays lack launches of the capture: 2 of them, the first launch 3, are in none",
        ),
        ([1, 2, 6], "; 2 replays lack launches of the capture"),  # which of two gemm_a is open
    ],
)
def test_a_replay_that_lacks_kernels_of_its_capture_is_joined(
    tmp_path: Path, lost: list[int], words: str
) -> None:
    kept = [launch for number, launch in enumerate(WHOLE) if number not in lost]
    names = tuple(kernel for _, kernel in kept)
    path = replays(tmp_path / "replays.json", names, names)
    joined = read(path, hip_capture(tmp_path / "capture.json", *WHOLE))
    count = 2 * len(names)
    assert joined.missing["capture"] == (
        f"{count} of {count} kernels of graph replays are joined with their capture, by their "
        f"names and order{words}"
    )
    assert {(row.name, row.op) for row in joined.rows} == {(kernel, op) for op, kernel in kept}


def test_a_public_capture_is_one_launch_longer_than_its_replays(shared_data: Path) -> None:
    folder = shared_data / "cases" / "files" / "f34_capture_one_launch_longer"
    joined = read(folder / "replays.json", folder / "capture.json")
    assert [row.op for row in joined.rows].count("aten::mm") == 2
    assert joined.missing["capture"] == (
        "6 of 6 kernels of graph replays are joined with their capture, by their names and order; "
        "2 replays lack launches of the capture: launch 4 is in no replay"
    )


def test_a_part_that_fits_different_operators_is_not_joined(tmp_path: Path) -> None:
    path = replays(tmp_path / "replays.json", ("rms", "copy", "act"))
    twice = (("aten::norm", "rms"), ("aten::add", "copy"), ("aten::sub", "copy"), LAYER[2])
    joined = read(path, hip_capture(tmp_path / "capture.json", *twice))
    assert joined.missing["capture"].endswith(f"3 not: {AMBIGUOUS}")


def test_half_of_a_capture_is_no_replay_of_it(tmp_path: Path) -> None:
    path = replays(tmp_path / "replays.json", ("rms", "act", "last"))
    joined = read(path, hip_capture(tmp_path / "capture.json", *WHOLE))
    assert joined.missing["capture"].endswith(f"3 not: {NOT_CAPTURED}")


def test_a_file_in_which_nothing_was_captured_is_refused(tmp_path: Path) -> None:
    path = replays(tmp_path / "replays.json", (GEMM, ADD))
    with pytest.raises(DamagedFileError, match="no capture of a graph"):
        read(path, path)


def test_real_replays_are_joined_by_the_names_of_their_kernels(
    shared_data: Path, inspected: Callable[[Path], Inspection]
) -> None:
    more = shared_data / "more"
    path = more / "tl_vllm_piecewise_exec.json.gz"
    file = more / "tl_vllm_piecewise_capture.json.gz"
    without, joined = inspected(path).kernels, read(path, file)
    assert without is not None
    assert joined.missing["capture"] == (
        "361 of 361 kernels of graph replays are joined with their capture, by their names "
        "and order"
    )
    assert by_name(joined) == by_name(without) and joined.idle == without.idle
    events = msgspec.json.decode(gzip.decompress(file.read_bytes()))["traceEvents"]
    counted = 0
    for event in events:
        if event.get("cat") == "cpu_op" and event["name"] == "aten::addmm":
            (_, (rows, inner), (_, columns), *_) = event["args"]["Input Dims"]
            counted += 2 * rows * inner * columns
    assert joined.counted_flops is not None and without.counted_flops is not None
    gained = sum(joined.counted_flops.values()) - sum(without.counted_flops.values())
    assert gained == counted > 1e13
    assert "known for 12.0 % of the time of products" in joined.missing["flops.share"]
    assert "known for 0.2 % of the time of products" in without.missing["flops.share"]
