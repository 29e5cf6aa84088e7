"""Attention kernels of CUDA: predictions against what PyTorch's own allocator held.

Recorded with PyTorch 2.12.0 (cu130) in the third step on an "H100" that computes nothing: the most
bytes requested at once, in blocks, and in segments.
"""

from __future__ import annotations

from typing import Any

import pytest

from sysbench.core.predict.closed_form import predict
from sysbench.core.predict.requests import replay_requests
from sysbench.core.predict.sizes import HOPPER_WORKSPACE
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.dry_run.exact import exact_prediction

MODEL: dict[str, Any] = {"vocab": 500, "d_model": 128, "d_ff": 320, "heads": 4, "layers": 6}


@pytest.mark.parametrize(
    ("settings", "requested", "allocated", "reserved"),
    [
        (
            {"step": "train", "precision": "bf16", "context": 512},
            *(193_813_000, 193_814_016, 232_783_872),
        ),
        (
            {"step": "forward+backward", "precision": "fp32", "context": 256},
            *(117_100_040, 117_101_056, 127_926_272),
        ),
        (
            {"step": "inference", "precision": "fp32", "context": 512},
            *(61_815_300, 61_815_808, 67_108_864),
        ),
        (
            {"attention": "sdpa", "step": "train", "precision": "fp32", "context": 256},
            *(114_288_136, 114_289_152, 117_440_512),
        ),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_the_peak_has_what_the_kernels_take(
    settings: dict[str, Any],
    requested: int,
    allocated: int,
    reserved: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = RunSpec(**MODEL, batch=2, device="cuda:0", **{"attention": "sdpa-math", **settings})
    prediction = exact_prediction(spec)
    assert prediction.requests is not None
    held = replay_requests(prediction.requests, HOPPER_WORKSPACE)
    assert (held.allocated_bytes, held.reserved_bytes) == (allocated, reserved)
    assert prediction.peak_bytes == requested
    assert predict(spec).peak_bytes == pytest.approx(requested, rel=0.002)
