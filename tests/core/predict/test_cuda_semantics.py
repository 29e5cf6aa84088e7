"""The closed form's CUDA column against the real model, run on the CPU as CUDA would run it.

CUDA's autocast, its fused RMSNorm and its loss keep other tensors than the CPU's. Here each
function of the model that CUDA treats differently is given CUDA's casts, and the allocations
of the step are counted as for any other. Sizes of tensors are all that this can show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from sysbench.core.predict.closed_form import step_memory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.make_workload import Workload

WITHIN = 0.005
LOWERED = {F.linear, F.scaled_dot_product_attention, Tensor.__matmul__, Tensor.matmul}
WIDENED = {torch.exp, Tensor.sum}


class FusedNorm(torch.autograd.Function):
    """Allocates what CUDA's one-kernel RMSNorm does; computes nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, torch.empty(x.shape[:-1], dtype=torch.float32))
        return torch.ones_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.zeros_like(x), torch.zeros_like(weight)


class Cuda(TorchFunctionMode):
    """Casts as CUDA's autocast of that dtype does; None is without autocast."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.dtype = dtype
        self.copies: dict[Tensor, Tensor] = {}

    def on_phase(self, phase: str) -> None:
        """The workload leaves autocast before backward, and after a step without one."""
        if phase in ("backward", ""):
            self.copies.clear()

    def _cast(self, value: object, dtype: torch.dtype) -> object:
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if not (value.is_leaf and value.requires_grad) or torch.is_inference_mode_enabled():
            return value.to(dtype)
        if value not in self.copies:
            self.copies[value] = value.to(dtype)
        return self.copies[value]

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.rms_norm:
            return FusedNorm.apply(args[0], kwargs["weight"])  # type: ignore[no-untyped-call]
        if self.dtype is None:
            return func(*args, **kwargs)
        if func is F.cross_entropy:
            return F.nll_loss(torch.log_softmax(args[0], 1).float(), args[1])
        if func in LOWERED | WIDENED:
            to = self.dtype if func in LOWERED else torch.float32
            args, kwargs = tree_map(lambda value: self._cast(value, to), (args, kwargs))
        return func(*args, **kwargs)


@pytest.mark.parametrize("step", ["inference", "train"])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "bf16-pure"])
@pytest.mark.parametrize(
    ("size", "batch", "context"),
    [
        ({"vocab": 1000, "d_model": 64, "d_ff": 160, "layers": 3, "heads": 4}, 2, 10),
        ({"vocab": 50, "d_model": 32, "d_ff": 96, "layers": 4, "heads": 2}, 3, 96),
    ],
    ids=["much vocabulary", "long context"],
)
def test_every_phase_has_the_peak_that_cuda_semantics_give(
    size: dict[str, Any],
    batch: int,
    context: int,
    precision: Any,
    attention: Any,
    step: Any,
    peaks_of: Callable[..., dict[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    spec = RunSpec(
        **size,
        batch=batch,
        context=context,
        attention=attention,
        step=step,
        device="cpu",
        precision=precision if dtype is None else "fp32",
    )
    monkeypatch.setattr(
        "sysbench.core.worker.workloads.transformer.matmul_dtype", lambda x: dtype or x.dtype
    )
    workload = Workload(spec)
    with Cuda(dtype) as cuda:
        measured = peaks_of(workload, cuda.on_phase)
    predicted = step_memory(spec.changed(device="cuda:0", precision=precision)).peaks
    assert predicted.keys() == measured.keys() - {"zero-grad"}
    for phase, moment in predicted.items():
        assert moment.total == pytest.approx(measured[phase], rel=WITHIN), phase
