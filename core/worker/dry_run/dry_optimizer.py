"""Optimizers of a dry run: the tensors that torch's make, without their values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from sysbench.core.predict.dry_run_client import PLAIN, TrainingVariant
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.stepped_workload import local_shard

LEAST_QUANTIZED, QUANTIZED_TOGETHER = 4096, 256
"""Elements of the smallest tensor with moments of a byte, and of a block with one scale."""


class DryRunOptimizer:
    """Behaves as the optimizer of `stepped_workload.optimizer_over`, or as that of a variant, from
    its second step on."""

    def __init__(
        self, spec: RunSpec, parameters: list[nn.Parameter], *, variant: TrainingVariant = PLAIN
    ) -> None:
        self._kind = variant.optimizer or spec.optimizer
        self._parameters = parameters
        self.state = {parameter: self._state_of(parameter) for parameter in self._parameters}

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        if self._kind in ("sgd", "adamw-on-cpu"):
            return {}
        parameter = local_shard(parameter)
        if self._kind == "adamw-8bit":
            count = parameter.numel()
            parts = [("values", count, torch.float32)]
            if count >= LEAST_QUANTIZED:
                scales = -(-count // QUANTIZED_TOGETHER)
                parts = [("values", count, torch.uint8), ("scales", scales, torch.float32)]
            return {
                f"{name} of {moment}": torch.zeros(size, dtype=dtype, device=parameter.device)
                for moment in ("exp_avg", "exp_avg_sq")
                for name, size, dtype in parts
            }
        if self._kind == "adafactor" and parameter.dim() > 1:
            rows, columns = [*parameter.shape], [*parameter.shape]
            rows[-1] = columns[-2] = 1
            return {
                "step": torch.tensor(0.0),
                "row_var": parameter.new_zeros(rows),
                "col_var": parameter.new_zeros(columns),
            }
        if self._kind == "adafactor":
            return {"step": torch.tensor(0.0), "variance": torch.zeros_like(parameter)}
        fused = self._kind == "adamw-fused"
        return {
            # Only the fused kernel reads it on the device; the others read it on the host.
            "step": torch.zeros((), device=parameter.device) if fused else torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }

    @torch.no_grad()
    def step(self) -> None:
        parameters = [one for one in self._parameters if one.grad is not None]
        used = [local_shard(parameter) for parameter in parameters]
        gradients = [_placed_gradient(parameter) for parameter in parameters]
        if self._kind in ("adamw-8bit", "adamw-on-cpu"):
            return  # in place by one kernel, or on the host
        if self._kind == "adafactor":
            _adafactor(gradients, [self.state[parameter] for parameter in parameters])
            return
        if self._kind == "sgd":
            sgd(
                used,
                gradients,
                [None] * len(gradients),
                weight_decay=0.0,
                momentum=0.0,
                lr=1e-3,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
            return
        adamw(
            used,
            gradients,
            [self.state[parameter]["exp_avg"] for parameter in parameters],
            [self.state[parameter]["exp_avg_sq"] for parameter in parameters],
            [],
            [self.state[parameter]["step"] for parameter in parameters],
            foreach=self._kind == "adamw-foreach",
            fused=self._kind == "adamw-fused",
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=1e-4,
            weight_decay=1e-2,
            eps=1e-8,
            maximize=False,
        )


def _placed_gradient(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of a gradient, divided as its parameter is.

    Of a table whose rows are divided, each rank holds a gradient of all rows. An operation of the
    optimizer sums those of the ranks and frees the sum, so the part returned is a view of them.
    """
    gradient: Any = parameter.grad
    placements = getattr(parameter, "placements", None)
    if placements is None or gradient.placements == placements:
        return local_shard(gradient)
    gradient.redistribute(placements=placements)
    return local_shard(gradient)[tuple(map(slice, local_shard(parameter).shape))]


def _adafactor(gradients: list[Tensor], states: list[dict[str, Tensor]]) -> None:
    """Allocate what `torch.optim.Adafactor` does in a loop over parameters, without its scalars.

    Names and their lifetimes are torch's: a parameter's update is alive until the next one's.
    """
    for grad, state in zip(gradients, states, strict=True):
        if "row_var" in state:
            row_var, col_var = state["row_var"], state["col_var"]
            row_mean = torch.norm(grad, dim=-1, keepdim=True)
            row_var.lerp_(row_mean, 0.5)
            col_mean = torch.norm(grad, dim=-2, keepdim=True)
            col_var.lerp_(col_mean, 0.5)
            var_estimate = row_var @ col_var
            var_estimate.div_(row_var.mean(dim=-2, keepdim=True).clamp_(min=1e-30))
        else:
            grad_squared = grad * grad
            state["variance"].lerp_(grad_squared, 0.5)
            var_estimate = state["variance"].clone()
        update = var_estimate.clamp_(min=1e-30).rsqrt_()
        update.mul_(grad)
