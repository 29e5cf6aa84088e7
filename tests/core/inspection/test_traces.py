"""What a chrome trace gives beside its kernels: a roof from its device, allocations of the CPU."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.errors import DamagedFileError
from sysbench.core.inspection.inspection import Inspection
from sysbench.core.inspection.reading import read_tables, under_peak
from sysbench.core.machine.peaks import Peak
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.trace.classify import BETWEEN, LAUNCHING

H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3"}
BF16 = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"


def read(path: Path) -> Inspection:
    return read_tables(path, lambda stage, done, total: None).inspection


def product(kernel: str = BF16) -> list[dict[str, Any]]:
    """A product of 4 TFLOP that takes 10 ms, on device 0."""
    shapes = {
        "Input Dims": [[8192, 16384], [16384, 16384]],
        "Input type": ["c10::BFloat16", "c10::BFloat16"],
    }
    place = {"ph": "X", "pid": 1, "tid": 1}
    return [
        place | {"cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 20, "args": shapes},
        place
        | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 5, "dur": 5}
        | {"args": {"correlation": 7}},
        place
        | {"cat": "kernel", "name": kernel, "ts": 100, "dur": 10_000, "tid": 7}
        | {"args": {"correlation": 7, "device": 0, "stream": 7}},
    ]


def write(path: Path, events: list[dict[str, Any]], **facts: Any) -> Path:
    path.write_text(json.dumps({"traceEvents": events} | facts))
    return path


def reached(found: Inspection) -> float | None:
    assert found.kernels is not None
    return found.kernels.rows[0].of_roof


@pytest.mark.parametrize("first", [True, False])
def test_a_known_device_of_the_file_is_the_roof(tmp_path: Path, first: bool) -> None:
    path = tmp_path / "trace.json"
    events = {"traceEvents": product()}
    facts = {"deviceProperties": [H100]}
    path.write_text(json.dumps(facts | events if first else events | facts))
    found = read(path)
    assert found.device == H100["name"]
    assert found.kernels is not None and found.kernels.roof is not None
    assert found.kernels.roof.precision == "bf16"
    flops = 2 * 8192 * 16384 * 16384
    assert reached(found) == pytest.approx(flops / 10e-3 / found.kernels.roof.peak_flops)


def test_a_peak_that_is_given_goes_before_the_table(tmp_path: Path) -> None:
    found = read(write(tmp_path / "trace.json", product(), deviceProperties=[H100]))
    given = under_peak(found, Peak(tflops=1000.0))
    assert reached(given) == pytest.approx(2 * 8192 * 16384**2 / 10e-3 / 1e15)
    unnamed = read(write(tmp_path / "unnamed.json", product("a_gemm")))
    assert reached(unnamed) is None
    assert unnamed.kernels is not None and "--peak" in unnamed.kernels.missing["roof"]
    with_peak = under_peak(unnamed, Peak(tflops=1000.0))
    assert reached(with_peak) == reached(given)
    assert with_peak.kernels is not None and "roof" not in with_peak.kernels.missing


@pytest.mark.parametrize(
    ("properties", "kernel", "reason"),
    [
        ([H100], "a_gemm", "do not give the precision"),
        ([H100 | {"id": 1}, {"id": 2, "name": "Tesla T4"}], BF16, "did not report its name"),
        ([{"id": 0, "name": "Abacus"}], BF16, "Abacus is not in the table"),
        ([{"id": 0, "name": "x" * 10_000}], BF16, "did not report its name"),
        ([{"id": [], "name": {}}, 3, None], BF16, "did not report its name"),
        ({"id": 0}, BF16, "did not report its name"),
    ],
)
def test_a_roof_is_never_guessed(
    tmp_path: Path, properties: object, kernel: str, reason: str
) -> None:
    path = write(tmp_path / "trace.json", product(kernel), deviceProperties=properties)
    found = read(path)
    assert reached(found) is None
    assert found.kernels is not None and reason in found.kernels.missing["roof"]


def test_a_real_trace_names_its_device(
    shared_data: Path, inspected: Callable[[Path], Inspection]
) -> None:
    found = inspected(shared_data / "traces" / "qwen15_0.5b_h100_fwd.json.gz")
    assert found.device == "NVIDIA H100 80GB HBM3"
    longest = reached(found)
    assert longest is not None and 0.3 < longest < 1


def test_devices_that_are_all_alike_need_no_number(tmp_path: Path) -> None:
    """AMD's traces number devices otherwise in their events than in their properties."""
    others = [H100 | {"id": 1}, H100 | {"id": 2}, {"id": 3, "name": ""}]
    assert (
        read(write(tmp_path / "trace.json", product(), deviceProperties=others)).device
        == (H100["name"])
    )


def test_real_files_name_their_devices(
    shared_data: Path, inspected: Callable[[Path], Inspection]
) -> None:
    more = shared_data / "more"
    assert inspected(more / "tl_mi300_qwen.json.gz").device == "AMD Instinct MI300X VF"
    assert inspected(more / "tl_sglang_decode.json.gz").device == "AMD Instinct MI300X"
    assert (
        inspected(more / "tl_vllm_decode_full_exec.json.gz").device is None
    )  # their names are empty


def test_a_real_trace_without_its_kernels_says_so_first(
    shared_data: Path, inspected: Callable[[Path], Inspection]
) -> None:
    found = inspected(shared_data / "more" / "hta_cupti.json.gz")
    assert found.kernels is not None and found.kernels.lacks_kernels
    assert found.kernels.missing["kernels"] == (
        "this file has no GPU kernels (77 launches, 0 kernels); times below are CPU times "
        "(not read: 77 cuda_profiler_range)"
    )
    assert found.kernels.coverage.explained == 0
    assert sum(row.calls for row in found.kernels.rows) == 375  # each cpu_op of the file


def test_a_real_trace_of_torch_before_1_10_has_its_backward(
    shared_data: Path, inspected: Callable[[Path], Inspection]
) -> None:
    kernels = inspected(shared_data / "more" / "kin_resnet50_autograd.json.gz").kernels
    assert kernels is not None
    shares = {
        phase: sum(row.exclusive_ns for row in kernels.rows if row.phase == phase)
        for phase in ("forward", "backward", "optimizer")
    }
    # Backward of a convolution net takes about twice its forward.
    assert 1.2 < shares["backward"] / shares["forward"] < 3
    idle = {row.cause: row.ns for row in kernels.idle}
    assert idle[LAUNCHING] > 100 * idle[BETWEEN]  # 1.67 s and 0.016 s; one before


@pytest.mark.parametrize(("device", "kernels"), [(0, 2184), (1, 2184), (None, 2184)])
def test_a_device_of_a_real_export_is_chosen(
    shared_data: Path, device: int | None, kernels: int
) -> None:
    path = shared_data / "nsys" / "h100_2gpu_1s.sqlite"
    found = read_tables(path, lambda *_: None, device).inspection.kernels
    assert found is not None and found.coverage.kernels == kernels
    assert found.device == (device or 0)
    assert ("selected" in found.missing["devices"]) == (device is not None)


def test_a_real_trace_of_a_capture_has_lost_no_launch(
    shared_data: Path, inspected: Callable[[Path], Inspection]
) -> None:
    found = inspected(shared_data / "more" / "tl_vllm_piecewise_capture.json.gz")
    assert found.kernels is not None
    coverage = found.kernels.coverage
    assert (coverage.launches, coverage.captured, coverage.dropped) == (100, 361, 0)
    assert coverage.explained == 1


def test_real_replays_are_forward_and_tell_what_their_flops_leave_out(
    shared_data: Path, inspected: Callable[[Path], Inspection]
) -> None:
    kernels = inspected(shared_data / "more" / "tl_vllm_decode_full_exec.json.gz").kernels
    assert kernels is not None
    forward = sum(row.share for row in kernels.rows if row.phase == "forward")
    assert forward > 0.99  # 0.031 where replays were of no phase
    assert "known for 3.1 % of the time of products" in kernels.missing["flops.share"]


def test_rows_above_the_roof_are_told(
    shared_data: Path, inspected: Callable[[Path], Inspection]
) -> None:
    kernels = inspected(shared_data / "more" / "sid_transformer_b.json.gz").kernels
    assert kernels is not None
    most = max(row.of_roof or 0.0 for row in kernels.rows)
    assert most > 1.2 and f"up to {100 * most:.0f} % of the roof" in kernels.missing["of_roof"]


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", product())
    with pytest.raises(DamagedFileError, match="no device 3 in this file; devices with work: 0"):
        read_tables(path, lambda *_: None, 3)


def test_the_memory_pass_of_a_cpu_run_gives_its_memory(tiny_run: RunDirectory) -> None:
    measured = tiny_run.record().memory
    found = read(tiny_run.pass_folder("memory") / "allocations.json.gz")
    assert found.kind == "profiled-allocations"
    assert found.memory is not None and measured is not None
    assert found.memory.peak_allocated_bytes == measured.peak_allocated_bytes
    assert found.memory.end_allocated_bytes == measured.end_allocated_bytes
    assert found.memory.first_step_peak_bytes is None
    assert found.memory.missing["first_step_peak_bytes"]
    assert sum(row.bytes for row in found.memory.ledger) == found.memory.peak_allocated_bytes
    assert found.kernels is not None and found.kernels.source == "operators"


def test_allocations_are_read_though_a_name_breaks_the_json(tiny_run: RunDirectory) -> None:
    """The profiler writes some names from memory that was freed."""
    path = tiny_run.pass_folder("memory") / "allocations.json.gz"
    text = gzip.decompress(path.read_bytes())
    broken = text.replace(b'"name": "aten::empty"', b'"name": "a\x01"b"', 1)
    assert broken != text
    damaged = tiny_run.path.parent.parent / "damaged.json"
    damaged.write_bytes(broken)
    found, whole = read(damaged), read(path)
    assert found.kernels is not None and whole.kernels is not None
    assert found.kernels.busy_ns == whole.kernels.busy_ns
    assert found.memory is not None and whole.memory is not None
    assert found.memory.peak_allocated_bytes == whole.memory.peak_allocated_bytes


@pytest.mark.parametrize(
    ("event", "program"),
    [
        ({"ph": "M", "name": "process_name", "args": {"name": "/device:TPU:0"}}, "JAX"),
        ({"ph": "M", "name": "process_name", "args": {"name": "0 CPU HIP API"}}, "rocprof"),
        ({"ph": "X", "name": "add", "pid": "CPU functions", "ts": 1, "dur": 1}, "torch before"),
        ({"ph": "X", "name": "f", "cat": "FEE", "ts": 1, "dur": 1}, "VizTracer"),
        ({"ph": "X", "name": "f", "cat": "mine", "ts": 1, "dur": 1}, "without any kernel"),
    ],
)
def test_a_trace_of_another_program_is_named(
    tmp_path: Path, event: dict[str, Any], program: str
) -> None:
    with pytest.raises(DamagedFileError, match=program):
        read(write(tmp_path / "trace.json", [event]))


@pytest.mark.parametrize("text", ["[]", "{}", '{"traceEvents": []}', '[{"ph": "M"}]'])
def test_a_trace_in_which_nothing_ran_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "empty.json"
    path.write_text(text)
    with pytest.raises(DamagedFileError):
        read(path)
