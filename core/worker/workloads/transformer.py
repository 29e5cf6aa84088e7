"""The decoder-only transformer that is measured: pre-norm, RoPE, SwiGLU, untied head."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from sysbench.core.spec.choices import Kernel
from sysbench.core.spec.models import Dimensions
from sysbench.core.worker.workloads.attention import (
    CausalSelfAttention,
    KeyValueCache,
    LayerCache,
    causal_mask,
    rotary_table,
)

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

NORM_EPS = 1e-5
# Nothing in a block is random.
RECOMPUTE = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
PRODUCT = torch.ops.aten.mm.default
KEPT_RESULTS = frozenset(
    getattr(torch.ops.aten, f"_scaled_dot_product_{name}").default
    for name in (
        *("flash_attention", "efficient_attention", "cudnn_attention", "attention_math"),
        *("fused_attention_overrideable", "flash_attention_for_cpu"),
    )
) | {torch.ops._c10d_functional.reduce_scatter_tensor.default}
"""Operators that selective checkpointing does not run again, apart from every second product."""


def selective_contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Contexts of a segment's forward and of its recomputation, as torchtitan's selective ones."""
    products = count()

    def policy(_: object, func: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        is_kept = func in KEPT_RESULTS or (func is PRODUCT and next(products) % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    forward, again = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
    return forward, again


class Norm(nn.RMSNorm):
    """RMSNorm whose result has the dtype that matrix products compute in.

    Under autocast the residual stream and the norm stay float32. Each projection behind the
    norm would make its own low-precision copy of the result and keep it for backward; one
    cast here serves them all.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, eps=NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (…, d_model) to the same."""
        return super().forward(x).to(matmul_dtype(x))


class SwiGLU(nn.Module):
    """w2(silu(w1 x) · w3 x), three matrices without bias."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(d_model, d_ff, bias=False)
        self.w2 = nn.Linear(d_ff, d_model, bias=False)
        self.w3 = nn.Linear(d_model, d_ff, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (…, d_model) to the same."""
        y: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return y


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), then y + feed-forward(norm(y))."""

    def __init__(self, size: Dimensions, kernel: Kernel) -> None:
        super().__init__()
        self.attention_norm = Norm(size.d_model)
        self.attention = CausalSelfAttention(size.d_model, size.heads, kernel)
        self.ffn_norm = Norm(size.d_model)
        self.ffn = SwiGLU(size.d_model, size.d_ff)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | BlockMask | None,
        past: tuple[LayerCache, int] | None = None,
    ) -> Tensor:
        """Shape (batch, tokens, d_model) to the same."""
        # Change together: core/predict/forward.py and backward.py replay these operations by
        # hand for the closed form, and core/worker/dry_run emulates their kernels.
        x = x + self.attention(self.attention_norm(x), cos, sin, mask, past=past)
        y: Tensor = x + self.ffn(self.ffn_norm(x))
        return y


class Transformer(nn.Module):
    """Token ids to logits.

    Args:
        size: Shape of the model.
        context: Longest sequence; the rotary table and the mask are made once for it.
        kernel: How attention is computed.
        checkpoint: Blocks per segment whose activations are recomputed in the backward pass
            instead of kept; 0 keeps all.
        has_mask: False without a mask, for steps that compute single tokens.

    Attributes:
        recompute: Calls a segment, and again in the backward pass.
    """

    cos: Tensor
    sin: Tensor
    mask: Tensor | BlockMask | None

    def __init__(
        self,
        size: Dimensions,
        context: int,
        kernel: Kernel,
        *,
        checkpoint: int = 0,
        has_mask: bool = True,
    ) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.recompute = RECOMPUTE
        self.embedding = nn.Embedding(size.vocab, size.d_model)
        self.blocks = nn.ModuleList(TransformerBlock(size, kernel) for _ in range(size.layers))
        self.norm = Norm(size.d_model)
        self.head = nn.Linear(size.d_model, size.vocab, bias=False)
        cos, sin = rotary_table(context, size.head_dimension)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        mask = causal_mask(kernel, context) if has_mask else None
        if isinstance(mask, Tensor):
            self.register_buffer("mask", mask, persistent=False)
        else:
            self.mask = mask
        self.apply(initialise)

    def forward(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Ids of shape (batch, tokens) to logits of shape (batch, tokens, vocab).

        With a cache the tokens follow those in it, and the logits are the last token's.
        """
        if cache is not None:
            return self._continue(tokens, cache)
        x = self.embedding(tokens)
        # Cast once for all blocks: float32 tables would promote queries and keys.
        dtype = matmul_dtype(x)
        cos, sin = self.cos.to(dtype), self.sin.to(dtype)
        if self.checkpoint and torch.is_grad_enabled():
            blocks = list(self.blocks)
            for start in range(0, len(blocks), self.checkpoint):
                segment = blocks[start : start + self.checkpoint]
                x = self.recompute(self._run, segment, x, cos, sin)
        else:
            # Not by `_run`: the caller's name for x would keep the embedding alive through all
            # blocks.
            for block in self.blocks:
                x = block(x, cos, sin, self.mask)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def _continue(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        x = self.embedding(tokens)
        start, end = cache.length, cache.length + tokens.shape[1]
        dtype = matmul_dtype(x)
        cos, sin = self.cos[start:end].to(dtype), self.sin[start:end].to(dtype)
        mask = self.mask[:end, :end] if isinstance(self.mask, Tensor) else self.mask
        for block, layer in zip(self.blocks, cache.layers, strict=True):
            x = block(x, cos, sin, mask, (layer, start))
        cache.length = end
        logits: Tensor = self.head(self.norm(x[:, -1:]))
        return logits

    def _run(self, blocks: Iterable[nn.Module], x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        for block in blocks:
            x = block(x, cos, sin, self.mask)
        return x


def matmul_dtype(x: Tensor) -> torch.dtype:
    """The dtype that a matrix product of x computes in: autocast's, or x's own."""
    if has_torch_function((x,)):  # the dry run's mode knows of an autocast that it emulates
        return handle_torch_function(matmul_dtype, (x,), x)
    device = x.device.type
    # `torch.amp.is_autocast_available` also covers meta, but before torch 2.12 its compiler
    # breaks the graph there: at each norm, whatever the precision.
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def initialise(module: nn.Module) -> None:
    """Clipped normal: deviation sqrt(2 / (in + out)) for matrices, 1 for the embedding."""
    if isinstance(module, nn.Linear):
        _draw(module.weight, math.sqrt(2 / (module.in_features + module.out_features)))
    elif isinstance(module, nn.Embedding):
        _draw(module.weight, 1.0)


@torch.no_grad()
def _draw(weight: Tensor, std: float) -> None:
    """Draw in place, and clip at three deviations.

    ``nn.init.trunc_normal_`` of torch 2.12 draws again what is outside, in tensors as large as the
    weight and a random number of times, so the segments of CUDA's allocator would be random, too.
    """
    weight.normal_(0.0, std).clamp_(-3 * std, 3 * std)
