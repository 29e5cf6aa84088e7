"""Emulates device-specific casts and kernels on meta tensors.

Meta tensors have shapes and dtypes but no device by which torch could apply autocast or choose a
kernel. A function mode computes each function that depends on the device: autocast's casts, norms
in one kernel, attention kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from sysbench.core.spec.choices import Attention
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.sdpa import AttentionCall, fused_choice
from sysbench.core.worker.workloads.stepped_workload import autocast_dtype
from sysbench.core.worker.workloads.transformer import matmul_dtype

_aten = torch.ops.aten

GROUPED_PRODUCTS = tuple(
    getattr(owner, name)
    for owner, name in ((torch, "_grouped_mm"), (F, "grouped_mm"))
    if hasattr(owner, name)
)
"""Grouped products for mixtures of experts, in versions of torch that have them."""


class GroupedProduct(torch.autograd.Function):
    """Product of grouped rows, each group with its own matrix.

    torch has no meta kernel for it in float32. Every row is multiplied once.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrices: Tensor, ends: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, matrices, ends)
        return rows @ matrices[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, matrices, _ = ctx.saved_tensors
        (gradient,) = gradients
        of_rows = gradient @ matrices[0].t()
        rows.t() @ gradient  # for its FLOPs
        return of_rows, torch.empty_like(matrices), None


def grouped_product(rows: Tensor, matrices: Tensor, offs: Tensor | None = None, **_: Any) -> Any:
    return GroupedProduct.apply(rows, matrices, offs)  # type: ignore[no-untyped-call]


def is_grouped_product(func: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether `grouped_product` can compute it: rows in groups, a matrix for each."""
    return func in GROUPED_PRODUCTS and args[0].dim() == 2 and args[1].dim() == 3


def _without_mode_check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function of `F`, without its check for function modes."""
    assert isinstance(function, FunctionType)
    names = {**vars(F), "has_torch_function": lambda operands: False}
    copy = FunctionType(function.__code__, names, argdefs=function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


attention_layer = _without_mode_check(F.multi_head_attention_forward)
"""``F.multi_head_attention_forward``, whose operations reach a function mode one by one.

The original passes itself to the mode as a whole, and its body would run outside of the mode.
Copied, since torch has no public way to skip that check.
"""


class FusedNorm(torch.autograd.Function):
    """RMSNorm as one kernel: keeps its input and a float32 number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        normed = torch.empty_like(x)  # before the numbers, as the kernel does
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def cuda_dropout(
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


class MathAttention:
    """torch's attention in plain operations, which adds its mask to the scores in place.

    Under a dispatch mode torch adds into a new tensor; ``is_running`` distinguishes that sum.
    """

    is_running = False

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.is_running = True
        try:
            return function(*args, **kwargs)
        finally:
            self.is_running = False


math_attention = MathAttention()


def masked_cuda_attention(attention: Attention, call: AttentionCall) -> Tensor | None:
    """Masked attention by a CUDA kernel that keeps no scores; None if torch has none.

    cuDNN accepts a mask without gradient or dropout in 16 bits on compute capability 9 and 10; the
    memory-efficient kernel accepts all. Flash accepts none.
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


def is_fused_by_cuda(call: AttentionCall) -> bool:
    """Whether `cuda_attention` models the kernel: no stored scores, no mask.

    With fewer key heads than query heads the memory-efficient kernel, the only one for float32,
    refuses: torch then writes scores.
    """
    is_half = call.query.dtype in (torch.bfloat16, torch.float16)
    return call.attn_mask is None and (is_half or call.query.shape[-3] == call.key.shape[-3])


def cuda_attention(attention: Attention, call: AttentionCall) -> Tensor:
    """Causal attention by CUDA's kernel for that choice.

    Torch's default for 16-bit inputs is cuDNN's kernel on compute capability 9 and 10, and flash
    on others, which takes the same memory; float32 takes the memory-efficient kernel.
    Flex attention that is not compiled writes the scores out, as math does.
    """
    backend = attention.backend
    if backend is None and attention.kernel == "sdpa":
        half = call.query.dtype in (torch.bfloat16, torch.float16)
        backend = "CUDNN_ATTENTION" if half else "EFFICIENT_ATTENTION"
    graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.operands)
    kernels: dict[str | None, tuple[Any, tuple[Any, ...]]] = {
        "FLASH_ATTENTION": (_aten._scaled_dot_product_flash_attention, ()),
        "EFFICIENT_ATTENTION": (_aten._scaled_dot_product_efficient_attention, (None, graph)),
        "CUDNN_ATTENTION": (_aten._scaled_dot_product_cudnn_attention, (None, graph)),
    }
    mixed: Tensor
    if backend in kernels:
        kernel, options = kernels[backend]
        mixed = kernel.default(*call.operands, *options, 0.0, True)[0]
    else:
        math = _aten._scaled_dot_product_attention_math.default
        mixed = math_attention(math, *call.operands, None, 0.0, True)[0]
    return mixed


def cpu_attention(attention: Attention, call: AttentionCall) -> Tensor:
    """Attention by the kernel that torch chooses on the CPU for these shapes and strides.

    The choice is made with real tensors whose memory is never touched.
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
        mixed: Tensor = math_attention(math, *call.operands, mask, *options, None, **named)[0]
        return mixed
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, -torch.inf).to(call.query.dtype)
    flash = _aten._scaled_dot_product_flash_attention_for_cpu
    return flash(*call.operands, *options, attn_mask=mask, scale=call.scale)[0]  # type: ignore[no-any-return]


def _unwritten(tensor: Tensor) -> Tensor:
    like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return like.requires_grad_(tensor.requires_grad)


def _functions_of(*names: str) -> frozenset[Any]:
    """Functions with these names in torch, `Tensor` and `F`."""
    found = (getattr(owner, name, None) for name in names for owner in (torch, Tensor, F))
    return frozenset(function for function in found if function is not None)


LOWERED_BY_BOTH = _functions_of(
    *("linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum", "prelu"),
    *("addmm", "addbmm", "baddbmm", "scaled_dot_product_attention"),
    *("conv1d", "conv2d", "conv3d"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
) | {torch.linalg.multi_dot, torch.linalg.vecdot}
LOWERED_BY_CPU = LOWERED_BY_BOTH | _functions_of("tensordot")
"""Functions that autocast runs in its dtype on the CPU."""
LOWERED_BY_CUDA = LOWERED_BY_BOTH | _functions_of("mv", "addmv", "addr")
"""Functions that autocast runs in its dtype on CUDA."""

WIDENED_BY_BOTH = _functions_of(
    *("nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"),
    *("binary_cross_entropy_with_logits", "poisson_nll_loss", "soft_margin_loss"),
    *("multi_margin_loss", "multilabel_margin_loss", "margin_ranking_loss"),
    *("hinge_embedding_loss", "cosine_embedding_loss", "triplet_margin_loss"),
)
WIDENED_BY_CUDA = (
    WIDENED_BY_BOTH
    | _functions_of(
        *("layer_norm", "group_norm", "softmax", "log_softmax", "softplus", "interpolate"),
        *("exp", "expm1", "log", "log2", "log10", "log1p", "logsumexp"),
        *("pow", "__pow__", "__rpow__", "square", "rsqrt", "reciprocal", "__rtruediv__"),
        *("acos", "asin", "tan", "cosh", "sinh", "erfinv"),
        *("sum", "prod", "cumsum", "cumprod", "trace"),
        *("norm", "renorm", "dist", "cdist", "cosine_similarity", "pairwise_distance"),
    )
    | {torch.linalg.norm, torch.linalg.vector_norm}
)
"""Functions that autocast runs in float32 on CUDA."""
WIDENED_BY_CPU = WIDENED_BY_BOTH | _functions_of(
    *("cross_entropy", "binary_cross_entropy", "prod", "trace", "inverse", "cdist"),
    *("quantile", "nanquantile", "grid_sample"),
    *("avg_pool3d", "adaptive_avg_pool3d", "max_pool3d"),
)
"""Functions that autocast runs in float32 on the CPU."""

DROPOUTS = (F.dropout, torch.dropout)


FUSED_BY_BOTH = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Names of functions that run as operations of each time step on meta tensors, and otherwise on
the CPU and on CUDA: oneDNN and cuDNN keep a workspace of their own size."""

FUSED_BY_CUDA = FUSED_BY_BOTH | {"lstm_cell", "gru_cell", "ctc_loss"}


@contextmanager
def device_semantics(spec: RunSpec, unlike: set[str] | None = None) -> Iterator[None]:
    """Emulate the device for forward and loss; clears autocast's cache at the end.

    Adds to ``unlike`` the names of functions whose kernels there keep other tensors.
    """
    functions = CudaFunctions if spec.on_cuda else CpuFunctions
    mode = functions(autocast_dtype(spec), spec.attention_row)
    mode.unlike = set() if unlike is None else unlike
    # On the CPU, tensors that the model creates without a device are on the model's device.
    default = nullcontext() if spec.on_cuda else torch.device("meta")
    try:
        with default, mode:
            yield
    finally:
        mode.copies.clear()


@contextmanager
def foreach_kernels(*, on_cuda: bool) -> Iterator[None]:
    """Let clipping and optimizers choose kernels over lists of tensors, as they do on CUDA."""
    name = "_get_foreach_kernels_supported_devices"
    own = getattr(_foreach_utils, name)
    devices = [*own(), "meta"]
    modules = (_foreach_utils, sys.modules[torch.optim.Optimizer.__module__]) if on_cuda else ()
    for module in modules:
        setattr(module, name, lambda: devices)
    try:
        yield
    finally:
        for module in modules:
            setattr(module, name, own)


class CpuFunctions(TorchFunctionMode):
    """Mode that computes torch functions as on the CPU.

    Attributes:
        copies: Cached casts of weights that need gradients.
        unlike: Names of functions that ran, and whose kernels on the device keep other tensors.
    """

    fused: frozenset[str] = FUSED_BY_BOTH
    lowered: frozenset[Any] = LOWERED_BY_CPU
    widened: frozenset[Any] = WIDENED_BY_CPU

    def __init__(self, dtype: torch.dtype | None, attention: Attention) -> None:
        super().__init__()
        self._dtype = dtype
        self._attention = attention
        self.copies: dict[Tensor, Tensor] = {}
        self.unlike = set[str]()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.fused:
            self.unlike.add(func.__name__)
        if func is matmul_dtype:
            return self._dtype or args[0].dtype
        if func is F.multi_head_attention_forward:
            with self:
                return attention_layer(*args, **kwargs)
        if self._dtype is not None and (func in self.lowered or func in self.widened):
            to = self._dtype if func in self.lowered else torch.float32
            args, kwargs = tree_map(lambda value: self._cast(value, to), (args, kwargs))
        return self._compute(func, args, kwargs)

    def _compute(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Compute the function on operands that are already cast."""
        if func is F.scaled_dot_product_attention:
            return cpu_attention(self._attention, AttentionCall(*args, **kwargs))
        if is_grouped_product(func, args):
            return grouped_product(*args, **kwargs)
        return func(*args, **kwargs)

    def _cast(self, value: object, dtype: torch.dtype) -> object:
        """Cast as autocast does, caching copies of weights that need gradients."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if value.dtype in (dtype, torch.float64):
            return value
        if not (value.is_leaf and value.requires_grad) or torch.is_inference_mode_enabled():
            return value.to(dtype)
        if value not in self.copies:
            self.copies[value] = value.to(dtype)
        return self.copies[value]


class CudaFunctions(CpuFunctions):
    """Mode that computes torch functions as on CUDA."""

    fused = FUSED_BY_CUDA
    lowered = LOWERED_BY_CUDA
    widened = WIDENED_BY_CUDA

    def _compute(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            call = AttentionCall(*args, **kwargs)
            mixed = masked_cuda_attention(self._attention, call)
            if mixed is not None:
                return mixed
            if is_fused_by_cuda(call):
                return cuda_attention(self._attention, call)
            return math_attention(func, *args, **kwargs)
        if func in DROPOUTS:
            return cuda_dropout(*args, **kwargs)
        if is_grouped_product(func, args) and args[0].dtype != torch.bfloat16:
            return grouped_product(*args, **kwargs)
        if func is F.rms_norm and kwargs.get("weight") is not None:
            return FusedNorm.apply(args[0], kwargs["weight"])  # type: ignore[no-untyped-call]
        is_lowered_loss = self._dtype is not None and not kwargs.get("label_smoothing")
        if func is F.cross_entropy and is_lowered_loss:
            # Not on autocast's lists itself: log_softmax runs in the low precision, nll_loss in
            # float32.
            return F.nll_loss(torch.log_softmax(args[0], 1).float(), args[1])
        return func(*args, **kwargs)
