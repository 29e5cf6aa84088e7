"""Attention alone, as the write-ups time it: no projections, no weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from ..worker.workloads.models.attention import Kernel, attend, causal_mask

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


class BareAttention(nn.Module):
    """One attention kernel without parameters.

    Args:
        kernel: What computes it.
        context: Length of the sequences; a mask is made once for it.
        causal: Whether a query sees only what is before it.
    """

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
