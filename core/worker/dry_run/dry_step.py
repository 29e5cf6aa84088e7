"""Dry run of the real step: all storages with place and lifetime."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd
from torch.overrides import TorchFunctionMode

from sysbench.core.predict.backward import GRADIENTS
from sysbench.core.predict.dry_run_client import PLAIN, DryRun, TrainingVariant
from sysbench.core.predict.forward import LOGITS
from sysbench.core.predict.requests import STEP
from sysbench.core.spec.choices import without_autocast
from sysbench.core.spec.own_model import source_of
from sysbench.core.spec.spec import RunSpec
from sysbench.core.trace.scopes import MODULE_RANGE
from sysbench.core.trace.trace_reader import collector_off
from sysbench.core.worker.dry_run.building import BuildTracker
from sysbench.core.worker.dry_run.device import device_semantics, foreach_kernels
from sysbench.core.worker.dry_run.storages import OUTSIDE, Place, StorageTracker
from sysbench.core.worker.dry_run.vary import (
    fake_process_group,
    local_shard,
    track_resizes,
    vary,
)
from sysbench.core.worker.ranges import MakeRange, module_ranges
from sysbench.core.worker.workloads.model_workload import Workload
from sysbench.core.worker.workloads.stepped_workload import tensors_in


class DryRunOptimizer:
    """Behaves as the optimizer of `stepped_workload.optimizer_over` from its second step on."""

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
    """Workload of any model on meta tensors.

    Attributes:
        requested_spec: The predicted spec; ``spec`` is its eager stand-in.
    """

    def __init__(self, requested_spec: RunSpec, variant: TrainingVariant = PLAIN) -> None:
        self.requested_spec = requested_spec
        self._variant = variant
        super().__init__(
            _runnable(requested_spec),
            torch.device("meta"),
            DryRunOptimizer,  # type: ignore[arg-type]
        )

    def _prepare(self, model: nn.Module) -> nn.Module:
        model = super()._prepare(model)
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
    """Answers questions of transformers about ids and masks: one sequence a row, no padding.

    Reading the values of meta tensors is an error.
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
"""Functions whose result transformers reads: one sequence a row, no padding."""


def _runnable(spec: RunSpec) -> RunSpec:
    """The eager CPU spec without autocast that runs while a device is emulated."""
    row = spec.attention_row
    return spec.changed(
        device="cpu",
        compile="off",
        precision=without_autocast(spec.precision_row).name,
        attention=row.name if row.is_of_model else row.stand_in,
    )


MODEL = "model"
"""Name of the place outside every module of the model."""

BLOCK = re.compile(r"blocks\.(\d+)")
"""A block of the built-in model."""


class Places(NamedTuple):
    """Places of a model's modules by name, and of their own parameters.

    Attributes:
        layers: Number of distinct blocks.
    """

    of_module: Callable[[str], Place]
    of_parameters: Callable[[str], Place]
    layers: int = 0


def places_of(spec: RunSpec) -> Places:
    """Blocks and ends of the built-in model; for other models each module by name."""
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
    variant: TrainingVariant = PLAIN,
    places: Places | None = None,
) -> DryRun:
    """Run the step of the whole model on meta tensors; optimizer state already exists.

    A custom optimizer or step creates its state in a first step, which is not tracked.

    Raises:
        Exception: Any error of the user's code, also because a tensor has no data.
    """
    with fake_process_group(variant.shards), foreach_kernels(on_cuda=spec.on_cuda):
        return _dry_run(spec, capability, variant, places or places_of(spec))


def _dry_run(
    spec: RunSpec, capability: str | None, variant: TrainingVariant, places: Places
) -> DryRun:
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
    gc.collect()  # a collection within the step would free storages that a real step keeps
    with (
        module_ranges(workload.model, _place_ranges(tracker, places)),
        tracker,
        track_resizes(tracker, variant.shards),
        collector_off(),
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
        trained_parameters=sum(one.numel() for one in parameters if one.requires_grad),
        moments=list(tracker.moments()),
        saved_bytes=tracker.saved_bytes,
        products=tracker.products,
        moved_bytes=tracker.moved,
        uncounted=frozenset(tracker.uncounted),
        trace=tracker.whole_trace(),
    )


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
    """Make ranges that move the tracker to the modules' places."""
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
    """Hook the model so that the tracker sees its outputs and gradients."""

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
