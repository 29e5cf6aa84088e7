"""Whose FLOPs and bytes are whose: each operator's once, to the row that did its work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.record.record import KernelRow, Kernels
from sysbench.core.trace.cost_rows import with_costs, work_from_other_trace, work_from_shapes
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace
from tests.core.conftest import TraceWriter

GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_kernel"
REDUCE = "void cublasLt::splitKreduce_kernel<32, 16>()"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def shapes(*dims: list[int]) -> dict[str, Any]:
    """The arguments by which the profiler tells the inputs."""
    return {"Input Dims": list(dims), "Input type": ["float"] * len(dims)}


def table(writer: TraceWriter) -> Kernels:
    trace = read_trace(writer.write())
    ledger = time_ledger(trace)
    return with_costs(kernel_rows(ledger), work_from_shapes(trace, ledger))


def row(kernels: Kernels, name: str) -> KernelRow:
    (found,) = [one for one in kernels.rows if one.name == name]
    return found


def product(writer: TraceWriter, at: int, m: int, k: int, n: int) -> None:
    """A product on the device: its kernel, and one that finishes it."""
    writer.op("aten::linear", at, 40, **shapes([m, k], [n, k]))
    writer.op("aten::mm", at + 5, 30, **shapes([m, k], [k, n]))
    writer.launch(at + 10, GEMM, at + 100, 50)
    writer.launch(at + 20, REDUCE, at + 150, 20)


def test_the_kernel_that_multiplies_has_the_cost_and_its_helper_none(writer: TraceWriter) -> None:
    product(writer, 0, 8, 16, 32)
    product(writer, 1000, 4, 2, 3)
    kernels = table(writer)
    gemm = row(kernels, GEMM)
    assert gemm.flops == 2 * 8 * 16 * 32 + 2 * 4 * 2 * 3
    assert gemm.moved_bytes == 4 * (8 * 16 + 16 * 32 + 8 * 32) + 4 * (4 * 2 + 2 * 3 + 4 * 3)
    helper = row(kernels, REDUCE)
    assert helper.flops is None
    assert helper.moved_bytes is None
    assert kernels.counted_flops == {"forward": gemm.flops}
    assert "flops" not in kernels.missing


def test_a_helper_that_takes_longer_still_does_not_multiply(writer: TraceWriter) -> None:
    writer.op("aten::mm", 0, 40, **shapes([8, 8], [8, 8]))
    writer.launch(5, "Memset (Device)", 50, 500, cat="gpu_memset")
    writer.launch(10, GEMM, 600, 50)
    kernels = table(writer)
    assert row(kernels, GEMM).flops == 1024
    assert row(kernels, "Memset (Device)").flops is None


def test_flops_without_a_kernel_are_counted_and_told(writer: TraceWriter) -> None:
    product(writer, 0, 8, 8, 8)
    writer.op("aten::mm", 500, 40, **shapes([8, 8], [8, 8]))
    kernels = table(writer)
    assert kernels.counted_flops == {"forward": 2048}
    assert row(kernels, GEMM).flops == 1024
    assert "50.0 %" in kernels.missing["flops"]


def test_what_is_not_known_is_named(writer: TraceWriter) -> None:
    writer.op("aten::convolution", 0, 40, **shapes([8, 8, 9, 9], [8, 8, 3, 3]))
    writer.op("aten::cudnn_convolution", 1, 30, **shapes([8, 8, 9, 9], [8, 8, 3, 3]))
    writer.launch(10, "cudnn_infer_ampere_scudnn_128x64", 100, 50)
    kernels = table(writer)
    assert kernels.rows[0].flops is None
    assert "aten::convolution" in kernels.missing["counted_flops"]


def test_a_trace_without_shapes_says_so(writer: TraceWriter) -> None:
    writer.op("aten::mm", 0, 40)
    writer.launch(10, GEMM, 100, 50)
    kernels = table(writer)
    assert kernels.counted_flops is None
    assert "record_shapes" in kernels.missing["flops"]


def test_on_the_host_the_operator_inside_that_works_has_the_cost(writer: TraceWriter) -> None:
    writer.op("aten::mean", 0, 100, **shapes([10, 10]))
    writer.op("aten::sum", 10, 80, **shapes([10, 10]))
    writer.op("aten::fill_", 20, 5, **shapes([1]))
    writer.op("aten::add", 200, 50, **shapes([10], [10]))
    kernels = table(writer)
    assert row(kernels, "aten::sum").moved_bytes == 404
    assert row(kernels, "aten::mean").moved_bytes is None
    assert row(kernels, "aten::fill_").moved_bytes is None
    assert row(kernels, "aten::add").moved_bytes == 120


def test_a_norm_made_of_known_operators_counts_these(writer: TraceWriter) -> None:
    writer.op("aten::_fused_rms_norm", 0, 100, **shapes([4, 8], [], [8]))
    writer.op("aten::mul", 10, 60, **shapes([4, 8], [8]))
    alone = writer.op
    alone("aten::native_layer_norm", 200, 50, **shapes([4, 8], [8]))
    kernels = table(writer)
    assert row(kernels, "aten::mul").moved_bytes == 4 * (32 + 8 + 32)
    assert row(kernels, "aten::_fused_rms_norm").moved_bytes is None
    assert row(kernels, "aten::native_layer_norm").moved_bytes == 4 * (32 + 8 + 32)


def step(writer: TraceWriter, at: int, widths: list[int], noted: bool) -> int:
    """A forward of some products; returns its end."""
    begin = at
    for width in widths:
        dims = shapes([width, 4], [4, 2]) if noted else {}
        writer.op("aten::mm", at + 10, 50, **dims)
        at += 100
    writer.op("phase:forward", begin, at - begin)
    return at


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 4))
def test_shapes_of_one_step_are_those_of_every_step(
    tmp_path_factory: pytest.TempPathFactory, widths: list[int], steps: int
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    shaped, traced = (TraceWriter(folder / name) for name in ("shapes.json", "trace.json"))
    step(shaped, 0, widths, noted=True)
    end = 100
    for _ in range(steps):
        end = step(traced, end, widths, noted=False) + 50
    traced.op(f"sysbench:steps:{steps}", 50, end)
    trace = read_trace(traced.write())
    ledger = time_ledger(trace)
    work = work_from_other_trace(trace, ledger, read_trace(shaped.write()), 4)
    kernels = with_costs(kernel_rows(ledger), work)
    assert kernels.counted_flops == {"forward": 16.0 * sum(widths)}
    assert row(kernels, "aten::mm").flops == pytest.approx(16.0 * sum(widths))
    assert not {"flops", "counted_flops"} & kernels.missing.keys()


def test_a_step_that_ran_otherwise_lends_nothing(tmp_path: Path) -> None:
    shaped, traced = TraceWriter(tmp_path / "shapes.json"), TraceWriter(tmp_path / "trace.json")
    step(shaped, 0, [1, 2], noted=True)
    step(traced, 0, [1, 2, 3], noted=False)
    trace = read_trace(traced.write())
    ledger = time_ledger(trace)
    work = work_from_other_trace(trace, ledger, read_trace(shaped.write()), 4)
    assert work.rows == {}
    assert "aten::mm" in work.reasons["counted_flops"]


def test_a_real_trace_of_an_h100_is_below_its_roof(shared_data: Path) -> None:
    trace = read_trace(shared_data / "traces" / "qwen15_0.5b_h100_fwd.json.gz")
    ledger = time_ledger(trace)
    work = work_from_shapes(trace, ledger)
    assert work is not None
    assert work.reasons == {}
    assert work.products == {"forward": pytest.approx(6.006e12, rel=1e-3)}
    kernels = with_costs(kernel_rows(ledger), work)
    for one in kernels.rows:
        if one.flops:
            assert one.flops / one.total_ns * 1e9 < 989.4e12
        if one.moved_bytes:
            assert one.moved_bytes / one.total_ns * 1e9 < 3.35e12
