"""The closed form against CUDA's allocator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sysbench.core.predict.closed_form import step_memory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.make_workload import Workload
from tests.core.predict.conftest import cuda_phase_peaks

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
    measured = cuda_phase_peaks(lambda: Workload(spec))
    for phase, moment in step_memory(spec).peaks.items():
        assert moment.total == pytest.approx(measured[phase], rel=0.03), phase
