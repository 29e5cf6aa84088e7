"""Dry run of the real step: all storages with place and lifetime."""

from __future__ import annotations

import gc
import re
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from sysbench.core.errors import ModelError
from sysbench.core.formatting import format_bytes
from sysbench.core.predict.backward import GRADIENTS
from sysbench.core.predict.closed_form import CACHE, COMMUNICATION
from sysbench.core.predict.dry_run_client import COMPILED, PLAIN, DryRun, TrainingVariant
from sysbench.core.predict.forward import LOGITS
from sysbench.core.predict.requests import OWN_STEPS, STEP, WARMUP_STEPS
from sysbench.core.spec.choices import without_autocast
from sysbench.core.spec.own_model import source_of
from sysbench.core.spec.spec import RunSpec
from sysbench.core.step_patterns import growth_of, period_of
from sysbench.core.trace.scopes import MODULE_RANGE
from sysbench.core.trace.trace_reader import collector_off
from sysbench.core.worker.dry_run.device import device_semantics, foreach_kernels
from sysbench.core.worker.dry_run.dry_optimizer import DryRunOptimizer
from sysbench.core.worker.dry_run.storages import OUTSIDE, BuildTracker, Place, StorageTracker
from sysbench.core.worker.dry_run.vary import (
    Division,
    fake_process_group,
    fused_kernels,
    generator_states,
    real_mesh,
    track_resizes,
    vary,
    whole_gradients,
)
from sysbench.core.worker.ranges import MakeRange, module_ranges
from sysbench.core.worker.workloads.factory import FactoryParts
from sysbench.core.worker.workloads.held_tensors import HeldTensors
from sysbench.core.worker.workloads.low_precision import convert_linears, is_float8
from sysbench.core.worker.workloads.model_workload import Workload, parts_of
from sysbench.core.worker.workloads.stepped_workload import (
    EnterPhase,
    autocast_dtype,
    bytes_of,
    local_shard,
    parts_of_weight,
    tensors_in,
    weight_dtype,
)

TARGETS_KEY = "labels"
"""Key of the targets in a batch for models that compute their own loss."""


class DryRunWorkload(Workload):
    """Workload of any model on meta tensors.

    Attributes:
        requested_spec: The predicted spec; ``spec`` is its eager stand-in.
        unlike: Functions that ran, and whose kernels on the device keep other tensors.
        division: What of the step one rank runs.
        whole: Parameters of the model before it is divided, and their bytes.
    """

    division: Division
    whole: tuple[int, int]

    def __init__(self, requested_spec: RunSpec, variant: TrainingVariant = PLAIN) -> None:
        self.requested_spec = requested_spec
        self.unlike = set[str]()
        self.variant = variant
        self.is_selective = variant.world.selective
        super().__init__(
            _runnable(requested_spec),
            torch.device("meta"),
            partial(DryRunOptimizer, variant=variant),  # type: ignore[arg-type]
        )

    def _parts(self) -> FactoryParts:
        spec, world = self.spec, self.variant.world
        if spec.is_own and world.size > 1:
            return parts_of(spec, real_mesh(world))
        if world.pp == 1:
            return super()._parts()
        ranges = [*world.stage_blocks(spec.layers)]
        stages = ranges[world.coordinates(self.variant.rank)["pp"] :: world.pp]
        return parts_of(spec.changed(layers=sum(map(len, stages))))

    def _convert(self, model: nn.Module) -> nn.Module:
        precision = self.requested_spec.precision_row
        if not precision.recipe:
            return model
        # For training torchao makes layers on meta tensors, then takes weights.
        with nullcontext() if precision.keeps_weights else _disable_current_modes():
            model, self.linear_layers = convert_linears(model, precision)
        for module in model.modules():
            if is_float8(module):  # it asks torch for autocast, which is emulated here
                module.register_forward_pre_hook(lambda _, args: (args[0].to(self.product_dtype),))
        return model

    def _compile(self, model: nn.Module) -> nn.Module:
        if self.spec.compile != "off":
            from sysbench.core.worker.dry_run.compiled_step import CompiledRegions  # lazy: slow

            CompiledRegions(self.requested_spec).take(model)
        return model

    def _prepare(self, model: nn.Module) -> nn.Module:
        self._enter: EnterPhase = lambda phase: None
        model = super()._prepare(model)
        self.whole = _size_of(model)
        self.division = vary(
            model, self.spec, self.variant, self._stage_loss, self.parts.parallelize
        )
        return self.division.model

    def _pass_through(self, enter: EnterPhase) -> None:
        with self.division.loss_context():
            if self.division.pipeline is None:
                super()._pass_through(enter)
                return
            self._enter = enter
            with self._casting():  # as around a schedule: copies of weights serve all forwards
                self.division.pipeline.run(enter, self.batch, self.targets)

    def _stage_loss(self, output: Tensor, targets: Tensor) -> Tensor:
        from sysbench.core.worker.ranks.pipeline import stage_loss  # lazy: FSDP takes a second

        self._enter("loss")
        return stage_loss(self.parts.model, output, targets, self.ids)

    def _forward(self) -> Any:
        whole = self.batch
        if isinstance(whole, Mapping) and isinstance(whole.get(TARGETS_KEY), Tensor):
            self.batch = {**whole, TARGETS_KEY: self._part(whole[TARGETS_KEY])}
        try:
            return super()._forward()
        finally:
            self.batch = whole

    def _loss_of(self, output: Any, enter: EnterPhase) -> Tensor:
        if self.variant.loss_chunks > 1 and self.parts.loss is not None:
            raise ModelError("the factory's loss() is its own, and sees all tokens")
        whole = self.targets
        if whole is not None:
            self.targets = self._part(whole)
        try:
            return super()._loss_of(output, enter)
        finally:
            self.targets = whole

    def _part(self, targets: Tensor) -> Tensor:
        """The targets of the first part of a chunked loss."""
        chunks = self.variant.loss_chunks
        return targets if chunks == 1 else targets[:, : -(-targets.shape[1] // chunks)]

    @property
    def product_dtype(self) -> torch.dtype:
        return autocast_dtype(self.requested_spec) or weight_dtype(self.requested_spec)

    @contextmanager
    def _casting(self) -> Iterator[None]:
        spec = self.requested_spec
        is_configured = spec.is_own and source_of(spec.model).door == "hf"
        values = PlainBatches() if is_configured else nullcontext()
        with device_semantics(spec, self.unlike), values:
            yield


def _size_of(model: nn.Module) -> tuple[int, int]:
    """Number of parameters, and their bytes."""
    parameters = [*model.parameters()]
    return sum(one.numel() for one in parameters), bytes_of(parameters)


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
        precision=without_autocast(spec.precision_row).name,
        attention=row.name if row.is_of_model else row.stand_in,
    )


MODEL = "model"
"""Name of the place outside every module of the model."""

BLOCK = re.compile(r"(?:(\d+)\.)?blocks\.(\d+)")
"""A block of the built-in model, or of one of its stages."""
WRAPPER = re.compile(r"^(\d+\.)?module\.")


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
    if spec.compile != "off" and spec.compile_scope == "whole":
        return Places(lambda name: Place(0, "compiled model"), _built_in_parameters)
    return Places(_built_in_module, _built_in_parameters, spec.layers)


def _within_wrapper(places: Places) -> Places:
    """The same places of a model that `DistributedDataParallel` has as ``module``."""

    def inner(name: str) -> str:
        return MODEL if name == "module" else WRAPPER.sub(r"\1", name)

    return Places(
        lambda name: places.of_module(inner(name)),
        lambda name: places.of_parameters(inner(name)),
        places.layers,
    )


def _built_in_module(name: str) -> Place:
    if found := BLOCK.match(name):
        return Place(int(found[2]) + 1, f"stage {int(found[1]) + 1}" if found[1] else "")
    return Place(0, "head" if name.rpartition(".")[2] in ("norm", "head") else "embedding")


def _built_in_parameters(name: str) -> Place:
    return _built_in_module(name) if BLOCK.match(name) else OUTSIDE


def dry_run(
    spec: RunSpec,
    capability: str | None = None,
    variant: TrainingVariant = PLAIN,
    places: Places | None = None,
) -> DryRun:
    """Run the step of the whole model on meta tensors; optimizer state already exists.

    A custom optimizer or step creates its state in earlier steps, which are not tracked. Steps of
    one's own are run until they repeat; of those that differ, the one with the highest peak is
    tracked.

    Raises:
        Exception: Any error of the user's code, also because a tensor has no data.
    """
    spec.precision_row.check_capability(capability)
    if variant.world.cp > 1:  # the workload of a rank has its tokens only
        spec = spec.changed(context=spec.context // variant.world.cp)
    with (
        fake_process_group(variant.world, variant.rank),
        fused_kernels(),
        foreach_kernels(on_cuda=spec.on_cuda),
        generator_states(spec),
    ):
        places = places or places_of(spec)
        if variant.world.data == "ddp":
            places = _within_wrapper(places)
        return _dry_run(spec, capability, variant, places)


def _dry_run(
    spec: RunSpec, capability: str | None, variant: TrainingVariant, places: Places
) -> DryRun:
    stepped = _Stepped(spec, variant)
    limits, alike = [COMPILED] if spec.compile != "off" else [], 0
    if stepped.workload.parts.step is not None:
        stepped.step_on()
        if stepped.is_steady:
            alike = len(stepped.peaks) - 1
        else:
            limits.append(stepped.differences())
            again = _Stepped(spec, variant)
            for _ in range(stepped.highest):
                again.step()
            stepped = again
    elif spec.optimizer == "custom" or (spec.has_cache and spec.is_own) or spec.compile != "off":
        stepped.step()  # it makes graphs, and replaces a model's own cache
    workload, built, held = stepped.workload, stepped.built, stepped.held
    if variant.world.size > 1 and variant.world.data != "ddp":
        built.drop()  # a rank allocates its shards alone, in the model's order
    tracker = StorageTracker(built, capability, on_cuda=spec.on_cuda)
    workload.division.transfer.tracker = tracker
    workload.division.transfer.place_of = places.of_module
    _own_residents(tracker, workload, places, held)
    built.label_the_rest()
    tracker.trace.mark(STEP)
    used: set[Tensor] = set()
    gc.collect()  # a collection within the step would free storages that a real step keeps
    with (
        module_ranges(workload.model, _place_ranges(tracker, places)),
        _watching(tracker, workload, places, used, held) as enter,
        tracker,
        track_resizes(tracker, variant.world),
        collector_off(),
    ):
        before = tracker.live_bytes
        workload.step(enter)
        _own_cache(tracker, workload, places)
    left = tracker.live_bytes - before - (0 if workload.loss is None else workload.loss.nbytes)
    if held is not None and workload.parts.step is None and left > 0:
        limits += _growth(spec, variant)
    if spec.optimizer != "custom":
        for parameter, state in workload.states.items():
            if parameter not in used:  # a step makes no state for it
                for value in tensors_in(state):
                    tracker.forget(value)
    if workload.unlike:
        device = "CUDA" if spec.on_cuda else "the CPU"
        limits.append(
            f"{', '.join(sorted(workload.unlike))}: the kernel on {device} keeps other tensors "
            "than the operations that ran instead, so memory can be far off; `run` measures it"
        )
    parameters = list(workload.model.parameters())
    is_cut = spec.is_own and variant.world.pp > 1
    count, size = workload.whole if is_cut else _size_of(workload.model)
    tracker.note_action()
    return DryRun(
        layers=places.layers,
        parameters=count,
        parameter_bytes=size,
        trained_parameters=sum(one.numel() for one in parameters if one.requires_grad),
        moments=list(tracker.moments()),
        saved_bytes=tracker.saved_bytes,
        products=tracker.products,
        moved_bytes=tracker.moved,
        uncounted=frozenset(tracker.uncounted),
        trace=tracker.whole_trace(),
        alike=alike,
        limits=tuple(limits),
        calls=tracker.calls,
        sent=tracker.sent,
        linear_layers=workload.linear_layers,
        actions=tuple(tracker.actions),
    )


def _growth(spec: RunSpec, variant: TrainingVariant) -> Iterator[str]:
    """Whether a step that left memory does so each time, in a sentence."""
    stepped = _Stepped(spec, variant)
    for _ in range(WARMUP_STEPS + 1):
        stepped.step()
    if growth := growth_of(stepped.ends):
        yield f"each step leaves {format_bytes(growth)} more than the one before"


OWN_STEP_SECONDS = 3.0
"""Processor time after which no further step of a user's own begins on meta tensors."""


class _Stepped:
    """A workload on meta tensors with its peaks in the steps that it has done.

    Attributes:
        held: What the user's code keeps apart from the model; None for built-in models.
        peaks, ends: Live bytes at each step's peak and at its end.
    """

    def __init__(self, spec: RunSpec, variant: TrainingVariant) -> None:
        self.built = BuildTracker()
        self.peaks, self.ends = list[int](), list[int]()
        with self.built:
            self.workload = DryRunWorkload(spec, variant)
        self.held = HeldTensors(self.workload.model) if spec.is_own else None

    def step(self) -> None:
        self.built.peak_bytes = self.built.live_bytes
        with self.built, collector_off():
            self.workload.step(lambda phase: None)
        self.peaks.append(self.built.peak_bytes)
        self.ends.append(self.built.live_bytes)

    def step_on(self) -> None:
        """Run as many steps as the memory pass does, or fewer that take long."""
        began = time.process_time()  # on a busy machine the steps are no longer
        while len(self.peaks) < OWN_STEPS:
            self.step()
            is_over = time.process_time() - began > OWN_STEP_SECONDS
            if is_over and len(self.peaks) > WARMUP_STEPS:
                break

    @property
    def is_steady(self) -> bool:
        measured = [*zip(self.peaks, self.ends, strict=True)][1:]
        return len(set(measured)) == 1

    @property
    def highest(self) -> int:
        """Number of steps before the one with the highest peak, not counting the first."""
        return max(range(1, len(self.peaks)), key=lambda index: self.peaks[index])

    def differences(self) -> str:
        """How the steps after the first differ, in a sentence."""
        later, ends = self.peaks[1:], self.ends[1:]
        growth = growth_of(ends)
        if growth:
            return (
                f"each step leaves {format_bytes(growth)} more than the one before: this is step "
                f"{self.highest + 1} of {len(self.peaks)} that ran on meta tensors"
            )
        period = period_of(later)
        every = f", which repeat every {period} steps" if period else ""
        return (
            f"the steps differ, with peaks from {format_bytes(min(later))} to "
            f"{format_bytes(max(later))}: this is step {self.highest + 1}, the highest of "
            f"{len(self.peaks)} that ran on meta tensors{every}"
        )


def _own_residents(
    tracker: StorageTracker, workload: DryRunWorkload, places: Places, held: HeldTensors | None
) -> None:
    states = workload.states
    is_custom = workload.spec.optimizer == "custom"
    spec = workload.requested_spec
    named = [
        (parameter, places.of_parameters(name.rpartition(".")[0] or MODEL))
        for name, parameter in workload.model.named_parameters()
    ]
    for parameter, place in named:
        for part in parts_of_weight(parameter):
            tracker.own(local_shard(part), "parameters", place)
    for buffer in workload.model.buffers():
        tracker.own(buffer, "buffers")
    for tensor in workload.inputs:
        tracker.own(tensor, "inputs")
    pipeline = workload.division.pipeline
    for tensor in () if pipeline is None else pipeline.received:
        tracker.own(tensor, COMMUNICATION)
    # The state of a custom one was made within a step that is replayed as a part of the build.
    made = () if is_custom else (leaf for state in states.values() for leaf in tensors_in(state))
    tracker.begin_state(made)
    for parameter, place in named:
        for value in tensors_in(states.get(parameter, {})):
            # On CUDA only the fused optimizer keeps the number of steps on the device.
            on_host = value.dim() == 0 and spec.on_cuda and spec.optimizer != "adamw-fused"
            if not on_host:
                tracker.own(value, "optimizer state", place)
    _own_cache(tracker, workload, places)
    if workload.variant.world.data == "ddp":
        tracker.adopt_the_rest(COMMUNICATION)  # the buckets
    if held is None or workload.variant.world.size > 1:
        return
    for tensor, owner, of in held.owned():
        # On the host an optimizer's number of steps is a tensor like any other.
        is_counted = tensor.is_meta or not spec.on_cuda
        if is_counted and tracker.knows(of) and not tracker.has_owner(tensor):
            tracker.own(tensor, owner)
    trained: list[Tensor] = [*workload.model.parameters(), *held.parameters]
    for leaf in trained:
        if leaf.grad is not None and leaf.grad.is_meta:
            tracker.own(leaf.grad, GRADIENTS)
    tracker.adopt_the_rest()


def _own_cache(tracker: StorageTracker, workload: DryRunWorkload, places: Places) -> None:
    """Own the cache as it is now; the built-in model's has two tensors for each block."""
    for index, tensor in enumerate(workload.cached):
        tracker.own(tensor, CACHE, Place(1 + index // 2, "") if places.layers else None)


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


@contextmanager
def _watching(
    tracker: StorageTracker,
    workload: DryRunWorkload,
    places: Places,
    used: set[Tensor],
    held: HeldTensors | None,
) -> Iterator[EnterPhase]:
    """Let the tracker see the model's outputs and gradients; yield what enters phases."""

    def done(module: nn.Module, args: object, output: object) -> None:
        for tensor in tensors_in(output):
            tracker.own(local_shard(tensor), LOGITS)
        if not workload.spec.has_backward:
            tracker.graph_is_complete()

    stages = workload.model if isinstance(workload.model, nn.ModuleList) else [workload.model]
    handles = [stage.register_forward_hook(done) for stage in stages]

    def own_gradient(place: Place, parameter: Tensor) -> None:
        assert parameter.grad is not None
        used.add(parameter)
        tracker.own(local_shard(parameter.grad), GRADIENTS, place)

    others = [*workload.inputs, *(held.parameters if held else ())]
    named: list[tuple[str, Any]] = [*workload.model.named_parameters()]
    named += [(MODEL, one) for one in others]
    for name, leaf in named:
        if leaf.requires_grad:
            place = places.of_parameters(name.rpartition(".")[0] or MODEL)
            keep = partial(own_gradient, place)
            handles.append(leaf.register_post_accumulate_grad_hook(keep))

    def enter(phase: str) -> None:
        if workload.variant.world.schedule == "zero-bubble":  # adds to gradients without the hooks
            for name, leaf in named:
                if leaf.grad is not None:
                    own_gradient(places.of_parameters(name.rpartition(".")[0]), leaf)
        if workload.division.pipeline is not None:
            for gradient in whole_gradients(workload.model):
                tracker.own(gradient, GRADIENTS)
        tracker.enter(phase)

    yield enter
    for handle in handles:  # else the model would outlive its dry run, and be found by the next
        handle.remove()
