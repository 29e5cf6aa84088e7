"""The workload of a dry run: model, optimizer and step on meta tensors, which have no data.

The optimizers' update functions are called directly: torch's optimizer classes refuse tensors
without data.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd
from torch.overrides import TorchFunctionMode

from sysbench.core.predict.variant import PLAIN, Variant
from sysbench.core.spec.choices import without_autocast
from sysbench.core.spec.own_model import source_of
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.dry_run.building import request_initialisation
from sysbench.core.worker.dry_run.device import device_semantics
from sysbench.core.worker.dry_run.sharding import local_shard
from sysbench.core.worker.dry_run.vary import vary
from sysbench.core.worker.workloads.factory import Parts
from sysbench.core.worker.workloads.model_workload import Workload


class DryRunOptimizer:
    """Steps as the optimizer of `workloads.base.optimizer_over` from its second step on.

    Attributes:
        state: Optimizer state by parameter, allocated from the start.
    """

    def __init__(self, spec: RunSpec, parameters: list[nn.Parameter]) -> None:
        self._kind = spec.optimizer
        self._parameters = parameters
        self.state = {parameter: self._state_of(parameter) for parameter in self._parameters}

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        if self._kind == "sgd":
            return {}
        parameter = local_shard(parameter)
        fused = self._kind == "adamw-fused"
        return {
            # Only the fused kernel reads it on the device; the others read it on the host.
            "step": torch.zeros((), device=parameter.device) if fused else torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        parameters = [one for one in self._parameters if one.grad is not None]
        used = [local_shard(parameter) for parameter in parameters]
        gradients = [local_shard(one.grad) for one in parameters if one.grad is not None]
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


class DryRunWorkload(Workload):
    """The workload of any model on meta tensors, on any machine.

    Attributes:
        requested_spec: The spec that is predicted; ``spec`` is its stand-in, run eagerly.
    """

    def __init__(self, requested_spec: RunSpec, variant: Variant = PLAIN) -> None:
        self.requested_spec = requested_spec
        self._variant = variant
        super().__init__(
            _runnable(requested_spec),
            torch.device("meta"),
            DryRunOptimizer,  # type: ignore[arg-type]
        )

    def _parts(self) -> Parts:
        parts = super()._parts()
        if not self.spec.is_own:  # torch initialises nothing on meta
            parts.model.apply(request_initialisation)
        return parts

    def _prepared(self, model: nn.Module) -> nn.Module:
        model = super()._prepared(model)
        vary(model, self._variant)
        if self.spec.checkpoint:
            # Recomputation runs in the backward pass, outside of `_casting`.
            again = {"use_reentrant": False, "context_fn": lambda: (nullcontext(), self._casting())}
            model.gradient_checkpointing_enable(again)  # type: ignore[operator]
        return model

    @contextmanager
    def _casting(self) -> Iterator[None]:
        spec = self.requested_spec
        is_configured = spec.is_own and source_of(spec.model).door == "hf"
        values = PlainBatches() if is_configured else nullcontext()
        with device_semantics(spec), values:
            yield


class PlainBatches(TorchFunctionMode):
    """Answers what transformers reads from ids and masks: one sequence a row, without padding.

    Reading the values of meta tensors is an error otherwise.
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition: Callable[[], Tensor | None] = lambda: None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.__contains__:  # padding among the ids
            return False
        if func is Tensor.__bool__ and args[0] is self._condition():
            return True
        result = func(*args, **(kwargs or {}))
        if func in CONDITIONS:
            self._condition = weakref.ref(result)
        return result


CONDITIONS = (Tensor.all, Tensor.__eq__)
"""Functions whose result transformers reads: all rows have one sequence, all ids count."""


def _runnable(spec: RunSpec) -> RunSpec:
    """The eager CPU spec without autocast that runs while a device is emulated."""
    row = spec.attention_row
    return spec.changed(
        device="cpu",
        compile="off",
        precision=without_autocast(spec.precision_row).name,
        attention=row.name if row.is_of_model else row.stand_in,
    )
