"""Emulates device-specific casts and kernels on meta tensors.

Meta tensors have shapes and dtypes but no device by which torch could apply autocast or choose a
kernel. A function mode computes each function that depends on the device: autocast's casts, norms
in one kernel, attention kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from sysbench.core.spec.choices import Attention
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.dry_run.kernels import (
    FusedNorm,
    attention_layer,
    cpu_attention,
    cuda_attention,
    cuda_dropout,
    grouped_product,
    is_fused_by_cuda,
    is_grouped_product,
    masked_cuda_attention,
)
from sysbench.core.worker.workloads.sdpa import AttentionCall
from sysbench.core.worker.workloads.stepped_workload import autocast_dtype
from sysbench.core.worker.workloads.transformer import matmul_dtype


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

DROPOUTS = (F.dropout, torch.dropout)


@contextmanager
def device_semantics(spec: RunSpec) -> Iterator[None]:
    """Run the block as on the device: forward pass and loss. The cache of casts ends with it."""
    functions = CudaFunctions if spec.on_cuda else CpuFunctions
    mode = functions(autocast_dtype(spec), spec.attention_row)
    # On the CPU, what the model's code makes without a device is where the model is.
    default = nullcontext() if spec.on_cuda else torch.device("meta")
    try:
        with default, mode:
            yield
    finally:
        mode.copies.clear()


class CpuFunctions(TorchFunctionMode):
    """Mode that computes torch functions as on the CPU.

    Args:
        dtype: Dtype to which autocast lowers matrix products; None without autocast.
        attention: The spec's choice of kernel.

    Attributes:
        copies: Casts of weights that need gradients, which autocast caches.
    """

    lowered: frozenset[Any] = LOWERED_BY_CPU
    widened: frozenset[Any] = WIDENED_BY_CPU

    def __init__(self, dtype: torch.dtype | None, attention: Attention) -> None:
        super().__init__()
        self._dtype = dtype
        self._attention = attention
        self.copies: dict[Tensor, Tensor] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
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
        """Compute the function of operands that are cast already."""
        if func is F.scaled_dot_product_attention:
            return cpu_attention(self._attention, AttentionCall(*args, **kwargs))
        if is_grouped_product(func, args):
            return grouped_product(*args, **kwargs)
        return func(*args, **kwargs)

    def _cast(self, value: object, dtype: torch.dtype) -> object:
        """Cast as autocast does: it caches the copies of weights that need gradients."""
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
