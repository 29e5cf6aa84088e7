"""Dry run of the real step: every storage of it, with its place and its lifetime."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from sysbench.core.predict.backward import GRADIENTS
from sysbench.core.predict.extend import DryRun
from sysbench.core.predict.forward import LOGITS
from sysbench.core.predict.trace import STEP
from sysbench.core.predict.variant import PLAIN, Variant
from sysbench.core.spec.spec import RunSpec
from sysbench.core.trace.scopes import MODULE_RANGE
from sysbench.core.worker.dry_run.building import BuildTracker
from sysbench.core.worker.dry_run.dry_workload import DryRunWorkload
from sysbench.core.worker.dry_run.sharding import (
    fake_process_group,
    local_shard,
    track_resizes,
)
from sysbench.core.worker.dry_run.storages import OUTSIDE, Place, StorageTracker
from sysbench.core.worker.dry_run.vary import trained_of
from sysbench.core.worker.ranges import MakeRange, module_ranges
from sysbench.core.worker.workloads.stepped_workload import tensors_in

MODEL = "model"
"""Name of the place outside every module of the model."""

BLOCK = re.compile(r"blocks\.(\d+)")
"""A block of the built-in model."""


class Places(NamedTuple):
    """Places of a model's modules, by their names, and of the parameters of their own.

    Attributes:
        layers: Number of blocks that the places distinguish.
    """

    of_module: Callable[[str], Place]
    of_parameters: Callable[[str], Place]
    layers: int = 0


def places_of(spec: RunSpec) -> Places:
    """The blocks and ends of the built-in model; of others each module by its name."""
    if spec.is_own:
        return Places(partial(Place, 0), partial(Place, 0))
    return Places(_built_in_module, _built_in_parameters, spec.layers)


def _built_in_module(name: str) -> Place:
    if found := BLOCK.match(name):
        return Place(int(found[1]) + 1, "")
    return Place(0, "head" if name in ("norm", "head") else "embedding")


def _built_in_parameters(name: str) -> Place:
    return _built_in_module(name) if BLOCK.match(name) else OUTSIDE


def dry_run(
    spec: RunSpec,
    capability: str | None = None,
    variant: Variant = PLAIN,
    places: Places | None = None,
) -> DryRun:
    """Run the step of the whole model on meta tensors; optimizer state exists from the start.

    An optimizer or a whole step of the user's makes its state in a first step, which is not
    followed.

    Args:
        capability: As `closed_form.predict` takes it.
        variant: Way to train, if it is not the spec's; without an optimizer of the user's.
        places: See `places_of`, which is the default.

    Raises:
        Exception: Whatever the user's code raises, also because a tensor has no data.
    """
    with fake_process_group(variant.shards):
        return _dry_run(spec, capability, variant, places or places_of(spec))


def _dry_run(spec: RunSpec, capability: str | None, variant: Variant, places: Places) -> DryRun:
    built = BuildTracker()
    with built:
        workload = DryRunWorkload(spec, variant)
        if spec.optimizer == "custom":
            workload.step(lambda phase: None)
    tracker = StorageTracker(built, capability, on_cuda=spec.on_cuda)
    _own_residents(tracker, workload, places)
    built.label_the_rest()
    tracker.trace.mark(STEP)
    used: set[Tensor] = set()
    _watch(tracker, workload, places, used)
    with (
        module_ranges(workload.model, _place_ranges(tracker, places)),
        tracker,
        track_resizes(tracker, variant.shards),
        _no_collections(),
    ):
        workload.step(tracker.enter)
    optimizer = workload.optimizer
    for parameter, state in optimizer.state.items() if optimizer else ():
        if parameter not in used:  # a step makes no state for it
            for value in tensors_in(state):
                tracker.forget(value)
    parameters = list(workload.model.parameters())
    return DryRun(
        layers=places.layers,
        parameters=sum(parameter.numel() for parameter in parameters),
        parameter_bytes=sum(parameter.nbytes for parameter in parameters),
        trained_parameters=trained_of(workload.model),
        moments=list(tracker.moments()),
        saved_bytes=tracker.saved_bytes,
        products=tracker.products,
        moved_bytes=tracker.moved,
        trace=tracker.whole_trace(),
    )


@contextmanager
def _no_collections() -> Iterator[None]:
    """Hold off collections: they would free storages where a real step frees none."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _own_residents(tracker: StorageTracker, workload: DryRunWorkload, places: Places) -> None:
    states = workload.optimizer.state if workload.optimizer else {}
    tracker.begin_state(value for state in states.values() for value in tensors_in(state))
    spec = workload.requested_spec
    for name, parameter in workload.model.named_parameters():
        place = places.of_parameters(name.rpartition(".")[0] or MODEL)
        tracker.own(local_shard(parameter), "parameters", place)
        for value in tensors_in(states.get(parameter, {})):
            # On CUDA only the fused optimizer keeps the number of steps on the device.
            on_host = value.dim() == 0 and spec.on_cuda and spec.optimizer != "adamw-fused"
            if not on_host:
                tracker.own(value, "optimizer state", place)
    for buffer in workload.model.buffers():
        tracker.own(buffer, "buffers")
    for tensor in workload.inputs:
        tracker.own(tensor, "inputs")


def _place_ranges(tracker: StorageTracker, places: Places) -> MakeRange:
    """Ranges around modules that move the tracker to their places."""
    open_places: list[Place] = [OUTSIDE]

    @contextmanager
    def at(range_name: str) -> Iterator[None]:
        open_places.append(places.of_module(range_name.removeprefix(MODULE_RANGE)))
        tracker.go_to(open_places[-1])
        try:
            yield
        finally:
            open_places.pop()
            tracker.go_to(open_places[-1])

    return at


def _watch(
    tracker: StorageTracker, workload: DryRunWorkload, places: Places, used: set[Tensor]
) -> None:
    """Hook the model so that the tracker has its outputs and the gradients."""

    def done(module: nn.Module, args: object, output: object) -> None:
        for tensor in tensors_in(output):
            tracker.own(tensor, LOGITS)
        if not workload.spec.has_backward:
            tracker.graph_is_complete()

    workload.model.register_forward_hook(done)

    def own_gradient(place: Place, parameter: Tensor) -> None:
        assert parameter.grad is not None
        used.add(parameter)
        tracker.own(local_shard(parameter.grad), GRADIENTS, place)

    named = [*workload.model.named_parameters(), *((MODEL, one) for one in workload.inputs)]
    for name, leaf in named:
        if leaf.requires_grad:
            place = places.of_parameters(name.rpartition(".")[0] or MODEL)
            keep = partial(own_gradient, place)
            leaf.register_post_accumulate_grad_hook(keep)  # type: ignore[no-untyped-call]
