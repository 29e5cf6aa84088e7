"""Costs and results of operations on tensors without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from sysbench.core.predict.dry_run_client import Product
from sysbench.core.worker.workloads.stepped_workload import tensors_in

_aten = torch.ops.aten
_CPU_FLASH = _aten._scaled_dot_product_flash_attention_for_cpu
_CPU_FLASH_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward


def flops_of(packet: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """FLOPs of matrix products as torch's counter has them; 0 for other operations.

    Attention's backward counts the scores that it recomputes. The CPU's flash attention is
    missing from torch's table.
    """
    if packet is _CPU_FLASH:
        shapes = [tensor.shape for tensor in args[:3]]
        return int(sdpa_flop_count(*shapes))  # type: ignore[no-untyped-call]
    if packet is _CPU_FLASH_BACKWARD:
        shapes = [tensor.shape for tensor in args[:4]]
        return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]
    formula = flop_registry.get(packet)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))


def product_of(flops: int, func: Any, args: Sequence[Any], result: Any) -> Product:
    """Matrix product with the bytes that it reads and writes."""
    dtype = str(tensors_in(args)[0].dtype).removeprefix("torch.")
    return Product(dtype, flops, moved_bytes(func, args, result))


def moved_bytes(func: Any, args: Sequence[Any], result: Any) -> int:
    """Bytes of all operands and results, and once more of operands that are written in place.

    The fused optimizers may write gradients too, but only with a gradient scaler.
    """
    schema = func._schema
    written = [
        arg
        # Not strict: trailing arguments with defaults are in the schema only.
        for arg, declared in zip(args, schema.arguments, strict=False)
        if declared.alias_info is not None
        and declared.alias_info.is_write
        and declared.name != "grads"
    ]
    is_new = all(declared.alias_info is None for declared in schema.returns)
    # An expanded tensor has more elements than its storage: count the storage.
    return sum(
        min(leaf.numel() * leaf.itemsize, leaf.untyped_storage().nbytes())
        for leaf in tensors_in((args, written, result if is_new else None))
    )


def hidden_bytes(packet: Any, args: Sequence[Any], result: Any, *, on_cuda: bool) -> int:
    """Bytes that an operation allocates and frees internally, apart from library workspaces.

    The backward of a layer norm copies operands that are not contiguous. On the CPU the backward of
    a batch norm allocates the input gradient twice if input and incoming gradient are dense
    (``batch_norm_backward_cpu_template``).
    """
    if packet is _aten.native_layer_norm_backward:
        return sum(strided_bytes(args))
    if packet is _aten._safe_softmax:
        return sum(marks_bytes(result))
    if not on_cuda and packet is _aten.native_batch_norm_backward and result[0] is not None:
        is_dense = all(map(_is_dense, args[:2]))
        return result[0].numel() * result[0].itemsize if is_dense else 0
    if on_cuda and packet is _aten._softmax_backward_data:
        return softmax_product_bytes(args[0])
    return 0


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


def in_kernel_s_layout(packet: Any, result: Any) -> Any:
    """Give results the strides of the real kernel where meta tensors differ.

    ``native_layer_norm_backward`` returns a contiguous input gradient on CPU and CUDA; on meta
    tensors it keeps the incoming strides, and views copy it.
    """
    if packet is not _aten.native_layer_norm_backward or result[0] is None:
        return result
    return (result[0].contiguous(), *result[1:])


def results_on_device(packet: Any, result: Any) -> Any:
    """The results without those that a kernel leaves on the host, where a meta tensor is not.

    The memory-efficient kernel has the seed and offset of its dropout there, if there is none.
    """
    is_efficient = packet is _aten._scaled_dot_product_efficient_attention
    return result[:2] if is_efficient else result


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
