"""Choose a spec's workload and the precision of its matrix products."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor

from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.compile.apply import compiled
from sysbench.core.worker.workloads.attention import BareAttention
from sysbench.core.worker.workloads.model_workload import Workload as Workload
from sysbench.core.worker.workloads.stepped_workload import EnterPhase as EnterPhase
from sysbench.core.worker.workloads.stepped_workload import StepError as StepError
from sysbench.core.worker.workloads.stepped_workload import (
    SteppedWorkload,
    autocast_dtype,
    weight_dtype,
)
from sysbench.core.worker.workloads.stepped_workload import phases_of as phases_of


class AttentionWorkload(SteppedWorkload):
    """Bare attention: each step builds a new graph and drops the gradients of q, k and v.

    The output gradient is random: summing the output instead would add kernels and strides that
    fused kernels do not accept.
    """

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self.phases = ("forward", "backward", "zero-grad") if spec.has_backward else ("forward",)
        shape = (spec.batch, spec.heads, spec.context, spec.dimensions.head_dimension)
        weights = weight_dtype(spec)
        result = autocast_dtype(spec) or weights
        graph = spec.keeps_graph
        with self.device:
            model = BareAttention(spec.attention_row.kernel, spec.context, causal=spec.is_causal)
            self.q, self.k, self.v = (
                torch.randn(shape, dtype=weights, requires_grad=graph) for _ in range(3)
            )
            self.output_gradient = torch.randn(shape, dtype=result) if spec.has_backward else None
        self.model = compiled(spec, model)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        qkv = (self.q, self.k, self.v)
        return qkv if self.output_gradient is None else (*qkv, self.output_gradient)

    def _step(self, enter: EnterPhase) -> None:
        with ExitStack() as stack:
            if not self.spec.keeps_graph:
                stack.enter_context(torch.inference_mode())
            with self._casting():
                enter("forward")
                mixed = self.model(self.q, self.k, self.v)
            if self.output_gradient is not None:
                enter("backward")
                torch.autograd.backward(mixed, self.output_gradient)
                enter("zero-grad")
                self.q.grad = self.k.grad = self.v.grad = None
            del mixed
        enter("")


MakeWorkload = Callable[[RunSpec], SteppedWorkload]


def make_workload(spec: RunSpec) -> SteppedWorkload:
    """Build the spec's workload for one device.

    Raises:
        ValueError: The spec's workload has no steps.
    """
    if spec.workload == "attention" and not spec.is_own:
        return AttentionWorkload(spec)
    if spec.workload == "transformer" or spec.is_own:
        return Workload(spec)
    raise ValueError(f"workload = {spec.workload} has no steps for one device")


def set_precision(spec: RunSpec) -> None:
    """Set the rounding of float32 matrix products and convolutions."""
    tf32 = spec.precision_row.tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
