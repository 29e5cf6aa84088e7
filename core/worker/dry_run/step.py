"""Plays one steady step of a spec on tensors without data."""

from __future__ import annotations

import re
from functools import partial

from torch import Tensor, nn

from ...estimate.extend import Played
from ...estimate.fake_workload import FakeWorkload
from ...estimate.step.backward import GRADIENTS
from ...estimate.step.forward import LOGITS
from ...spec.spec import RunSpec
from .storages import OUTSIDE, Place, StorageTracker

EMBEDDING, HEAD = Place(0, "embedding"), Place(0, "head")


def play(spec: RunSpec) -> Played:
    """The step with all of the spec's layers; optimizer state is in place."""
    workload = FakeWorkload(spec)
    tracker = StorageTracker()
    _own_residents(tracker, workload)
    _watch(tracker, workload)
    with tracker:
        workload.step(tracker.enter)
    return tracker.played(spec.layers)


def _own_residents(tracker: StorageTracker, workload: FakeWorkload) -> None:
    for name, parameter in workload.model.named_parameters():
        place = _place_of(name)
        tracker.own(parameter, "parameters", place)
        state = workload.optimizer.state[parameter] if workload.optimizer is not None else {}
        for value in state.values():
            # CUDA's optimizers keep the number of steps on the host, but for the fused one.
            on_host = value.dim() == 0 and workload.asked.on_cuda
            if not on_host or workload.asked.optimizer == "adamw-fused":
                tracker.own(value, "optimizer state", place)
    for buffer in workload.model.buffers():
        tracker.own(buffer, "buffers")
    for tensor in (workload.tokens, workload.targets):
        tracker.own(tensor, "inputs")


def _watch(tracker: StorageTracker, workload: FakeWorkload) -> None:
    """Tell the tracker where the step is, and what becomes a gradient."""
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
        own = partial(_own_gradient, tracker, _place_of(name))
        parameter.register_post_accumulate_grad_hook(own)  # type: ignore[no-untyped-call]


def _own_gradient(tracker: StorageTracker, place: Place, parameter: Tensor) -> None:
    assert parameter.grad is not None
    tracker.own(parameter.grad, GRADIENTS, place)


def _on_forward(tracker: StorageTracker, module: nn.Module, inside: Place, behind: Place) -> None:
    module.register_forward_pre_hook(lambda module, args: tracker.go_to(inside))
    module.register_forward_hook(lambda module, args, result: tracker.go_to(behind))


def _place_of(name: str) -> Place:
    """Of a module or a parameter, by its name."""
    index = re.match(r"blocks\.(\d+)", name)
    return Place(int(index[1]) + 1, "") if index else OUTSIDE
