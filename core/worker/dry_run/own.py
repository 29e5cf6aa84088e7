"""Dry run of a model of the user's: its own code, all of its layers, on tensors without data."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from ...analysis.trace.scopes import MODULE_RANGE
from ...estimate.extend import Played
from ...estimate.libraries import workspaces_bytes
from ...estimate.step.backward import GRADIENTS
from ...estimate.step.forward import LOGITS
from ...estimate.trace import STEP
from ...spec.choices import Attention, without_autocast
from ...spec.own_model import source_of
from ...spec.spec import RunSpec
from ..ranges import MakeRange, module_ranges
from ..workloads import own
from ..workloads.base import autocast_dtype, tensors_in
from ..workloads.sdpa import fused_choice
from . import fused_layers
from .building import BuildTracker
from .device import CpuFunctions, CudaFunctions, replaced
from .step import DryRunOptimizer
from .storages import OUTSIDE, Place, StorageTracker

_aten = torch.ops.aten
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

    def __init__(self, requested_spec: RunSpec) -> None:
        self.requested_spec = requested_spec
        with replaced(own, "optimizer_over", DryRunOptimizer):
            super().__init__(_runnable(requested_spec), torch.device("meta"))

    @contextmanager
    def _casting(self) -> Iterator[None]:
        spec = self.requested_spec
        functions = _OwnCuda if spec.on_cuda else _OwnCpu
        is_configured = source_of(spec.model).door == "hf"
        values = _without_values() if is_configured else nullcontext()
        # By autocast on CUDA these layers lose their fused paths, and by that on the CPU not.
        is_cast = spec.on_cuda and autocast_dtype(spec) is not None
        layers = nullcontext() if is_cast else fused_layers.taken()
        # On the CPU what the user's code makes without a device is where the model is.
        default = nullcontext() if spec.on_cuda else torch.device("meta")
        with default, layers, functions(autocast_dtype(spec), spec.attention_row), values:
            yield


@contextmanager
def _without_values() -> Iterator[None]:
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
                always = partial(_answered, answer)
                stack.enter_context(replaced(owner, name, always))
        yield


def _answered(answer: object, *_: object, **__: object) -> object:
    return answer


GROUPED_PRODUCTS = tuple(
    getattr(owner, name)
    for owner, name in ((torch, "_grouped_mm"), (F, "grouped_mm"))
    if hasattr(owner, name)
)
"""Products of experts' weights, in the versions of torch that have them."""


class GroupedProduct(torch.autograd.Function):
    """A product of rows in groups, each with a matrix of its own.

    torch has no meta kernel for it in float32. Every row is multiplied once, whatever the groups.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrices: Tensor) -> Tensor:
        """The rows' products, in the layout of the rows."""
        ctx.save_for_backward(rows, matrices)
        return rows @ matrices[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of both inputs."""
        rows, matrices = ctx.saved_tensors
        (gradient,) = gradients
        of_rows = gradient @ matrices[0].t()
        rows.t() @ gradient  # for its FLOPs
        return of_rows, torch.empty_like(matrices)


class _Inside(TorchFunctionMode):
    """Mode that has another one answer what a function calls within its own body."""

    def __init__(self, answering: CpuFunctions) -> None:
        super().__init__()
        self._answering = answering

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self._answering.__torch_function__(func, types, args, kwargs)


OF_LAYERS = (F.multi_head_attention_forward, fused_layers.ATTENTION, fused_layers.ENCODER_LAYER)
"""What the attention layers of torch call as a whole."""


def _answered_layer(
    mode: CpuFunctions, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The result of a function of `OF_LAYERS`, with everything that it calls answered by the mode.

    torch asks a mode about the function as a whole, and has left the mode when its body runs. The
    body asks once more whether there is a mode: told that there is none, it goes on.
    """
    played = func
    if func is fused_layers.ATTENTION:
        played = partial(fused_layers.attention, on_cuda=isinstance(mode, CudaFunctions))
    elif func is fused_layers.ENCODER_LAYER:
        played = fused_layers.encoder_layer
    with replaced(F, "has_torch_function", partial(_answered, False)), _Inside(mode):
        return played(*args, **kwargs)


class _OwnCpu(CpuFunctions):
    """Mode that answers any model's functions as on the CPU."""

    def _answer(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func in OF_LAYERS:
            return _answered_layer(self, func, args, kwargs)
        if func is F.scaled_dot_product_attention:
            return cpu_attention(self._attention, *args, **kwargs)
        if func in GROUPED_PRODUCTS and args[0].dim() == 2 and args[1].dim() == 3:
            return GroupedProduct.apply(args[0], args[1])  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


class _OwnCuda(CudaFunctions):
    """Mode that answers any model's functions as on CUDA, where the built-in model's rules hold."""

    def _answer(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func in OF_LAYERS:
            return _answered_layer(self, func, args, kwargs)
        if func is F.scaled_dot_product_attention and not _is_fused_by_cuda(*args, **kwargs):
            return func(*args, **kwargs)
        if func is F.rms_norm and kwargs.get("weight") is None:
            return func(*args, **kwargs)
        if func is F.cross_entropy and kwargs.get("label_smoothing"):
            return func(*args, **kwargs)
        return super()._answer(func, args, kwargs)


def _is_fused_by_cuda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> bool:
    """Whether `cuda_attention` knows the kernel: one that keeps no scores, without a mask.

    It keeps as much with and without causality and dropout. Key heads fewer than query heads are
    refused by the memory-efficient kernel, the only one for float32: torch then writes scores.
    """
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    return attn_mask is None and (is_half or query.shape[-3] == key.shape[-3])


def cpu_attention(
    attention: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention by the kernel that torch chooses on the CPU for these shapes and strides.

    torch is asked with real tensors that nobody writes to: their memory is never touched.

    Args:
        attention: The spec's, which may leave torch one kernel alone.
    """
    operands = (query, key, value)
    allowed: AbstractContextManager[object] = nullcontext()
    if attention.backend is not None:
        allowed = sdpa_kernel(SDPBackend.__members__[attention.backend])
    with _disable_current_modes(), torch.device("cpu"), allowed:
        q, k, v = map(_unwritten, operands)
        mask = None if attn_mask is None else _unwritten(attn_mask)
        choice = fused_choice(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)
    if choice != SDPBackend.FLASH_ATTENTION.value:
        math = _aten._scaled_dot_product_attention_math
        return math(  # type: ignore[no-any-return]
            *operands,
            attn_mask,
            dropout_p,
            is_causal,
            None,
            scale=scale,
            enable_gqa=enable_gqa,
        )[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
    flash = _aten._scaled_dot_product_flash_attention_for_cpu
    return flash(*operands, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]  # type: ignore[no-any-return]


def _unwritten(tensor: Tensor) -> Tensor:
    """A tensor of the CPU like this one, with no values."""
    like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return like.requires_grad_(tensor.requires_grad)


def _runnable(spec: RunSpec) -> RunSpec:
    """The eager CPU spec without autocast that runs while a device is emulated."""
    row = spec.attention_row
    return spec.changed(
        device="cpu",
        compile="off",
        precision=without_autocast(spec.precision_row).name,
        attention=row.name if row.is_of_model else row.stand_in,
    )


def play_own(spec: RunSpec, capability: str | None = None) -> OwnPlayed:
    """Run a dry step of the whole model; optimizer state exists beforehand.

    An optimizer or a whole step of the user's makes its state in a first step, which is not
    followed.

    Args:
        capability: As `closed_form.predict` takes it.

    Raises:
        Exception: Whatever the user's code raises, also because a tensor has no data.
    """
    built = BuildTracker()
    with built:
        workload = DryRunOwnWorkload(spec)
        if spec.optimizer == "custom":
            workload.step(lambda phase: None)
    tracker = StorageTracker(built, workspaces_bytes(spec, capability), on_cuda=spec.on_cuda)
    _own_residents(tracker, workload)
    built.label_the_rest()
    tracker.trace.mark(STEP)
    used: set[Tensor] = set()
    _watch(tracker, workload, used)
    with module_ranges(workload.model, _places(tracker)), tracker, _no_collections():
        workload.step(tracker.enter)
    optimizer = workload.optimizer
    for parameter, state in optimizer.state.items() if optimizer else ():
        if parameter not in used:  # a step makes no state for it
            for value in tensors_in(state):
                tracker.forget(value)
    parameters = list(workload.model.parameters())
    return OwnPlayed(
        tracker.played(0),
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


def _own_residents(tracker: StorageTracker, workload: DryRunOwnWorkload) -> None:
    states = workload.optimizer.state if workload.optimizer else {}
    tracker.begin_state(value for state in states.values() for value in tensors_in(state))
    spec = workload.requested_spec
    for name, parameter in workload.model.named_parameters():
        place = Place(0, name.rpartition(".")[0] or MODEL)
        tracker.own(parameter, "parameters", place)
        for value in tensors_in(states.get(parameter, {})):
            # On CUDA only the fused optimizer keeps the number of steps on the device.
            on_host = value.dim() == 0 and spec.on_cuda and spec.optimizer != "adamw-fused"
            if not on_host:
                tracker.own(value, "optimizer state", place)
    for buffer in workload.model.buffers():
        tracker.own(buffer, "buffers")
    for tensor in workload.inputs:
        tracker.own(tensor, "inputs")


def _places(tracker: StorageTracker) -> MakeRange:
    """Ranges around modules that tell the tracker the step's place."""
    open_places: list[Place] = [OUTSIDE]

    @contextmanager
    def at(range_name: str) -> Iterator[None]:
        open_places.append(Place(0, range_name.removeprefix(MODULE_RANGE)))
        tracker.go_to(open_places[-1])
        try:
            yield
        finally:
            open_places.pop()
            tracker.go_to(open_places[-1])

    return at


def _watch(tracker: StorageTracker, workload: DryRunOwnWorkload, used: set[Tensor]) -> None:
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
        tracker.own(parameter.grad, GRADIENTS, place)

    named = [*workload.model.named_parameters(), *((MODEL, one) for one in workload.inputs)]
    for name, leaf in named:
        if leaf.requires_grad:
            place = Place(0, name.rpartition(".")[0] or MODEL)
            keep = partial(own_gradient, place)
            leaf.register_post_accumulate_grad_hook(keep)  # type: ignore[no-untyped-call]
