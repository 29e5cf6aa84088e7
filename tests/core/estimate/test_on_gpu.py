"""The closed form against CUDA's allocator."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from sysbench.core.estimate.step.step import step_memory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.transformer import Workload

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("step", ["inference", "train"])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
def test_every_phase_peaks_where_the_allocator_says(
    precision: Any, attention: Any, step: Any
) -> None:
    spec = RunSpec(
        model="cs336-2025/small",
        context=512,
        precision=precision,
        attention=attention,
        step=step,
        device="cuda:0",
    )
    gc.collect()  # what a test that failed before this one still holds
    torch.cuda.empty_cache()
    _make_workspaces()
    outside = _requested("current")
    workload = Workload(spec)
    measured: dict[str, int] = {}
    phases = [""]

    def on_phase(phase: str) -> None:
        measured[phases[-1]] = _requested("peak") - outside
        torch.cuda.reset_peak_memory_stats()
        phases.append(phase)

    for _ in range(3):
        workload.step(on_phase)
    for phase, moment in step_memory(spec).peaks.items():
        assert moment.total == pytest.approx(measured[phase], rel=0.03), phase


def _make_workspaces() -> None:
    """cuBLAS takes its workspaces once a thread, 32 MiB on Hopper: they belong to no step."""
    weight = torch.zeros(64, 64, device="cuda:0", requires_grad=True)
    torch.autograd.backward((weight @ weight).sum())


def _requested(what: str) -> int:
    """Bytes as requested, which the form predicts: an allocator's block can be larger."""
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{what}"])
