"""Emulates device-specific casts and kernels on meta tensors.

Meta tensors have shapes and dtypes but no device by which torch could apply autocast or choose a
kernel. This module answers each function that depends on the device: autocast's casts, norms in one
kernel, attention kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ...spec.choices import Attention
from ...spec.spec import RunSpec
from ..workloads.base import autocast_dtype
from ..workloads.models import transformer


def _named(*names: str) -> frozenset[Any]:
    """The functions of these names of torch, of its tensors, and of its functional module."""
    found = (getattr(owner, name, None) for name in names for owner in (torch, Tensor, F))
    return frozenset(function for function in found if function is not None)


LOWERED_BY_BOTH = _named(
    *("linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum", "prelu"),
    *("addmm", "addbmm", "baddbmm", "scaled_dot_product_attention"),
    *("conv1d", "conv2d", "conv3d"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
) | {torch.linalg.multi_dot, torch.linalg.vecdot}
LOWERED_BY_CPU = LOWERED_BY_BOTH | _named("tensordot")
"""Functions that autocast runs in its dtype on the CPU."""
LOWERED_BY_CUDA = LOWERED_BY_BOTH | _named("mv", "addmv", "addr")
"""Functions that autocast runs in its dtype on CUDA."""

WIDENED_BY_BOTH = _named(
    *("nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"),
    *("binary_cross_entropy_with_logits", "poisson_nll_loss", "soft_margin_loss"),
    *("multi_margin_loss", "multilabel_margin_loss", "margin_ranking_loss"),
    *("hinge_embedding_loss", "cosine_embedding_loss", "triplet_margin_loss"),
)
WIDENED_BY_CUDA = (
    WIDENED_BY_BOTH
    | _named(
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
WIDENED_BY_CPU = WIDENED_BY_BOTH | _named(
    *("cross_entropy", "binary_cross_entropy", "prod", "trace", "inverse", "cdist"),
    *("quantile", "nanquantile", "grid_sample"),
    *("avg_pool3d", "adaptive_avg_pool3d", "max_pool3d"),
)
"""Functions that autocast runs in float32 on the CPU."""

_aten = torch.ops.aten


@contextmanager
def device_semantics(spec: RunSpec) -> Iterator[None]:
    """Run the block as on the device: forward pass and loss. The cache of casts ends with it."""
    dtype = autocast_dtype(spec)
    # The model asks torch whether autocast is on; torch does not see an emulated one.
    emulated_dtype = replaced(transformer, "matmul_dtype", lambda x: dtype or x.dtype)
    functions = CudaFunctions if spec.on_cuda else CpuFunctions
    with emulated_dtype, functions(dtype, spec.attention_row):
        yield


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Set an attribute to another value in the block."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


class CpuFunctions(TorchFunctionMode):
    """Mode that answers torch functions as on the CPU.

    Args:
        dtype: Autocast's; None without autocast.
        attention: The spec's choice of kernel.
    """

    lowered: frozenset[Any] = LOWERED_BY_CPU
    widened: frozenset[Any] = WIDENED_BY_CPU

    def __init__(self, dtype: torch.dtype | None, attention: Attention) -> None:
        super().__init__()
        self._dtype = dtype
        self._attention = attention
        self._copies: dict[Tensor, Tensor] = {}

    def __exit__(self, *exception: Any) -> None:
        self._copies.clear()
        super().__exit__(*exception)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._dtype is not None and (func in self.lowered or func in self.widened):
            to = self._dtype if func in self.lowered else torch.float32
            args, kwargs = tree_map(lambda value: self._cast(value, to), (args, kwargs))
        return self._answer(func, args, kwargs)

    def _answer(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Result of the function for operands that are cast already."""
        if func is F.scaled_dot_product_attention:
            return cpu_attention(self._attention, args[0], args[1], args[2])
        return func(*args, **kwargs)

    def _cast(self, value: object, dtype: torch.dtype) -> object:
        """Cast as autocast does: it caches the copies of weights that need gradients."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if value.dtype in (dtype, torch.float64):
            return value
        if not (value.is_leaf and value.requires_grad) or torch.is_inference_mode_enabled():
            return value.to(dtype)
        if value not in self._copies:
            self._copies[value] = value.to(dtype)
        return self._copies[value]


class CudaFunctions(CpuFunctions):
    """Mode that answers torch functions as on CUDA."""

    lowered = LOWERED_BY_CUDA
    widened = WIDENED_BY_CUDA

    def _answer(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func is F.cross_entropy and self._dtype is not None:
            # Not on autocast's lists itself: log_softmax runs in the low precision, nll_loss in
            # float32.
            return F.nll_loss(torch.log_softmax(args[0], 1).float(), args[1])
        if func is F.rms_norm:
            return FusedNorm.apply(args[0], kwargs["weight"])  # type: ignore[no-untyped-call]
        if func is F.scaled_dot_product_attention:
            return cuda_attention(self._attention, args[0], args[1], args[2])
        return func(*args, **kwargs)


class FusedNorm(torch.autograd.Function):
    """RMSNorm as one kernel: keeps its input and a float32 number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """The normalised x, in its own dtype."""
        normed = torch.empty_like(x)  # before the numbers, as the kernel does
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of both inputs."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def cpu_attention(attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by the CPU's kernel for that choice: flash, except for math."""
    kernel = (
        _aten._scaled_dot_product_attention_math
        if attention.backend == "MATH"
        else _aten._scaled_dot_product_flash_attention_for_cpu
    )
    mixed: Tensor = kernel(q, k, v, dropout_p=0.0, is_causal=True)[0]
    return mixed


def cuda_attention(attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by CUDA's kernel for that choice.

    Torch's default for 16-bit inputs is cuDNN's kernel on compute capability 9 and 10, and flash
    on others, which takes the same memory; float32 takes the memory-efficient kernel.
    Flex attention that is not compiled writes the scores out, as math does.
    """
    backend = attention.backend
    if backend is None and attention.kernel == "sdpa":
        half = q.dtype in (torch.bfloat16, torch.float16)
        backend = "CUDNN_ATTENTION" if half else "EFFICIENT_ATTENTION"
    graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v))
    if backend == "FLASH_ATTENTION":
        result = _aten._scaled_dot_product_flash_attention.default(q, k, v, 0.0, True)
    elif backend == "EFFICIENT_ATTENTION":
        result = _aten._scaled_dot_product_efficient_attention.default(
            q, k, v, None, graph, 0.0, True
        )
    elif backend == "CUDNN_ATTENTION":
        result = _aten._scaled_dot_product_cudnn_attention.default(q, k, v, None, graph, 0.0, True)
    else:
        result = _aten._scaled_dot_product_attention_math.default(q, k, v, None, 0.0, True)
    mixed: Tensor = result[0]
    return mixed
