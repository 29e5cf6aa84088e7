"""Causal self-attention, with the scores written out or by torch's fused kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def rotary_table(
    context: int, head_dimension: int, theta: float = 10_000.0
) -> tuple[Tensor, Tensor]:
    """What `rotate` multiplies by, two tables of shape (context, 1, head_dimension), float32.

    Position t turns pair i by the angle t · theta^(-2i / head_dimension). Both halves of the
    last dimension hold the cosines; the sines are negated in the first half.
    """
    exponents = torch.arange(0, head_dimension, 2, dtype=torch.float32) / head_dimension
    angles = torch.arange(context, dtype=torch.float32)[:, None, None] * theta**-exponents
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


def naive_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention as the write-ups measured it: scores in memory, softmax written out.

    Two (batch, heads, context, context) matrices stay for backward, the exponentials and the
    quotients; `torch.softmax` would keep one. The row maximum only guards against overflow
    and cancels in the quotient, so it is left out of the graph: gradients stay exact.

    Args:
        q, k, v: Shape (batch, heads, context, head_dimension).
        mask: Boolean, shape (context, context), true where a query may look.
    """
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    scores = torch.where(mask, scores, -torch.inf)
    scores = torch.exp(scores - scores.detach().amax(dim=-1, keepdim=True))
    return (scores / scores.sum(dim=-1, keepdim=True)) @ v


class CausalSelfAttention(nn.Module):
    """q, k, v and output projections without bias around one of the two attentions."""

    def __init__(self, d_model: int, heads: int, *, naive: bool) -> None:
        super().__init__()
        self.heads = heads
        self.naive = naive
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.k = nn.Linear(d_model, d_model, bias=False)
        self.v = nn.Linear(d_model, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """Shape (batch, context, d_model) to the same; ``mask`` is needed when naive."""
        # Rotated before the heads move forward: fused kernels read this layout as it is, and
        # hand their result back in it, so that neither side costs a copy.
        shape = (*x.shape[:2], self.heads, -1)
        q = rotate(self.q(x).view(shape), cos, sin).transpose(1, 2)
        k = rotate(self.k(x).view(shape), cos, sin).transpose(1, 2)
        v = self.v(x).view(shape).transpose(1, 2)
        if self.naive:
            assert mask is not None
            mixed = naive_attention(q, k, v, mask)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        projected: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return projected
