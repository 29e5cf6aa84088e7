"""Shapes that were drawn at random: their predictions, against the memory pass on a null GPU.

Recorded with PyTorch 2.12.0 (cu130) by ``tests.validation.null_gpu.sweep``. Each has something that
once was predicted otherwise: casts of the build, masks added in place, norms of all gradients that
grow with the depth, counts on the host, scratch of attention, the order of cuDNN's results,
blocks that are computed again.
"""

from __future__ import annotations

import pytest

from sysbench.core.predict.dry_run_client import canonical_spec
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.worker.dry_run.exact import exact_prediction

AXES = ("vocab", "d_model", "d_ff", "layers", "heads", "batch", "context")
KEYS = ("step", "precision", "attention", "optimizer", "clip", "checkpoint")
SHAPES = (
    "50257 16 26 18 1 3 961 train fp16 sdpa-math adamw-fused 1.0 0",
    "50257 320 1280 16 4 4 274 train fp16 sdpa adamw-fused 1.0 0",
    "13094 32 128 1 1 6 32 train bf16-pure sdpa-efficient adamw-loop 0.0 0",
    "41742 1280 2722 2 16 2 1024 forward+backward bf16-pure sdpa-flash adamw-foreach 0.0 0",
    "32000 320 762 2 5 7 64 forward+backward bf16-pure naive adamw-foreach 0.0 0",
    "128256 160 566 8 2 6 181 forward bf16 sdpa-math adamw-foreach 0.0 0",
    "32000 64 256 3 1 8 16 inference tf32 sdpa adamw-foreach 0.0 0",
    "50257 80 90 21 5 6 32 train bf16-pure sdpa-math sgd 1.0 7",
    "32000 80 192 18 5 5 64 train bf16-pure sdpa-efficient adamw-fused 1.0 0",
)
AMOUNTS = (
    (1_770_301_890, 1_770_593_792, 2_657_091_584),
    (1_697_802_184, 1_707_751_936, 1_992_294_400),
    (87_649_860, 87_657_472, 98_566_144),
    (1_046_020_660, 1_051_283_968, 1_195_376_640),
    (210_467_972, 213_031_936, 247_463_936),
    (624_671_896, 630_110_208, 645_922_816),
    (67_186_432, 67_581_440, 73_400_320),
    (143_235_940, 143_281_664, 192_937_984),
    (183_523_064, 186_118_656, 197_132_288),
)
"""Bytes requested, allocated and reserved in the third step."""


def spec_of(shape: str) -> RunSpec:
    words = dict(zip((*AXES, *KEYS), shape.split(), strict=True))
    return parse_spec({"device": "cuda:0", **words})


@pytest.mark.parametrize(("shape", "amounts"), zip(SHAPES, AMOUNTS, strict=True))
def test_a_drawn_shape_is_predicted_to_the_byte(shape: str, amounts: tuple[int, ...]) -> None:
    prediction = exact_prediction(canonical_spec(spec_of(shape)), "9.0")
    held = prediction.held
    assert held is not None
    found = (prediction.peak_bytes, held.allocated_bytes, held.reserved_bytes)
    assert found == amounts
