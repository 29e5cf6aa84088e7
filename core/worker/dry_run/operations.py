"""Costs and results of operations on tensors without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from sysbench.core.predict.dry_run_client import Product
from sysbench.core.worker.dry_run.scratch import marks_bytes, softmax_product_bytes, strided_bytes

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


def tensors_in(values: Any) -> list[Tensor]:
    """Tensors among operands or results, single or in lists."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in tensors_in(value)]
    return []
