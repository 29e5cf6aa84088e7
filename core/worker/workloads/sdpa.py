"""The kernel that torch's fused attention dispatches to, asked with the operands of the step.

The choice depends on the GPU, torch's version, the dtype after autocast, strides and gradients:
cuDNN on Hopper in half precision, FlashAttention on an A100, the memory-efficient kernel in
float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from sysbench.core.record.environment import SDPA_KERNEL
from sysbench.core.record.events import DeviceDescribed, Noticed
from sysbench.core.runs.worker_process import Report
from sysbench.core.worker.workloads.stepped_workload import StepError, SteppedWorkload


class _Asked(BaseException):
    """Ends a step that ran only to get its operands; not an error, so that no code handles it."""

    def __init__(self, choice: int) -> None:
        super().__init__()
        self.choice = choice


class _Asking(TorchFunctionMode):
    """Asks torch for its choice at the first fused attention, then ends the step."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            raise _Asked(fused_choice(AttentionCall(*args, **(kwargs or {}))))
        return func(*args, **(kwargs or {}))


class AttentionCall(NamedTuple):
    """Arguments of ``scaled_dot_product_attention`` under torch's names."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value


def fused_choice(call: AttentionCall) -> int:
    """Number of the `SDPBackend` that torch chooses for these operands after autocast."""
    device = call.query.device.type
    q, k, v = call.operands
    if torch.is_autocast_enabled(device):
        q, k, v = (tensor.to(torch.get_autocast_dtype(device)) for tensor in (q, k, v))
    return int(
        torch._fused_sdp_choice(
            *(q, k, v, call.attn_mask, call.dropout_p, call.is_causal),
            scale=call.scale,
            enable_gqa=call.enable_gqa,
        )
    )


def sdpa_kernel_of(workload: SteppedWorkload) -> str | None:
    """``cudnn``, ``flash``, ``efficient`` or ``math``; None if torch has no choice.

    Runs a step eagerly up to its first attention and drops its results.

    Raises:
        StepError: The step failed before its attention.
    """
    row = workload.spec.attention_row
    if row.kernel != "sdpa" or row.backend is not None:
        return None
    eager: AbstractContextManager[object] = nullcontext()
    if workload.spec.compiles:
        eager = torch.compiler.set_stance("force_eager")
    try:
        with eager, _Asking():
            workload.step(lambda phase: None)
    except _Asked as asked:
        members: Mapping[str, Any] = SDPBackend.__members__
        names = {int(member): name for name, member in members.items()}
        return names[asked.choice].removesuffix("_ATTENTION").lower()
    return None


def report_sdpa_kernel(workload: SteppedWorkload, report: Report) -> None:
    """Report the kernel among the settings, after the pass has measured everything.

    A failure becomes a notice.
    """
    try:
        kernel = sdpa_kernel_of(workload)
    except StepError as error:
        report(Noticed(message=f"sdpa kernel unknown: {error.__cause__}"))
        return
    if kernel is not None:
        report(DeviceDescribed(facts={"settings": {SDPA_KERNEL: kernel}}))
