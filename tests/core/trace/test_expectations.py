"""The checks hold on a real run, and each fails loudly on a table bent in its respect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sysbench.core.findings import kernels_rules
from sysbench.core.findings.findings_rules import findings_of
from sysbench.core.record.environment import Roof
from sysbench.core.record.record import Finding, KernelRow, Kernels, Record
from sysbench.core.record.steps import ProductError, RouterLoad
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.layer_tables import layer_tables
from sysbench.core.trace.attention_kernels import (
    contradicting,
    forward_products,
)
from sysbench.core.trace.roofline import with_mfu, with_roof

FIRST = kernels_rules.RULES.index(kernels_rules.weight_product_count)
CONTRADICTIONS = kernels_rules.RULES[FIRST:]
ROOF = Roof(precision="fp32", peak_flops=1e15, peak_source="by hand", bandwidth=1e12)


@pytest.fixture(scope="module")
def record(tiny_run: RunDirectory) -> Record:
    return tiny_run.record()


def bent(struct: Any, **changes: object) -> Any:
    return msgspec.structs.replace(struct, **changes)


def kernels_of(record: Record) -> Kernels:
    assert record.kernels is not None
    return record.kernels


def with_rows(record: Record, change: Callable[[KernelRow], KernelRow | None]) -> Record:
    """The record with each row changed, or left out."""
    rows = [row for one in kernels_of(record).rows if (row := change(one)) is not None]
    made: Record = bent(record, kernels=bent(record.kernels, rows=rows))
    return made


def found(record: Record) -> dict[str, Finding]:
    """What the rules of the roof say, by rule."""
    findings = [rule(record) for rule in CONTRADICTIONS]
    return {one.rule: one for one in findings if one is not None}


def test_a_real_run_keeps_every_identity(record: Record) -> None:
    layers = record.spec["layers"]
    kernels = kernels_of(record)
    assert forward_products(kernels, of_attention=False) == 7 * layers + 1
    assert forward_products(kernels, of_attention=True) == 2 * layers
    assert found(record) == {}
    assert not {one.rule for one in findings_of(record)} & {"gemm-count", "flops-contradict"}


def is_head(row: KernelRow) -> bool:
    return row.module == "head" and row.phase == "forward" and row.name == "aten::mm"


def test_a_product_that_is_missing_is_a_problem(record: Record) -> None:
    finding = found(with_rows(record, lambda row: None if is_head(row) else row))["gemm-count"]
    assert finding.severity == "problem"
    assert finding.numbers == {"expected": 15, "found": 14.0}


def test_an_attention_product_that_is_missing_is_a_problem(record: Record) -> None:
    changed = with_rows(record, lambda row: None if row.name == "aten::bmm" else row)
    assert list(found(changed)) == ["attention-count"]
    assert found(bent(changed, spec=record.spec | {"attention": "sdpa"})) == {}


@pytest.mark.parametrize("changes", [{"compile": "default"}, {"workload": "attention"}])
def test_what_a_compiler_merges_or_another_workload_runs_is_not_counted(
    record: Record, changes: dict[str, Any]
) -> None:
    changed = with_rows(record, lambda row: None if is_head(row) else row)
    assert found(bent(changed, spec=record.spec | changes)) == {}


def test_flops_of_another_model_are_a_problem(record: Record) -> None:
    counted = kernels_of(record).counted_flops or {}
    half = counted | {"forward": counted["forward"] / 2}
    changed = bent(record, kernels=bent(record.kernels, counted_flops=half))
    assert found(changed)["flops-contradict"].severity == "problem"
    unknown = bent(
        record,
        kernels=bent(record.kernels, counted_flops=half, missing={"counted_flops": "some"}),
    )
    assert found(unknown) == {}


TF32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_ffma_kernel"
IEEE = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_kernel"
CUTLASS_TF32 = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>()"
BF16 = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
TURING = "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn"


@pytest.mark.parametrize(
    ("precision", "names", "contradicts"),
    [
        ("fp32", [IEEE, "ampere_sgemm_128x64_tn"], False),
        ("fp32", [IEEE, IEEE, TF32], True),
        ("fp32", [CUTLASS_TF32], True),
        ("fp32", [BF16], True),
        ("tf32", [TF32, CUTLASS_TF32], False),
        ("tf32", [TF32, TF32, "ampere_sgemm_128x64_tn"], False),
        ("tf32", [IEEE, IEEE, TF32], True),
        ("bf16", [BF16, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"], False),
        ("bf16", [TF32], True),
        ("fp16", [TURING, "nvjet_sm90_hss_64x8_64x16_1x1_h_bz_splitK_NNT"], False),
        ("fp16", [TURING, IEEE, IEEE], True),
        ("bf16-pure", [IEEE], True),
        ("bf16", ["triton_tem_fused_mm_0"], False),
    ],
)
def test_kernels_of_another_precision_are_a_problem(
    record: Record, precision: str, names: list[str], contradicts: bool
) -> None:
    row = next(one for one in kernels_of(record).rows if one.category == "gemm")
    rows = [bent(row, name=name, total_ns=1e6, flops=None, phase="backward") for name in names]
    kernels = bent(record.kernels, source="kernels", rows=rows)
    changed = bent(record, kernels=kernels, spec=record.spec | {"precision": precision})
    assert ("precision-contradicted" in found(changed)) == contradicts
    assert bool(contradicting(kernels, precision)) == contradicts
    assert contradicting(bent(kernels, source="operators"), precision) == []


def test_a_step_above_the_peak_is_a_problem(record: Record) -> None:
    assert record.timing is not None and record.timing.tflops is not None
    low = bent(ROOF, peak_flops=record.timing.tflops * 1e12 / 2)
    timing = with_mfu(record.timing, low, "", 1.0)
    finding = found(bent(record, timing=timing))["faster-than-peak"]
    assert finding.severity == "problem"
    assert finding.numbers["ratio"] == pytest.approx(2)
    assert "by hand" in finding.why


def test_a_kernel_above_the_peak_is_a_problem(record: Record) -> None:
    fastest = max(
        (row for row in kernels_of(record).rows if row.flops and row.category == "gemm"),
        key=lambda row: (row.flops or 0) / row.total_ns,
    )
    rate = (fastest.flops or 0) / fastest.total_ns * 1e9
    for peak, fires in ((rate / 2, True), (rate * 1.01, False)):
        kernels = with_roof(kernels_of(record), bent(ROOF, peak_flops=peak))
        assert ("faster-than-peak" in found(bent(record, kernels=kernels, timing=None))) == fires


def test_fused_attention_is_held_against_the_peak_of_the_format_that_it_may_use(
    record: Record,
) -> None:
    """The float32 kernel multiplies in TF32: twice the plain peak is no contradiction."""
    row = bent(kernels_of(record).rows[0], category="attention", flops=2e9, total_ns=1e6)
    for attention_flops, fires in ((None, True), (5e12, False), (1.5e12, True)):
        made = bent(ROOF, peak_flops=1e12, attention_flops=attention_flops)
        kernels = with_roof(bent(kernels_of(record), rows=[row]), made)
        changed = bent(record, kernels=kernels, timing=None)
        assert ("faster-than-peak" in found(changed)) == fires
        assert (kernels.rows[0].of_roof or 0) <= 1 or fires
    product = bent(row, category="gemm")
    kernels = with_roof(bent(kernels_of(record), rows=[product]), bent(ROOF, peak_flops=1e12))
    assert "faster-than-peak" in found(bent(record, kernels=kernels, timing=None))


def test_step_of_attention_alone_uses_the_peak_of_attention(record: Record) -> None:
    assert record.timing is not None and record.timing.tflops is not None
    rate = record.timing.tflops * 1e12
    roof_of_both = bent(ROOF, peak_flops=rate / 2, attention_flops=rate * 2)
    timing = with_mfu(record.timing, roof_of_both, "", 1.0)
    for workload, fires in (("attention", False), ("transformer", True)):
        spec = record.spec | {"workload": workload, "compile": "default"}
        changed = bent(record, timing=timing, spec=spec, kernels=None)
        assert ("faster-than-peak" in found(changed)) == fires


def test_an_expert_with_several_times_the_mean_is_noted_with_its_padding(record: Record) -> None:
    busy, even = (
        RouterLoad(module="layers.1.gate", top_k=1, rows_by_expert=rows)
        for rows in ([90, 10, 20, 0], [30, 30, 30, 30])
    )
    kernels = bent(kernels_of(record), routers=[even, busy])
    finding = found(bent(record, kernels=kernels))["busy-expert"]
    assert "One of 4 experts of layers.1.gate gets 3.0 times" in finding.verdict
    assert "90 rows, the mean is 30, and 1 get none; 1 of 2 routers" in finding.why
    assert "67 % would be padding" in finding.why
    (table,) = layer_tables(bent(record, kernels=kernels))
    assert [*table.column("imbalance")] == [3.0, 1.0]
    few = bent(busy, rows_by_expert=[9, 1, 2, 0])
    for routers in ([even], [few], []):
        assert "busy-expert" not in found(bent(record, kernels=bent(kernels, routers=routers)))


def test_scales_that_take_longer_than_the_products_of_float8_are_a_finding(record: Record) -> None:
    first = kernels_of(record).rows[0]
    step_ns = kernels_of(record).step_ms * 1e6
    layer = {"name": "blocks.*.ffn.w1", "layers": 2, "in_features": 128, "out_features": 512}
    head = layer | {"name": "head", "why_not": "the output head"}
    environment = record.environment | {"float8": {"layers": [layer, head]}}
    for products, scales, module, fires in (
        (0.1, 0.3, "blocks.*.ffn.w1", True),
        (0.3, 0.1, "blocks.*.ffn.w1", False),
        (0.01, 0.04, "blocks.*.ffn.w1", False),
        (0.1, 0.3, "head", False),
    ):
        rows = [
            bent(first, module=module, category=category, exclusive_ns=share * step_ns)
            for category, share in (("gemm", products), ("elementwise", scales))
        ]
        kernels = bent(kernels_of(record), rows=rows)
        changed = bent(record, kernels=kernels, environment=environment)
        assert ("float8-scaling" in found(changed)) == fires
        (table,) = layer_tables(changed)
        names = [*table.column("name")]
        assert table.column("scaling_ns")[names.index(module)] == pytest.approx(scales * step_ns)


def test_layers_in_float8_that_take_longer_than_without_are_a_finding(record: Record) -> None:
    first, name = kernels_of(record).rows[0], "blocks.*.ffn.w1"
    layer = {"name": name, "layers": 2, "in_features": 128, "out_features": 512}
    facts: dict[str, Any] = {
        "environment": record.environment | {"float8": {"layers": [layer]}},
        "spec": record.spec | {"precision": "fp8"},
    }
    rows = [
        bent(first, module=name, category=category, exclusive_ns=ns)
        for category, ns in (("gemm", 3e6), ("elementwise", 2e6))
    ]
    for plain, words in ((4e6, "0 of 1"), (2.5e6, "1 of 1"), (6e6, ""), (None, "")):
        errors = [ProductError(name=name, float8=0.03, autocast=0.002, autocast_ns=plain)]
        kernels = bent(kernels_of(record), rows=rows, product_errors=errors)
        changed = bent(record, kernels=kernels, **facts)
        finding = found(changed).get("float8-no-gain")
        assert (finding is not None) == bool(words)
        if finding is not None:
            assert finding.verdict.endswith("ms in bf16.") and words in finding.why
        (table,) = layer_tables(changed)
        assert ("autocast_ns" in table.columns) == bool(plain)
