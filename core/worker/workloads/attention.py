"""Attention: naive, scaled-dot-product, flex; and the module of the bare attention experiment."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sysbench.core.spec.choices import Kernel

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


def rotary_table(
    context: int, head_dimension: int, theta: float = 10_000.0
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for `rotate`, each float32 of shape (context, 1, head_dimension).

    Position t turns pair i by the angle t · theta^(-2i / head_dimension). Both halves of the
    last dimension hold the cosines; the sines are negated in the first half.
    """
    exponents = torch.arange(0, head_dimension, 2, dtype=torch.float32) / head_dimension
    turns = (exponents * -math.log(theta)).exp()
    angles = torch.arange(context, dtype=torch.float32)[:, None, None] * turns
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dimension / 2) of the last dimension by its angle.

    Args:
        x: Queries or keys, shape (batch, context, heads, head_dimension).
        cos, sin: From `rotary_table`, of x's dtype, so that nothing is promoted.
    """
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, swapped, sin)


def causal_mask(kernel: Kernel, context: int) -> Tensor | BlockMask | None:
    """Causal mask of the kernel on the default device; None for fused kernels."""
    if kernel == "naive":
        return torch.ones(context, context, dtype=torch.bool).tril()
    if kernel == "sdpa":
        return None
    from torch.nn.attention.flex_attention import create_block_mask  # lazy: slow

    device = str(torch.get_default_device())
    return create_block_mask(_looks_back, None, None, context, context, device=device)


def _looks_back(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def attend(
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | BlockMask | None,
    *,
    causal: bool,
) -> Tensor:
    """Attention of shape (batch, heads, context, head_dimension) to the same.

    Args:
        mask: From `causal_mask` when causal, else None.
    """
    if kernel == "sdpa":
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    if kernel == "flex":
        mixed: Tensor = _compiled_flex()(q, k, v, block_mask=mask)
        return mixed
    assert mask is None or isinstance(mask, Tensor)
    return naive_attention(q, k, v, mask)


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    """Uncompiled flex attention would write the scores to memory."""
    from torch.nn.attention.flex_attention import flex_attention  # lazy: imports torch's compiler

    return torch.compile(flex_attention, dynamic=False)


def naive_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention as the write-ups measured it: scores in memory, softmax written out.

    Two (batch, heads, context, context) matrices are saved for backward; `torch.softmax` would save
    one. The row maximum only prevents overflow and cancels, so it is outside the graph.

    Args:
        q, k, v: Shape (batch, heads, context, head_dimension).
        mask: Boolean, shape (context, context), true where a query may look; None: everywhere.
    """
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    scores = torch.exp(scores - scores.detach().amax(dim=-1, keepdim=True))
    return (scores / scores.sum(dim=-1, keepdim=True)) @ v


class LayerCache:
    """Keys and values of one block, contiguous: (batch, heads, context, head_dimension)."""

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
        # Random, as the projections of random weights are: a decode step reads all of it.
        self.keys, self.values = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)

    def append(self, k: Tensor, v: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Write keys and values of tokens from ``start`` on; return those of all tokens so far."""
        end = start + k.shape[2]
        self.keys[:, :, start:end] = k
        self.values[:, :, start:end] = v
        return self.keys[:, :, :end], self.values[:, :, :end]


class KeyValueCache:
    """Cache of all blocks, allocated at once for ``context`` tokens.

    Attributes:
        length: Number of tokens before the next one.
    """

    words = "contiguous, allocated once; each step overwrites the same places"

    def __init__(
        self, layers: int, shape: tuple[int, int, int, int], dtype: torch.dtype, length: int
    ) -> None:
        self.layers = [LayerCache(shape, dtype) for _ in range(layers)]
        self._length = self.length = length

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for layer in self.layers for tensor in (layer.keys, layer.values)]

    @property
    def bytes_per_token(self) -> int:
        batch, _, context, _ = self.layers[0].keys.shape
        return sum(tensor.nbytes for tensor in self.tensors) // (batch * context)

    def rewind(self) -> None:
        """Go back to the first length, so that the next step overwrites the last one's tokens."""
        self.length = self._length


class CausalSelfAttention(nn.Module):
    """q, k, v and output projections without bias around causal attention by a kernel.

    Attributes:
        ring: In place of the kernel where other ranks have further tokens; else None.
    """

    ring: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None

    def __init__(self, d_model: int, heads: int, kernel: Kernel) -> None:
        super().__init__()
        self.head_dimension = d_model // heads
        self.kernel = kernel
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.k = nn.Linear(d_model, d_model, bias=False)
        self.v = nn.Linear(d_model, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | BlockMask | None,
        past: tuple[LayerCache, int] | None = None,
    ) -> Tensor:
        """Shape (batch, tokens, d_model) to the same.

        Args:
            mask: From `causal_mask`; unused for a single token after ``past``.
            past: A cache, and the number of tokens in it: none, or all but the single new one.
        """
        # The heads are counted from the projections: a rank may have some of them.
        # Rotated before the heads move forward: fused kernels read this layout as it is, and
        # hand their result back in it, so that neither side costs a copy.
        shape = (*x.shape[:2], -1, self.head_dimension)
        q = rotate(self.q(x).view(shape), cos, sin).transpose(1, 2)
        k = rotate(self.k(x).view(shape), cos, sin).transpose(1, 2)
        v = self.v(x).view(shape).transpose(1, 2)
        causal = True
        if past is not None:
            layer, start = past
            k, v = layer.append(k, v, start)
            causal = start == 0
        if self.ring is not None:
            mixed = self.ring(q, k, v)
        else:
            mixed = attend(self.kernel, q, k, v, mask if causal else None, causal=causal)
        projected: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return projected


class BareAttention(nn.Module):
    """One attention kernel without parameters; ``context`` is the size of its mask."""

    mask: Tensor | BlockMask | None

    def __init__(self, kernel: Kernel, context: int, *, causal: bool) -> None:
        super().__init__()
        self.kernel = kernel
        self.causal = causal
        mask = causal_mask(kernel, context) if causal else None
        if isinstance(mask, Tensor):
            self.register_buffer("mask", mask, persistent=False)
        else:
            self.mask = mask

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Shape (batch, heads, context, head_dimension) to the same."""
        return attend(self.kernel, q, k, v, self.mask, causal=self.causal)
