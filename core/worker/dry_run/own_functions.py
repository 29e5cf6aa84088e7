"""Functions of a model of the user's, answered as on the device that is emulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from ...spec.choices import Attention
from ..workloads.sdpa import AttentionCall, fused_choice
from .device import CpuFunctions, CudaFunctions, replaced

_aten = torch.ops.aten


def answered(answer: object, *_: object, **__: object) -> object:
    """The answer, whatever was asked."""
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
    def forward(ctx: Any, rows: Tensor, matrices: Tensor, ends: Tensor | None) -> Tensor:
        """The rows' products, in the layout of the rows; ``ends`` are those of the groups."""
        ctx.save_for_backward(rows, matrices, ends)
        return rows @ matrices[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """The gradients of rows and matrices."""
        rows, matrices, _ = ctx.saved_tensors
        (gradient,) = gradients
        of_rows = gradient @ matrices[0].t()
        rows.t() @ gradient  # for its FLOPs
        return of_rows, torch.empty_like(matrices), None


def _grouped_product(rows: Tensor, matrices: Tensor, offs: Tensor | None = None, **_: Any) -> Any:
    return GroupedProduct.apply(rows, matrices, offs)  # type: ignore[no-untyped-call]


def _is_grouped_product(func: Callable[..., Any], args: Sequence[Any]) -> bool:
    return func in GROUPED_PRODUCTS and args[0].dim() == 2 and args[1].dim() == 3


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


DROPOUTS = (F.dropout, torch.dropout)


def _answered_layer(
    mode: CpuFunctions, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The result of a function, with everything that it calls answered by the mode.

    torch asks a mode about the function as a whole, and has left the mode when its body runs. The
    body asks once more whether there is a mode: told that there is none, it goes on.
    """
    with replaced(F, "has_torch_function", partial(answered, False)), _Inside(mode):
        return func(*args, **kwargs)


class OwnCpu(CpuFunctions):
    """Mode that answers any model's functions as on the CPU."""

    def _answer(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func is F.multi_head_attention_forward:
            return _answered_layer(self, func, args, kwargs)
        if func is F.scaled_dot_product_attention:
            return cpu_attention(self._attention, AttentionCall(*args, **kwargs))
        if _is_grouped_product(func, args):
            return _grouped_product(*args, **kwargs)
        return func(*args, **kwargs)


class OwnCuda(CudaFunctions):
    """Mode that answers any model's functions as on CUDA, where the built-in model's rules hold."""

    def _answer(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func is F.multi_head_attention_forward:
            return _answered_layer(self, func, args, kwargs)
        if func in DROPOUTS:
            return _cuda_dropout(*args, **kwargs)
        if _is_grouped_product(func, args) and args[0].dtype != torch.bfloat16:
            return _grouped_product(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            call = AttentionCall(*args, **kwargs)
            mixed = _attention_with_mask(self._attention, call)
            if mixed is not None:
                return mixed
            if not _is_fused_by_cuda(call):
                return func(*args, **kwargs)
        if func is F.rms_norm and kwargs.get("weight") is None:
            return func(*args, **kwargs)
        if func is F.cross_entropy and kwargs.get("label_smoothing"):
            return func(*args, **kwargs)
        return super()._answer(func, args, kwargs)


def _cuda_dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool = True,
) -> Tensor:
    """Dropout as one kernel, which keeps a byte an element: `dropout` of torch's ``Dropout.cpp``.

    Elsewhere, and in place, it keeps the scaled mask in the input's dtype.
    """
    if not (training and train) or not 0 < p < 1 or not input.numel():
        return F.dropout(input, p, training and train, inplace)
    if inplace:
        return torch.dropout_(input, p, True)
    dropped: Tensor = torch.native_dropout(input, p, True)[0]
    return dropped


def _attention_with_mask(attention: Attention, call: AttentionCall) -> Tensor | None:
    """Attention with a mask by a kernel of CUDA that keeps no scores; None where torch has none.

    cuDNN's kernel takes a mask without gradient or dropout in 16 bits, on compute capability 9 and
    10; the memory-efficient one takes all, and is torch's choice elsewhere. Flash takes none.
    """
    query, mask = call.query, call.attn_mask
    heads = {tensor.shape[-3] for tensor in call.operands if tensor.dim() == 4}
    may_choose = attention.backend in (None, "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
    if mask is None or len(heads) != 1 or not may_choose:
        return None
    if mask.dtype == torch.bool:  # a 0 or an infinity an element, one tensor a call
        mask = torch.where(mask.logical_not(), -torch.inf, query.new_zeros(()))
    bias = mask.expand(*query.shape[:-1], call.key.shape[-2])
    graph = torch.is_grad_enabled() and any(one.requires_grad for one in (*call.operands, bias))
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    if is_half and not call.dropout_p and not bias.requires_grad:
        kernel = _aten._scaled_dot_product_cudnn_attention.default
    else:
        kernel = _aten._scaled_dot_product_efficient_attention.default
    options = (bias, graph, call.dropout_p, call.is_causal)
    mixed: Tensor = kernel(*call.operands, *options, scale=call.scale)[0]
    return mixed


def _is_fused_by_cuda(call: AttentionCall) -> bool:
    """Whether `cuda_attention` knows the kernel: one that keeps no scores, without a mask.

    It keeps as much with and without causality and dropout. Key heads fewer than query heads are
    refused by the memory-efficient kernel, the only one for float32: torch then writes scores.
    """
    is_half = call.query.dtype in (torch.bfloat16, torch.float16)
    return call.attn_mask is None and (is_half or call.query.shape[-3] == call.key.shape[-3])


def cpu_attention(attention: Attention, call: AttentionCall) -> Tensor:
    """Attention by the kernel that torch chooses on the CPU for these shapes and strides.

    torch is asked with real tensors that nobody writes to: their memory is never touched.

    Args:
        attention: The spec's, which may leave torch one kernel alone.
    """
    mask, options = call.attn_mask, (call.dropout_p, call.is_causal)
    allowed: AbstractContextManager[object] = nullcontext()
    if attention.backend is not None:
        allowed = sdpa_kernel(SDPBackend.__members__[attention.backend])
    with _disable_current_modes(), torch.device("cpu"), allowed:
        q, k, v = map(_unwritten, call.operands)
        asked_mask = None if mask is None else _unwritten(mask)
        choice = fused_choice(call._replace(query=q, key=k, value=v, attn_mask=asked_mask))
    if choice != SDPBackend.FLASH_ATTENTION.value:
        named = {"scale": call.scale, "enable_gqa": call.enable_gqa}
        math = _aten._scaled_dot_product_attention_math
        return math(*call.operands, mask, *options, None, **named)[0]  # type: ignore[no-any-return]
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, -torch.inf).to(call.query.dtype)
    flash = _aten._scaled_dot_product_flash_attention_for_cpu
    return flash(*call.operands, *options, attn_mask=mask, scale=call.scale)[0]  # type: ignore[no-any-return]


def _unwritten(tensor: Tensor) -> Tensor:
    """A tensor of the CPU like this one, with no values."""
    like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return like.requires_grad_(tensor.requires_grad)
