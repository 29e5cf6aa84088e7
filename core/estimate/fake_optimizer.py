"""The spec's optimizer as its functional form, which is all that its class's step calls.

The classes refuse tensors without data, and import torch._dynamo.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from ..spec.spec import RunSpec


class FakeOptimizer:
    """Steps as `worker.workload.make_optimizer`'s does, from its second step on.

    Attributes:
        state: By parameter what the class keeps for it, in place from the start.
    """

    def __init__(self, spec: RunSpec, model: nn.Module) -> None:
        self._kind = spec.optimizer
        self._parameters: list[Tensor] = list(model.parameters())
        self.state = {parameter: self._state_of(parameter) for parameter in self._parameters}

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        if self._kind == "sgd":
            return {}
        fused = self._kind == "adamw-fused"
        return {
            # On the host but for the fused one: the others look at it.
            "step": torch.zeros((), device=parameter.device) if fused else torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter by its gradient."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if self._kind == "sgd":
            sgd(
                self._parameters,
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
            self._parameters,
            gradients,
            self._all("exp_avg"),
            self._all("exp_avg_sq"),
            [],
            self._all("step"),
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

    def _all(self, name: str) -> list[Tensor]:
        return [self.state[parameter][name] for parameter in self._parameters]
