"""Layers in 8 and 4 bits by torchao: which are converted, what a step takes, what is refused."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sysbench.core.errors import SpecError
from sysbench.core.predict.dry_run_client import ExactPrediction, canonical_spec
from sysbench.core.record.environment import LinearLayers, linear_layers
from sysbench.core.spec.choices import precision_named
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.tables.layer_tables import linear_layers_table
from sysbench.core.trace.attention_kernels import precision_shown
from sysbench.core.worker.dry_run.exact import exact_prediction
from sysbench.core.worker.workloads.low_precision import convert_linears, product_errors
from sysbench.core.worker.workloads.stepped_workload import bytes_of
from sysbench.tui.cli import main

SIZES: dict[str, Any] = {
    "model": "custom",
    "vocab": 256,
    "d_model": 64,
    "d_ff": 168,
    "layers": 5,
    "heads": 4,
}
ROWWISE = precision_named("fp8")


def spec_of(**settings: Any) -> RunSpec:
    return parse_spec({**SIZES, "precision": "fp8", "device": "cuda:0", **settings})


class Model(nn.Module):
    """Tokens to logits, with a layer of each kind that is not converted."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(48, 32)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.attention = nn.MultiheadAttention(32, 2)
        self.router = nn.Linear(32, 5)
        self.head = nn.Linear(32, 48)


def test_layers_are_listed_with_the_reason_why_they_were_not_converted() -> None:
    pytest.importorskip("torchao")
    model = Model()
    weight = model.blocks[1].weight
    converted, layers = convert_linears(model, ROWWISE)
    assert converted is model and model.blocks[1].weight is weight
    assert [(row.name, row.layers, row.why_not) for row in layers] == [
        ("blocks.*", 3, ""),
        (
            "attention.out_proj",
            1,
            "a NonDynamicallyQuantizableLinear, whose code may use the weight itself",
        ),
        ("router", 1, "outputs = 5 not divisible by 16"),
        ("head", 1, "the output head"),
    ]
    names = {name for name, one in model.named_modules() if type(one).__name__ == "Float8Linear"}
    assert names == {"blocks.0", "blocks.1", "blocks.2"}
    table = linear_layers_table(layers, ROWWISE)
    assert table.title == "3 of 6 linear layers in float8"


@pytest.mark.parametrize("precision", ["fp8", "fp8-tensorwise"])
def test_errors_of_products_are_those_of_the_formats(precision: str) -> None:
    """torch's own product of float8 on the CPU, against sums in float64."""
    pytest.importorskip("torchao")
    generator = torch.Generator().manual_seed(0)
    model = nn.ModuleList([*(nn.Linear(256, 256) for _ in range(2)), nn.Linear(256, 5)])
    tokens = torch.randn(64, 256, generator=generator).bfloat16()
    converted, _ = convert_linears(model, precision_named(precision))
    layers = [layer for layer in model if isinstance(layer, nn.Linear)][:2]

    def run() -> None:
        model[1](model[0](tokens))

    (row,) = product_errors(converted, run)
    assert row.name == "*"
    wrong = whole = 0.0
    given = tokens
    for layer in layers:
        exact = (given.double() @ layer.weight.double().T + layer.bias.double()).detach()
        output = layer(given).detach()
        wrong += float((output.double() - exact).square().sum())
        whole += float(exact.square().sum())
        given = output
    assert row.float8 is not None and row.autocast is not None
    assert row.float8 == pytest.approx((wrong / whole) ** 0.5, rel=1e-3)
    # Rounding to nearest is wrong by at most 2^-4 of a number in e4m3, and 2^-8 in bf16.
    assert 2**-8 < row.float8 < 2 * 2**-4
    assert 2**-12 < row.autocast < 2 * 2**-8
    assert all(not layer._forward_hooks for layer in layers)


def test_a_model_without_layers_to_convert_is_refused() -> None:
    pytest.importorskip("torchao")
    with pytest.raises(SpecError, match=r"no linear layer .*outputs = 5 not divisible by 16"):
        convert_linears(nn.Sequential(nn.Linear(16, 5)), ROWWISE)
    with pytest.raises(SpecError, match="the model has none"):
        convert_linears(nn.Sequential(nn.ReLU()), ROWWISE)


def test_without_torchao_the_message_has_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(SpecError, match=r"pip install 'sysbench-tui\[fp8\]'"):
        convert_linears(Model(), ROWWISE)


def test_products_of_converted_layers_are_in_float8_and_the_others_as_before() -> None:
    pytest.importorskip("torchao")
    played, plain = (
        exact_prediction(canonical_spec(spec_of(precision=name)), "9.0") for name in ("fp8", "bf16")
    )
    tokens, width, layers = 4 * 128, SIZES["d_model"], SIZES["layers"]
    # Four projections of attention; the feed-forward's width of 168 is not divisible by 16.
    one_way = 2 * tokens * 4 * width**2 * layers
    assert flops_by_dtype(played) == {
        "float8_e4m3fn": 3 * one_way,
        "bfloat16": plain.step_flops - 3 * one_way,
    }
    assert [(row.name, row.layers) for row in played.linear_layers if not row.why_not] == [
        (f"blocks.*.attention.{name}", layers) for name in ("q", "k", "v", "out")
    ]
    assert not plain.linear_layers


def flops_by_dtype(prediction: ExactPrediction) -> dict[str, int]:
    found: dict[str, int] = {}
    for phase in prediction.phases:
        for product in phase.products:
            found[product.dtype] = found.get(product.dtype, 0) + product.flops * product.count
    return found


def test_gradients_are_in_the_other_format_by_tensor() -> None:
    pytest.importorskip("torchao")
    played = exact_prediction(canonical_spec(spec_of(precision="fp8-tensorwise")), "9.0")
    flops = flops_by_dtype(played)
    assert flops["float8_e5m2"] == 2 * flops["float8_e4m3fn"]  # a gradient is the first operand


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"device": "cpu"}, "precision = 'fp8': exists on CUDA devices only; on the CPU take fp32"),
        ({"step": "inference"}, "forward or train, with precision = fp8"),
        ({"batch": 1, "context": 8}, "divisible by 16 in fp8.* the 8 tokens"),
        ({"ranks": 2, "parallel": "ddp"}, "bf16, with several ranks"),
    ],
)
def test_specs_that_float8_layers_cannot_run_are_refused(
    changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        spec_of(**changed)


def test_a_gpu_without_float8_is_refused_with_its_capability() -> None:
    ROWWISE.check_capability("8.9")
    ROWWISE.check_capability(None)
    precision_named("bf16").check_capability("7.5")
    with pytest.raises(SpecError, match=r"8\.9 or later .* A100 has 8\.0: take bf16"):
        ROWWISE.check_capability("8.0", "A100")


def test_estimate_runs_the_converted_step_and_lists_its_layers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torchao")
    asked = ["estimate", "tiny", "precision=fp8", "--json", "--card"]
    assert main([*asked, "h100"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["method"].startswith("exact")
    assert answer["closed_form_peak_bytes"] is None
    counts = {row["name"]: row["layers"] for row in answer["linear_layers"] if not row["why_not"]}
    assert counts["blocks.*.attention.q"] == 2 and "head" not in counts
    assert main([*asked, "a100-80gb"]) == 2
    error = capsys.readouterr().err
    assert "A100-SXM4-80GB has 8.0: take bf16" in error and "SpecError" not in error


def padded(rows: int, columns: int) -> int:
    """Scales of a matrix as cuBLAS reads them: tiles of 128 x 4."""
    return -(-rows // 128) * 128 * -(-columns // 4) * 4


BLOCKS = {
    "mxfp8": lambda rows, columns: rows * columns + padded(rows, columns // 32),
    "nvfp4": lambda rows, columns: rows * columns // 2 + padded(rows, columns // 16) + 4,
}
"""Bytes of a weight: its numbers, a byte for each block of 32 or 16, and in nvfp4 a float32."""


@settings(max_examples=20, deadline=None)
@given(
    precision=st.sampled_from(sorted(BLOCKS)),
    rows=st.integers(1, 30).map(lambda n: 16 * n),
    columns=st.integers(1, 12).map(lambda n: 32 * n),
    has_bias=st.booleans(),
)
def test_weights_are_kept_in_blocks(
    precision: str, rows: int, columns: int, has_bias: bool
) -> None:
    pytest.importorskip("torchao")
    layer = nn.Linear(columns, rows, bias=has_bias, dtype=torch.bfloat16)
    before = layer.weight.detach().float()
    converted, (row,) = convert_linears(nn.Sequential(layer), precision_named(precision))
    assert (row.name, row.why_not) == ("*", "")
    weight, *bias = converted.parameters()
    assert bytes_of([weight]) == BLOCKS[precision](rows, columns)
    assert [one.nbytes for one in bias] == [2 * rows] * has_bias
    after = weight.dequantize().float()
    # Half of the step between numbers with 3 or 1 bits behind the point, or the smallest number.
    share = {"mxfp8": 2**-4, "nvfp4": 2**-2}[precision]
    assert (after - before).abs().max() <= share * before.abs().max()
    assert after.count_nonzero() > 0.8 * before.count_nonzero()


@pytest.mark.parametrize("precision", sorted(BLOCKS))
def test_a_token_reads_weights_in_blocks(precision: str) -> None:
    pytest.importorskip("torchao")
    sizes = {"step": "decode", "batch": 3, "context": 40, "d_ff": 176}
    played, plain = (
        exact_prediction(canonical_spec(spec_of(precision=name, **sizes)), "10.0")
        for name in (precision, "bf16-pure")
    )
    width, layers = SIZES["d_model"], SIZES["layers"]
    # Of 176 inputs no block of 32 is left; as outputs they are divisible by 16.
    shapes = [*[(width, width)] * 4, *[(176, width)] * 2]
    converted = 2 * 3 * layers * sum(rows * columns for rows, columns in shapes)
    kept = {"mxfp8": "float8_e4m3fn", "nvfp4": "float4_e2m1fn_x2"}[precision]
    assert flops_by_dtype(played) == {
        kept: converted,
        "bfloat16": plain.step_flops - converted,
    }
    saved = sum(2 * rows * columns - BLOCKS[precision](rows, columns) for rows, columns in shapes)
    assert played.parameter_bytes == plain.parameter_bytes - layers * saved
    (left,) = {row.why_not for row in played.linear_layers if row.name.startswith("blocks")} - {""}
    assert left == "inputs = 176 not divisible by 32"


def test_layers_in_blocks_need_blackwell_and_no_gradients() -> None:
    with pytest.raises(SpecError, match="inference, prefill or decode, with precision = nvfp4"):
        spec_of(precision="nvfp4")
    with pytest.raises(SpecError, match="exists on CUDA devices only"):
        spec_of(precision="mxfp8", step="decode", device="cpu")
    row = precision_named("nvfp4")
    row.check_capability("12.0")
    with pytest.raises(SpecError, match=r"10\.0 or later \(Blackwell\); H100 has 9\.0"):
        row.check_capability("9.0", "H100")


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", "fp8"),
        ("sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x64", "fp8"),
        ("nvjet_tst_128x256", "bf16"),
        # Scales are e4m3, operands e2m1.
        ("cutlass3x_sm120_bstensorop_s16864gemm_block_scaled_ue4m3xe2m1_ue4m3xe2m1_f32", "nvfp4"),
    ],
)
def test_names_of_kernels_show_the_precision(name: str, precision: str) -> None:
    shown = precision_shown(name)
    assert shown is not None and shown.name == precision


def test_the_environment_holds_the_layers() -> None:
    row = LinearLayers(name="head", layers=1, in_features=8, out_features=5, why_not="odd")
    facts = {
        "float8": {
            "layers": [
                {"name": "head", "layers": 1, "in_features": 8, "out_features": 5, "why_not": "odd"}
            ]
        }
    }
    assert linear_layers(facts) == [row]
    assert linear_layers({}) == []
