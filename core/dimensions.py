"""The five numbers that fix a decoder-only transformer, and its parameter count."""

from __future__ import annotations

import msgspec


class Dimensions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shape of the model: all counts, no units.

    Attributes:
        vocab: Rows of the token embedding and of the (untied) output head.
        d_model: Width of the residual stream.
        d_ff: Inner width of the SwiGLU feed-forward.
        layers: Number of transformer blocks.
        heads: Attention heads per block; divides ``d_model``.
    """

    vocab: int
    d_model: int
    d_ff: int
    layers: int
    heads: int

    @property
    def head_dimension(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.heads

    @property
    def block_parameters(self) -> int:
        """Parameters of one block: q, k, v, out; w1, w2, w3; two RMSNorm gains."""
        return 4 * self.d_model**2 + 3 * self.d_model * self.d_ff + 2 * self.d_model

    @property
    def parameters(self) -> int:
        """N = L(4d² + 3df + 2d) + d + 2Vd, exact."""
        return self.layers * self.block_parameters + self.d_model + 2 * self.vocab * self.d_model
