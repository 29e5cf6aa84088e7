"""The roofline model and MFU, on numbers that can be checked by hand."""

from __future__ import annotations

import shutil
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.compare.statistics import spread
from sysbench.core.record.environment import Roof
from sysbench.core.record.record import Kernels, Record, Timing
from sysbench.core.runs.run_directory import RunDirectory, replay_events
from sysbench.core.trace.roofline import (
    ATTENTION_PRODUCTS,
    at_roof,
    roof_points,
    under_roof,
    with_mfu,
    with_roof,
)

ROOF = Roof(
    precision="bf16",
    peak_flops=1000e12,
    peak_source="by hand",
    bandwidth=2e12,
    bandwidth_source="by hand",
)
amounts = st.floats(1, 1e15)


@pytest.fixture(scope="module")
def record(tiny_run: RunDirectory) -> Record:
    return tiny_run.record()


@pytest.fixture(scope="module")
def kernels(record: Record) -> Kernels:
    assert record.kernels is not None
    return record.kernels


@pytest.fixture(scope="module")
def timing(record: Record) -> Timing:
    assert record.timing is not None
    return msgspec.structs.replace(record.timing, step=spread([10.0] * 20), model_flops=2e12)


@given(amounts, amounts)
def test_the_slower_of_the_two_ceilings_binds(flops: float, moved: float) -> None:
    best = at_roof(flops, moved, True, ROOF)
    assert best is not None
    ns, bound = best
    assert ns == pytest.approx(1e9 * max(flops / 1000e12, moved / 2e12))
    assert bound == ("compute" if flops / moved > 500 else "memory") or flops / moved == 500


def test_what_is_not_known_binds_nothing() -> None:
    no_bandwidth = msgspec.structs.replace(ROOF, bandwidth=None)
    assert at_roof(None, None, True, ROOF) is None
    assert at_roof(1e6, None, False, ROOF) is None
    assert at_roof(1e6, 1e6, False, no_bandwidth) is None
    compute, memory = at_roof(1e6, 1e6, True, no_bandwidth), at_roof(1e9, 1.0, False, ROOF)
    assert compute is not None
    assert memory is not None
    assert compute[0] == pytest.approx(1.0)
    assert memory[0] == pytest.approx(5e-4)
    assert (compute[1], memory[1]) == ("compute", "memory")


def test_rows_get_their_part_of_the_roof(kernels: Kernels) -> None:
    roofed = with_roof(kernels, ROOF)
    assert roofed.roof == ROOF
    for row in roofed.rows:
        assert (row.of_roof is None) == (row.moved_bytes is None or not row.total_ns)
        if row.of_roof is not None and row.flops and row.category == "gemm":
            at_peak_ns = row.flops / 1000e12 * 1e9
            assert row.of_roof >= at_peak_ns / row.total_ns * (1 - 1e-9)


def test_without_a_roof_there_is_a_reason_and_still_a_rate(kernels: Kernels) -> None:
    bare = with_roof(kernels, None, "nobody knows")
    assert bare.missing["roof"] == "nobody knows"
    assert all(row.of_roof is None for row in bare.rows)
    points = roof_points(bare)
    assert points[0].flops_per_second > 0
    assert all(point.of_roof is None and point.bound is None for point in points)


def test_points_hold_all_rows_with_known_bytes_once(kernels: Kernels) -> None:
    roofed = with_roof(kernels, ROOF)
    for by_phase in (False, True):
        points = roof_points(roofed, by_phase=by_phase)
        known = [row for row in roofed.rows if row.moved_bytes]
        assert sum(point.moved_bytes for point in points) == pytest.approx(
            sum(row.moved_bytes or 0 for row in known)
        )
        assert sum(point.flops for point in points) == pytest.approx(
            sum(row.flops or 0 for row in known)
        )
        assert [point.ns for point in points] == sorted((p.ns for p in points), reverse=True)
        assert all(0 < point.known <= 1 for point in points)
    labels = [point.label for point in roof_points(roofed)]
    assert len(labels) == len(set(labels))
    assert {"gemm", ATTENTION_PRODUCTS, "elementwise", "softmax"} <= set(labels)


def test_products_count_the_closed_form_and_attention_is_its_part(
    record: Record, kernels: Kernels
) -> None:
    points = {(p.label, p.phase): p for p in roof_points(kernels, by_phase=True)}
    spec, prediction = record.spec, record.prediction
    assert prediction is not None
    attention = 4 * spec["batch"] * spec["context"] ** 2 * spec["d_model"] * spec["layers"]
    assert points[ATTENTION_PRODUCTS, "forward"].flops == pytest.approx(attention)
    weights = prediction["forward_flops"] - attention
    assert points["gemm", "forward"].flops == pytest.approx(weights)


def test_mfu_has_both_conventions_and_its_arithmetic(timing: Timing) -> None:
    result = with_mfu(timing, ROOF, "", 1.5e12)
    assert result.mfu == pytest.approx(2e12 / 10e-3 / 1000e12)
    assert result.causal_mfu == pytest.approx(0.15)
    assert "2 TFLOP / 0.01 s / 1 PFLOP/s = 20.00 %" in result.mfu_formula
    assert "15.00 %" in result.mfu_formula
    assert "by hand" in result.mfu_formula
    assert "mfu" not in result.missing


def test_mfu_without_a_peak_is_not_zero(timing: Timing) -> None:
    result = with_mfu(timing, None, "no peak is known", 1.5e12)
    assert result.mfu is None
    assert result.causal_mfu is None
    assert result.missing["mfu"] == "no peak is known"
    assert result.causal_model_flops == 1.5e12


def test_a_peak_kept_beside_the_spec_makes_the_roof_and_leaves_the_identity(
    tiny_run: RunDirectory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = RunDirectory(tmp_path_factory.mktemp("copy") / tiny_run.id)
    shutil.copytree(tiny_run.path, copy.path)
    header: dict[str, Any] = msgspec.json.decode(copy.header_path.read_bytes())
    header["peak"] = {"tflops": 100.0, "gigabytes_per_second": 50.0}
    copy.header_path.write_bytes(msgspec.json.encode(header))
    bare, given_peak = replay_events(tiny_run).record(), replay_events(copy).record()
    assert given_peak.identity == bare.identity
    assert bare.timing is not None and bare.timing.mfu is None
    assert bare.kernels is not None and "CPU" in bare.kernels.missing["roof"]
    assert given_peak.timing is not None and given_peak.kernels is not None
    assert given_peak.timing.tflops is not None
    assert given_peak.timing.mfu == pytest.approx(given_peak.timing.tflops / 100)
    assert given_peak.kernels.roof is not None
    assert given_peak.kernels.roof.ridge == pytest.approx(2000)
    assert any(row.of_roof for row in given_peak.kernels.rows)


def test_a_hosts_times_are_not_held_against_the_roof_of_a_gpu(
    kernels: Kernels, timing: Timing
) -> None:
    blind = msgspec.structs.replace(kernels, missing={"kernels": "not recorded"})
    shown = under_roof(blind, timing, ROOF, "")
    assert shown is not None
    assert shown.roof is None
    assert "CPU operators" in shown.missing["roof"]
    assert all(row.of_roof is None for row in shown.rows)
    seen = under_roof(kernels, timing, ROOF, "")
    assert seen is not None and seen.roof == ROOF
