"""Memory that CUDA kernels request and return internally.

Sizes come from allocations recorded with torch 2.12; those below 1 KiB are omitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten

SORTED_FROM = 3_073
"""Indices from which an embedding's gradient sorts them first."""

ROWS_OF_A_PART = 10
"""Rows of one index that a thread adds up."""

TILE = 64
"""Rows and columns of the tiles in which the memory-efficient kernel adds up gradients."""

TILE_BYTES = TILE * TILE * 4 + 16
"""A tile in float32, with its lock and counter."""

FLASH_ROWS, FLASH_COLUMNS = 128, 32
"""Flash attention rounds the tokens and the width of a head up to multiples of these."""


def scratch_before(packet: Any, args: Sequence[Any]) -> list[int]:
    """Bytes requested before the results; all are returned when the operation ends."""
    if packet is _aten.roll and not args[0].is_contiguous():
        return [args[0].numel() * args[0].itemsize]
    return []


def scratch_after(packet: Any, args: Sequence[Any], result: Any) -> list[int]:
    """Bytes requested after the results; a negative ``~n`` returns the n-th of before.

    The rest is returned when the operation ends.
    """
    if packet is _aten.embedding_dense_backward:
        return _sorted_embedding(args[0], args[1], args[2])
    if packet is _aten._scaled_dot_product_efficient_attention_backward:
        return _efficient_backward(args[1])
    if packet is _aten._scaled_dot_product_flash_attention_backward:
        return _flash_backward(args[1])
    if packet is _aten._scaled_dot_product_cudnn_attention_backward:
        return _cudnn_backward(args[1])
    if packet is _aten._safe_softmax:
        return marks_bytes(result)
    if packet is _aten._softmax_backward_data:
        return [softmax_product_bytes(args[0])]
    if packet is _aten.native_layer_norm_backward:
        return strided_bytes(args)
    return []


def softmax_product_bytes(gradient: Tensor) -> int:
    """Of ``softmax_backward_cuda_out``: the gradient times the softmax. The CPU's makes none."""
    return gradient.numel() * gradient.itemsize


def strided_bytes(args: Sequence[Any]) -> list[int]:
    """Layer norm backward: contiguous copies of the gradient and the input."""
    strided = (tensor for tensor in args[:2] if not tensor.is_contiguous())
    return [tensor.numel() * tensor.itemsize for tensor in strided]


def marks_bytes(result: Tensor) -> list[int]:
    """Of ``_safe_softmax``: marks of elements that are minus infinity and of rows that are so
    entirely, and the zero that such rows are set to, in the softmax itself."""
    return [result.numel(), result.numel() // result.shape[-1], result.itemsize]


def _sorted_embedding(gradient: Tensor, indices: Tensor, vocabulary: int) -> list[int]:
    """Of ``embedding_dense_backward_cuda``: indices sorted, and a row for each part of a segment.

    Left out: what sorting and scanning take inside, less than these lists of numbers.
    """
    count, width = indices.numel(), gradient.shape[-1]
    if count < SORTED_FROM:
        return []
    parts = count // ROWS_OF_A_PART + min(count, vocabulary)
    return [8 * count] * 6 + [8 * parts, 4 * parts * width]


def _efficient_backward(q: Tensor) -> list[int]:
    """Of ``_efficient_attention_backward``: the rows' sums, then tiles of the gradient of q."""
    batch, heads, tokens, width = q.shape
    rows = batch * heads * tokens * 4
    tiles = batch * heads * -(-tokens // TILE) * -(-width // TILE)
    return [rows * width, rows, rows, ~0, ~1, tiles * TILE_BYTES]


def _flash_backward(q: Tensor) -> list[int]:
    """Of ``mha_bwd``: the rows' sums, and the gradient of q in float32."""
    batch, heads, tokens, width = q.shape
    rows = batch * heads * -(-tokens // FLASH_ROWS) * FLASH_ROWS * 4
    return [rows, rows * -(-width // FLASH_COLUMNS) * FLASH_COLUMNS]


def _cudnn_backward(q: Tensor) -> list[int]:
    """Workspace of cuDNN's frontend: both of these in one.

    Additional requests of cuDNN are unknown without a GPU.
    """
    batch, heads, tokens, width = q.shape
    return [batch * heads * tokens * (width + 1) * 4]
