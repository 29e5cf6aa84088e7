"""Dry run of a model of the user's: its own code, all of its layers, on tensors without data."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...analysis.trace.scopes import MODULE_RANGE
from ...estimate.extend import Played
from ...estimate.savings.variant import PLAIN, Variant
from ...estimate.step.backward import GRADIENTS
from ...estimate.step.forward import LOGITS
from ...estimate.trace import STEP
from ...spec.choices import without_autocast
from ...spec.own_model import source_of
from ...spec.spec import RunSpec
from ..ranges import MakeRange, module_ranges
from ..workloads import own
from ..workloads.base import autocast_dtype, tensors_in
from .building import BuildTracker
from .device import replaced
from .own_functions import OwnCpu, OwnCuda, answered
from .step import DryRunOptimizer
from .storages import OUTSIDE, Place, StorageTracker
from .variants.sharding import local, ranks_played, resizes_told
from .variants.vary import trained_of, vary

MODEL = "model"
"""Name of the place outside every module of the model."""


class OwnPlayed(NamedTuple):
    """A played step, and the size of the model that took it."""

    played: Played
    parameters: int
    parameter_bytes: int


class DryRunOwnWorkload(own.OwnWorkload):
    """The workload of a model of the user's on meta tensors, on any machine.

    Attributes:
        requested_spec: The spec that is predicted; ``spec`` is its stand-in, run eagerly.
    """

    def __init__(self, requested_spec: RunSpec, variant: Variant = PLAIN) -> None:
        self.requested_spec = requested_spec
        self._variant = variant
        with replaced(own, "optimizer_over", DryRunOptimizer):
            super().__init__(_runnable(requested_spec), torch.device("meta"))

    def _prepared(self, model: nn.Module) -> nn.Module:
        model = super()._prepared(model)
        vary(model, self._variant)
        if self.spec.checkpoint:
            # What is computed again comes in the backward pass, outside of `_casting`.
            again = {"use_reentrant": False, "context_fn": lambda: (nullcontext(), self._casting())}
            model.gradient_checkpointing_enable(again)  # type: ignore[operator]
        return model

    @contextmanager
    def _casting(self) -> Iterator[None]:
        spec = self.requested_spec
        functions = OwnCuda if spec.on_cuda else OwnCpu
        is_configured = source_of(spec.model).door == "hf"
        values = without_values() if is_configured else nullcontext()
        # On the CPU what the user's code makes without a device is where the model is.
        default = nullcontext() if spec.on_cuda else torch.device("meta")
        with default, functions(autocast_dtype(spec), spec.attention_row), values:
            yield


@contextmanager
def without_values() -> Iterator[None]:
    """Answer what transformers reads from the values of ids and masks, which have none here.

    It asks whether several sequences are packed into one row, whether a mask of its own lets all
    through, and warns of padding without a mask. Our batches are unpacked and without padding.
    """
    masks = sys.modules.get("transformers.masking_utils")
    models = sys.modules.get("transformers.modeling_utils")
    base = getattr(models, "PreTrainedModel", None)
    answers: tuple[tuple[object, str, object], ...] = (
        (masks, "find_packed_sequence_indices", None),
        (masks, "fast_all", True),
        (base, "warn_if_padding_and_no_attention_mask", None),
    )
    with ExitStack() as stack:
        for owner, name, answer in answers:
            if hasattr(owner, name):
                always = partial(answered, answer)
                stack.enter_context(replaced(owner, name, always))
        yield


def _runnable(spec: RunSpec) -> RunSpec:
    """The eager CPU spec without autocast that runs while a device is emulated."""
    row = spec.attention_row
    return spec.changed(
        device="cpu",
        compile="off",
        precision=without_autocast(spec.precision_row).name,
        attention=row.name if row.is_of_model else row.stand_in,
    )


PlaceOf = Callable[[str], Place]
"""Gives the place of a module by its name."""


def _by_name(module: str) -> Place:
    return Place(0, module)


def play_own(
    spec: RunSpec,
    capability: str | None = None,
    variant: Variant = PLAIN,
    *,
    layers: int = 0,
    place_of: PlaceOf = _by_name,
) -> OwnPlayed:
    """Run a dry step of the whole model; optimizer state exists beforehand.

    An optimizer or a whole step of the user's makes its state in a first step, which is not
    followed.

    Args:
        capability: As `closed_form.predict` takes it.
        variant: Of a training step without an optimizer of the user's.
        layers: Count of the blocks that ``place_of`` tells apart.
        place_of: Of each module and of the parameters of its own.

    Raises:
        Exception: Whatever the user's code raises, also because a tensor has no data.
    """
    with ranks_played(variant.shards):
        return _played(spec, capability, variant, layers, place_of)


def _played(
    spec: RunSpec, capability: str | None, variant: Variant, layers: int, place_of: PlaceOf
) -> OwnPlayed:
    built = BuildTracker()
    with built:
        workload = DryRunOwnWorkload(spec, variant)
        if spec.optimizer == "custom":
            workload.step(lambda phase: None)
    tracker = StorageTracker(built, capability, on_cuda=spec.on_cuda)
    _own_residents(tracker, workload, place_of)
    built.label_the_rest()
    tracker.trace.mark(STEP)
    used: set[Tensor] = set()
    _watch(tracker, workload, place_of, used)
    with (
        module_ranges(workload.model, _places(tracker, place_of)),
        tracker,
        resizes_told(tracker, variant.shards),
        _no_collections(),
    ):
        workload.step(tracker.enter)
    optimizer = workload.optimizer
    for parameter, state in optimizer.state.items() if optimizer else ():
        if parameter not in used:  # a step makes no state for it
            for value in tensors_in(state):
                tracker.forget(value)
    parameters = list(workload.model.parameters())
    return OwnPlayed(
        tracker.played(layers, trained_parameters=trained_of(workload.model)),
        sum(parameter.numel() for parameter in parameters),
        sum(parameter.nbytes for parameter in parameters),
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


def _own_residents(tracker: StorageTracker, workload: DryRunOwnWorkload, place_of: PlaceOf) -> None:
    states = workload.optimizer.state if workload.optimizer else {}
    tracker.begin_state(value for state in states.values() for value in tensors_in(state))
    spec = workload.requested_spec
    for name, parameter in workload.model.named_parameters():
        place = place_of(name.rpartition(".")[0] or MODEL)
        tracker.own(local(parameter), "parameters", place)
        for value in tensors_in(states.get(parameter, {})):
            # On CUDA only the fused optimizer keeps the number of steps on the device.
            on_host = value.dim() == 0 and spec.on_cuda and spec.optimizer != "adamw-fused"
            if not on_host:
                tracker.own(value, "optimizer state", place)
    for buffer in workload.model.buffers():
        tracker.own(buffer, "buffers")
    for tensor in workload.inputs:
        tracker.own(tensor, "inputs")


def _places(tracker: StorageTracker, place_of: PlaceOf) -> MakeRange:
    """Ranges around modules that tell the tracker the step's place."""
    open_places: list[Place] = [OUTSIDE]

    @contextmanager
    def at(range_name: str) -> Iterator[None]:
        open_places.append(place_of(range_name.removeprefix(MODULE_RANGE)))
        tracker.go_to(open_places[-1])
        try:
            yield
        finally:
            open_places.pop()
            tracker.go_to(open_places[-1])

    return at


def _watch(
    tracker: StorageTracker, workload: DryRunOwnWorkload, place_of: PlaceOf, used: set[Tensor]
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
        tracker.own(local(parameter.grad), GRADIENTS, place)

    named = [*workload.model.named_parameters(), *((MODEL, one) for one in workload.inputs)]
    for name, leaf in named:
        if leaf.requires_grad:
            place = place_of(name.rpartition(".")[0] or MODEL)
            keep = partial(own_gradient, place)
            leaf.register_post_accumulate_grad_hook(keep)  # type: ignore[no-untyped-call]
