"""torch's fused paths through its own attention layers in inference, operation by operation.

They are operators of their own, which have no kernels for tensors without data. The order of their
steps is that of ``aten/src/ATen/native/transformers``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from .device import replaced

ATTENTION = torch._native_multi_head_attention
ENCODER_LAYER = torch._transformer_encoder_layer_fwd
PACKED_WIDTHS = 8
"""CUDA fuses attention for heads of a multiple of this width."""


@contextmanager
def taken() -> Iterator[None]:
    """Let the layers take these paths, which torch refuses for meta tensors and within a mode."""
    registry = torch.utils.backend_registration
    with (
        replaced(torch.overrides, "has_torch_function", lambda _: False),
        replaced(registry, "_privateuse1_backend_name", "meta"),
    ):
        yield


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
    *,
    on_cuda: bool,
) -> tuple[Tensor, Tensor | None]:
    """`ATTENTION` of a tensor on itself: on CUDA fused where it can be, else with its scores."""
    batch, length, _ = query.shape
    width = embed_dim // num_head
    if on_cuda and mask is None and not need_weights and width % PACKED_WIDTHS == 0:
        packed = F.linear(query, qkv_weight, qkv_bias)
        parts = (part.view(batch, length, num_head, width) for part in packed.chunk(3, -1))
        q, k, v = (part.transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return F.linear(mixed.transpose(1, 2).reshape(query.shape), proj_weight, proj_bias), None
    if query is key is value:
        packed = query @ qkv_weight.t()
    else:  # autocast has made a copy of each
        weights_of = qkv_weight.chunk(3)
        operands = zip((query, key, value), weights_of, strict=True)
        packed = torch.cat([x @ weight.t() for x, weight in operands], 2)
    heads = packed.new_empty(3, batch * num_head, length, width)
    del packed
    q, k, v = heads.unbind()
    scores = torch.bmm(q, k.transpose(1, 2))
    if mask is not None:  # else the softmax is in place
        marks = mask.to(torch.bool).contiguous()
        scores = torch.empty_like(scores)
        del marks
    torch.bmm(scores, v, out=q)
    weights = scores.view(batch, num_head, length, length) if need_weights else None
    del scores
    mixed = q.view(batch, num_head, length, width).transpose(1, 2).reshape(query.shape)
    projected = F.linear(mixed, proj_weight, proj_bias)
    if weights is not None and average_attn_weights:
        weights = weights.sum(1)
    return projected, weights


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """`ENCODER_LAYER`: attention and the two products, whose activation is in place."""

    def norm(x: Tensor, index: int) -> Tensor:
        weight, bias = ((norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2))[index]
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    x = norm(src, 0) if norm_first else src
    projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    x = ATTENTION(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]
    x.add_(src)
    if not norm_first:
        x = norm(x, 0)
    before = x
    if norm_first:
        x = norm(x, 1)
    hidden = torch.addmm(ffn_bias_1, x.flatten(0, 1), ffn_weight_1.t())
    x = torch.addmm(ffn_bias_2, hidden, ffn_weight_2.t()).view(src.shape)
    del hidden
    x.add_(before)
    return x if norm_first else norm(x, 1)
