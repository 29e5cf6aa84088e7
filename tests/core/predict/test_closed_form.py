"""FLOPs, ledgers and limits of the closed form; other files check its memory."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any, get_args

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from sysbench.core.errors import SpecError
from sysbench.core.formatting import parse_bytes
from sysbench.core.predict.closed_form import (
    ROWS,
    predict,
    why_no_workspace,
)
from sysbench.core.predict.fit_grid import fit
from sysbench.core.spec.choices import AttentionName, PrecisionName
from sysbench.core.spec.spec import Optimizer, RunSpec, StepKind
from sysbench.core.worker.workloads.make_workload import phases_of


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    """Any spec of a small size that the checks allow."""
    heads = draw(st.integers(1, 5))
    settings: dict[str, Any] = {
        "vocab": draw(st.integers(1, 5000)),
        "d_model": 2 * heads * draw(st.integers(1, 40)),
        "d_ff": draw(st.integers(1, 700)),
        "layers": draw(st.integers(1, 9)),
        "heads": heads,
        "batch": draw(st.integers(1, 9)),
        "context": draw(st.integers(1, 300)),
        "precision": draw(st.sampled_from(get_args(PrecisionName))),
        "attention": draw(st.sampled_from(get_args(AttentionName))),
        "step": draw(st.sampled_from(get_args(StepKind))),
        "optimizer": draw(st.sampled_from(get_args(Optimizer))),
        "device": draw(st.sampled_from(["auto", "cpu", "cuda:0"])),
    }
    try:
        return RunSpec(**settings)
    except SpecError:
        reject()


@given(specs())
def test_the_ledger_adds_up_and_nothing_in_it_is_negative(spec: RunSpec) -> None:
    prediction = predict(spec)
    assert sum(row.bytes for row in prediction.ledger) == prediction.peak_bytes
    assert all(row.bytes > 0 for row in prediction.ledger)
    names = [row.name for row in prediction.ledger]
    assert names == [name for name in ROWS if name in names]
    assert prediction.peak_phase in phases_of(spec)
    assert prediction.parameters == spec.dimensions.parameters
    rows = {row.name: row.bytes for row in prediction.ledger}
    assert rows["parameters"] == prediction.parameter_bytes


@given(specs())
def test_the_peak_holds_what_every_step_of_its_kind_needs(spec: RunSpec) -> None:
    prediction = predict(spec)
    assert prediction.peak_bytes > prediction.parameter_bytes + prediction.saved_activation_bytes
    if spec.has_backward:
        assert prediction.peak_bytes >= 2 * prediction.parameter_bytes
    assert (prediction.saved_activation_bytes > 0) == spec.keeps_graph


@given(specs(), st.integers(2, 5))
def test_saved_activations_grow_with_batch_and_layers_and_peaks_never_shrink(
    spec: RunSpec, times: int
) -> None:
    one, more = predict(spec), predict(spec.changed(batch=spec.batch * times))
    assert more.peak_bytes >= one.peak_bytes
    assert more.step_flops == times * one.step_flops
    deeper = predict(spec.changed(layers=spec.layers * times))
    assert deeper.peak_bytes > one.peak_bytes
    assert deeper.saved_activation_bytes >= one.saved_activation_bytes


# Forward TFLOP at batch 4, contexts 128, 256, 512, 1024.
PUBLISHED_TFLOP: dict[str, tuple[float, ...]] = {
    "cs336-2025/small": (0.126, 0.257, 0.534, 1.145),
    "cs336-2025/medium": (0.429, 0.871, 1.794, 3.795),
    "cs336-2025/large": (0.992, 2.007, 4.111, 8.609),
    "cs336-2025/xl": (2.050, 4.140, 8.441, 17.53),
    "cs336-2025/2.7B": (3.484, 7.010, 14.19, 29.07),
    "cs336-2026/10B": (13.15, 26.43, 53.34, 108.6),
}


@pytest.mark.parametrize("model", PUBLISHED_TFLOP)
def test_forward_flops_are_the_published_ones(model: str) -> None:
    for context, tflop in zip((128, 256, 512, 1024), PUBLISHED_TFLOP[model], strict=True):
        flops = predict(RunSpec(model=model, context=context)).forward_flops
        assert flops / 1e12 == pytest.approx(tflop, rel=1e-3, abs=5e-4)


@pytest.mark.parametrize(
    ("step", "times"), [("inference", 1), ("forward", 1), ("forward+backward", 3), ("train", 3)]
)
def test_a_step_counts_what_it_does(step: Any, times: int) -> None:
    prediction = predict(RunSpec(step=step))
    assert prediction.step_flops == times * prediction.forward_flops
    assert prediction.backward_flops == (times - 1) * prediction.forward_flops


def test_the_causal_count_leaves_out_half_of_attention() -> None:
    spec = RunSpec(vocab=1, d_model=2, d_ff=1, layers=1, heads=1, context=10**4)
    prediction = predict(spec)
    assert prediction.causal_forward_flops / prediction.forward_flops == pytest.approx(
        0.5, abs=1e-3
    )


def residents(spec: RunSpec) -> dict[str, int]:
    return {row.name: row.bytes for row in predict(spec).ledger}


def test_adamw_foreach_peaks_at_twenty_bytes_per_parameter_and_fused_at_sixteen() -> None:
    spec = RunSpec(model="2.7B", device="cuda:0")
    parameters = spec.dimensions.parameters
    assert predict(spec).peak_phase == "optimizer"
    assert predict(spec).peak_bytes == pytest.approx(20 * parameters, rel=1e-3)
    fused = predict(spec.changed(optimizer="adamw-fused"))
    assert fused.peak_bytes == pytest.approx(16 * parameters, rel=1e-2)


@pytest.mark.parametrize(
    ("settings", "bytes_per_parameter"),
    [
        ({"optimizer": "sgd"}, 0),
        ({"optimizer": "adamw-fused"}, 8),
        ({"optimizer": "adamw-fused", "precision": "bf16-pure"}, 4),
        ({"optimizer": "adamw-fused", "step": "forward+backward"}, 0),
    ],
)
def test_optimizer_state_is_two_copies_of_what_is_trained(
    settings: dict[str, Any], bytes_per_parameter: int
) -> None:
    spec = RunSpec(model="cs336-2025/small", **settings)
    state = residents(spec).get("optimizer state", 0)
    assert state == bytes_per_parameter * spec.dimensions.parameters


def test_autocast_holds_half_a_copy_of_the_matrices_only_where_a_graph_does() -> None:
    spec = RunSpec(model="2.7B", precision="bf16", step="forward", device="cuda:0")
    size = spec.dimensions
    matrices = size.parameters - size.vocab * size.d_model
    copies = residents(spec)["autocast weight copies"]
    assert copies == pytest.approx(2 * matrices, rel=1e-3)
    # Inference mode casts a weight again each time it is used, and drops it.
    inference = residents(spec.changed(step="inference")).get("autocast weight copies", 0)
    assert inference <= 2 * max(size.d_model * size.d_ff, size.vocab * size.d_model)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("attention", ["naive", "sdpa", "sdpa-math"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
def test_the_shown_formula_of_a_block_gives_the_bytes_saved(
    precision: Any, attention: Any, device: str
) -> None:
    spec = RunSpec(
        model="cs336-2025/medium",
        step="forward",
        precision=precision,
        attention=attention,
        device=device,
    )
    shown = predict(spec).formulas["saved for backward"]
    match = re.search(r"L\(BT\((\d+)d \+ (\d+)f\)(?: \+ (\d+)BhT²)?\)", shown)
    assert match is not None
    of_d, of_f, of_scores = (int(number or 0) for number in match.groups())
    size, tokens = spec.dimensions, spec.tokens_per_step
    block = tokens * (of_d * size.d_model + of_f * size.d_ff)
    block += of_scores * tokens * size.heads * spec.context
    saved = predict(spec).saved_activation_bytes
    assert size.layers * block == pytest.approx(saved, rel=0.02)
    assert parse_bytes(shown.rpartition(": ")[2]) == pytest.approx(saved, rel=0.01)


def test_every_formula_is_shown_with_its_value() -> None:
    prediction = predict(RunSpec(model="cs336-2025/large", device="cuda:0"))
    assert "L(4d² + 3df + 2d) + d + 2Vd = 969,411,840" in prediction.formulas["parameters"]
    assert "2BT[L(4d² + 3df) + Vd] + 4BT²dL" in prediction.formulas["forward FLOPs"]
    assert prediction.formulas["peak"].startswith("parameters + ")
    assert all(row.name in prediction.formulas["peak"] for row in prediction.ledger)


def test_huge_specs_are_still_arithmetic() -> None:
    spec = RunSpec(
        vocab=2**31 - 1,
        d_model=2**30,
        d_ff=2**31 - 1,
        layers=10_000,
        heads=2**29,
        batch=2**20,
        context=2**24,
    )
    assert predict(spec).peak_bytes > 2**100
    assert fit(spec, "batch", 2**60, predict).largest == 0


def test_a_prediction_needs_no_torch() -> None:
    code = (
        "import sys; from sysbench.core.spec.spec import RunSpec; "
        "from sysbench.core.predict.closed_form import predict; predict(RunSpec()); "
        "print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("settings", "instructions", "is_named"),
    [
        ({"precision": "bf16"}, "AVX512_CORE_AMX", True),
        ({"precision": "bf16-pure"}, "AVX512_CORE", True),
        ({"precision": "fp16"}, "AVX512_CORE_AMX", True),
        ({"precision": "fp16"}, "AVX512_CORE_BF16", False),
        ({"precision": "bf16"}, "AVX2", False),
        ({"precision": "bf16"}, None, False),
        ({"precision": "fp32"}, "AVX512_CORE_AMX", False),
        ({"precision": "bf16", "device": "cuda:0"}, "AVX512_CORE_AMX", False),
    ],
)
def test_what_no_prediction_has_is_named_where_it_is_taken(
    settings: dict[str, Any], instructions: str | None, is_named: bool
) -> None:
    why = why_no_workspace(RunSpec(**{"device": "cpu"} | settings), instructions)
    assert (why is not None) == is_named
    if why is not None:
        assert settings["precision"] in why and str(instructions) in why
