"""What CUDA does otherwise than the CPU, put onto fake CPU tensors.

Fake CUDA tensors that need gradients end the process where torch was built without CUDA, so the
step runs on fake CPU ones, and each function that CUDA treats differently is answered here:
autocast's casts by the lists in torch's documentation, one-kernel norms, attention kernels.
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

from ..models import transformer
from ..spec import RunSpec
from ..worker.workload import AUTOCAST_DTYPES

LOWERED = frozenset(
    {
        *(F.linear, F.scaled_dot_product_attention),
        *(torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum),
        *(Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.mm, Tensor.bmm),
    }
)
"""Run in autocast's dtype."""
WIDENED = frozenset(
    {
        *(F.layer_norm, F.softmax, F.log_softmax, F.nll_loss),
        *(torch.softmax, torch.log_softmax, torch.exp, torch.log, torch.pow, torch.rsqrt),
        *(torch.sum, Tensor.sum, Tensor.exp, Tensor.softmax, Tensor.pow, Tensor.rsqrt),
    }
)
"""Run in float32."""

_aten = torch.ops.aten


@contextmanager
def cuda_semantics(spec: RunSpec) -> Iterator[None]:
    """Run the forward pass and the loss as on a CUDA device; the cache of casts ends with it."""
    dtype = AUTOCAST_DTYPES.get(spec.precision)
    # The model asks torch whether autocast is on, which knows nothing of an emulated one.
    asking = replaced(transformer, "matmul_dtype", lambda x: dtype or x.dtype)
    with asking, _CudaFunctions(dtype, spec.attention):
        yield


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Another value for an attribute while the block runs."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


class _CudaFunctions(TorchFunctionMode):
    """Answers torch functions as CUDA would.

    Args:
        dtype: Autocast's; None without autocast.
        attention: The spec's choice of kernel.
    """

    def __init__(self, dtype: torch.dtype | None, attention: str) -> None:
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
        if self._dtype is not None:
            if func is F.cross_entropy:
                # On no list: only the loss behind the log-softmax becomes float32.
                return F.nll_loss(torch.log_softmax(args[0], 1).float(), args[1])
            if func in LOWERED or func in WIDENED:
                to = self._dtype if func in LOWERED else torch.float32
                args, kwargs = tree_map(lambda value: self._cast(value, to), (args, kwargs))
        if func is F.rms_norm:
            return FusedNorm.apply(args[0], kwargs["weight"])  # type: ignore[no-untyped-call]
        if func is F.scaled_dot_product_attention:
            return fused_attention(self._attention, args[0], args[1], args[2])
        return func(*args, **kwargs)

    def _cast(self, value: object, dtype: torch.dtype) -> object:
        """Cast as autocast does: the copy of a weight is kept for its next use."""
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if not (value.is_leaf and value.requires_grad) or torch.is_inference_mode_enabled():
            return value.to(dtype)
        if value not in self._copies:
            self._copies[value] = value.to(dtype)
        return self._copies[value]


class FusedNorm(torch.autograd.Function):
    """RMSNorm as one kernel: keeps its input and a float32 number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """The normalised x, in its own dtype."""
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of both inputs."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def fused_attention(attention: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by the kernel that CUDA takes for that choice.

    ``sdpa`` is flash for 16-bit inputs; float32 is left to the memory-efficient kernel.
    """
    half = q.dtype in (torch.bfloat16, torch.float16)
    if attention == "sdpa":
        attention = "sdpa-flash" if half else "sdpa-efficient"
    graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v))
    if attention == "sdpa-flash":
        result = _aten._scaled_dot_product_flash_attention.default(q, k, v, 0.0, True)
    elif attention == "sdpa-efficient":
        result = _aten._scaled_dot_product_efficient_attention.default(
            q, k, v, None, graph, 0.0, True
        )
    elif attention == "sdpa-cudnn":
        result = _aten._scaled_dot_product_cudnn_attention.default(q, k, v, None, graph, 0.0, True)
    else:
        result = _aten._scaled_dot_product_attention_math.default(q, k, v, None, 0.0, True)
    mixed: Tensor = result[0]
    return mixed
