"""Dry run of the real step: model, optimizer and workload on meta tensors, which have no data.

The optimizers' update functions are called directly: torch's optimizer classes refuse tensors
without data, and import torch._dynamo.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd
from torch.overrides import TorchFunctionMode

from ...estimate.extend import Played
from ...estimate.savings.variant import PLAIN, Variant
from ...estimate.step.backward import GRADIENTS
from ...estimate.step.forward import LOGITS
from ...estimate.trace import STEP
from ...spec.choices import without_autocast
from ...spec.spec import RunSpec
from ..workloads import transformer as workload
from ..workloads.models import transformer
from .building import BuildTracker, request_initialisation
from .device import device_semantics, replaced
from .storages import OUTSIDE, Place, StorageTracker
from .variants.sharding import local, ranks_played, resizes_told
from .variants.vary import trained_of, vary


class DryRunOptimizer:
    """Steps as the optimizer of `workloads.transformer.make_optimizer` from its second step on.

    Attributes:
        state: Optimizer state by parameter, allocated from the start.
    """

    def __init__(self, spec: RunSpec, model: nn.Module | Sequence[Tensor]) -> None:
        self._kind = spec.optimizer
        self._parameters: list[Tensor] = list(
            model.parameters() if isinstance(model, nn.Module) else model
        )
        self._parameters = [one for one in self._parameters if one.requires_grad]
        self.state = {parameter: self._state_of(parameter) for parameter in self._parameters}

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        if self._kind == "sgd":
            return {}
        parameter = local(parameter)
        fused = self._kind == "adamw-fused"
        return {
            # Only the fused kernel reads it on the device; the others read it on the host.
            "step": torch.zeros((), device=parameter.device) if fused else torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient by it."""
        parameters = [one for one in self._parameters if one.grad is not None]
        used = [local(parameter) for parameter in parameters]
        gradients = [local(one.grad) for one in parameters if one.grad is not None]
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


class DryRunWorkload(workload.Workload):
    """The transformer's workload on meta tensors, on any machine.

    Attributes:
        requested_spec: The spec that is predicted; ``spec`` is its stand-in, run eagerly.
    """

    def __init__(self, requested_spec: RunSpec, variant: Variant = PLAIN) -> None:
        self.requested_spec = requested_spec
        with (
            replaced(transformer, "initialise", request_initialisation),
            # By name: renaming these in the workload or the model breaks the dry run.
            replaced(workload, "make_optimizer", lambda spec, model: None),
            _WithoutData(),
        ):
            super().__init__(_runnable(requested_spec))
        vary(self.model, variant)
        if self.spec.step == "train":
            self.optimizer = DryRunOptimizer(self.spec, self.model)  # type: ignore[assignment]

    @contextmanager
    def _casting(self) -> Iterator[None]:
        with device_semantics(self.requested_spec):
            yield


class _WithoutData(TorchFunctionMode):
    """Makes meta tensors wherever a device is named; tensors without one get data."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _runnable(spec: RunSpec) -> RunSpec:
    """The eager CPU spec without autocast that runs while a device is emulated."""
    return spec.changed(
        device="cpu",
        compile="off",
        precision=without_autocast(spec.precision_row).name,
        attention=spec.attention_row.stand_in,
    )


EMBEDDING, HEAD = Place(0, "embedding"), Place(0, "head")


def play(spec: RunSpec, capability: str | None = None, variant: Variant = PLAIN) -> Played:
    """Run a dry step with all of the spec's layers; optimizer state exists beforehand.

    Args:
        capability: As `closed_form.predict` takes it.
        variant: Of a training step.
    """
    with ranks_played(variant.shards):
        return _played(spec, capability, variant)


def _played(spec: RunSpec, capability: str | None, variant: Variant) -> Played:
    built = BuildTracker()
    with built:
        workload = DryRunWorkload(spec, variant)
    tracker = StorageTracker(built, capability, on_cuda=spec.on_cuda)
    _own_residents(tracker, workload)
    built.label_the_rest()
    tracker.trace.mark(STEP)
    _watch(tracker, workload)
    with tracker, resizes_told(tracker, variant.shards):
        workload.step(tracker.enter)
    return tracker.played(spec.layers, trained_parameters=trained_of(workload.model))


def _own_residents(tracker: StorageTracker, workload: DryRunWorkload) -> None:
    # The optimizer is made last: what comes from its first state on is requested in a step.
    optimizer = workload.optimizer
    tracker.begin_state(
        value
        for state in (optimizer.state.values() if optimizer else ())
        for value in state.values()
    )
    for name, parameter in workload.model.named_parameters():
        place = _place_of(name)
        tracker.own(local(parameter), "parameters", place)
        state = optimizer.state.get(parameter, {}) if optimizer is not None else {}
        for value in state.values():
            # On CUDA only the fused optimizer keeps the number of steps on the device.
            on_host = value.dim() == 0 and workload.requested_spec.on_cuda
            if not on_host or workload.requested_spec.optimizer == "adamw-fused":
                tracker.own(value, "optimizer state", place)
    for buffer in workload.model.buffers():
        tracker.own(buffer, "buffers")
    for tensor in (workload.tokens, workload.targets):
        tracker.own(tensor, "inputs")


def _watch(tracker: StorageTracker, workload: DryRunWorkload) -> None:
    """Hook the model so that the tracker has the step's place and the gradients."""
    for name, module in workload.model.named_modules():
        if re.fullmatch(r"blocks\.\d+", name):
            _on_forward(tracker, module, _place_of(name), HEAD)
    _on_forward(tracker, workload.model, EMBEDDING, HEAD)

    def done(module: nn.Module, args: object, logits: Tensor) -> None:
        tracker.own(logits, LOGITS)
        if not workload.spec.has_backward:
            tracker.graph_is_complete()

    workload.model.register_forward_hook(done)

    for name, parameter in workload.model.named_parameters():
        if not parameter.requires_grad:
            continue
        own = partial(_own_gradient, tracker, _place_of(name))
        parameter.register_post_accumulate_grad_hook(own)  # type: ignore[no-untyped-call]


def _own_gradient(tracker: StorageTracker, place: Place, parameter: Tensor) -> None:
    assert parameter.grad is not None
    tracker.own(local(parameter.grad), GRADIENTS, place)


def _on_forward(tracker: StorageTracker, module: nn.Module, inside: Place, behind: Place) -> None:
    module.register_forward_pre_hook(lambda module, args: tracker.go_to(inside))
    module.register_forward_hook(lambda module, args, result: tracker.go_to(behind))


def _place_of(name: str) -> Place:
    """The place of a module or a parameter, by its name."""
    index = re.match(r"blocks\.(\d+)", name)
    return Place(int(index[1]) + 1, "") if index else OUTSIDE
