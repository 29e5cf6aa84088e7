"""How much one operation computes and how many bytes it moves, from its meta tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from .extend import Product

_aten = torch.ops.aten
_CPU_FLASH = _aten._scaled_dot_product_flash_attention_for_cpu
_CPU_FLASH_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward


def flops_of(packet: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """FLOPs of matrix products, as torch's own counter has them; 0 for all else.

    Attention's backward counts the scores that it computes again. The CPU's flash attention is
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
    """A matrix product with what it reads and writes."""
    dtype = str(tensors_in(args)[0].dtype).removeprefix("torch.")
    return Product(dtype, flops, moved_bytes(func, args, result))


def moved_bytes(func: Any, args: Sequence[Any], result: Any) -> int:
    """Bytes of all operands and results, and once more of operands that are written in place.

    The fused optimizers may write gradients too, but only with a gradient scaler.
    """
    schema = func._schema
    written = [
        arg
        for arg, about in zip(args, schema.arguments, strict=False)
        if about.alias_info is not None and about.alias_info.is_write and about.name != "grads"
    ]
    is_new = all(about.alias_info is None for about in schema.returns)
    return sum(
        min(leaf.numel() * leaf.itemsize, leaf.untyped_storage().nbytes())
        for leaf in tensors_in((args, written, result if is_new else None))
    )


def hidden_bytes(packet: Any, result: Any) -> int:
    """What an operation made and dropped within, of those that are several in one.

    The safe softmax marks what is minus infinity, and which rows are nothing else.
    """
    if packet is not _aten._safe_softmax:
        return 0
    return int(result.numel() + result.numel() // result.shape[-1])


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors among an operation's operands or results, where they stand singly or in lists."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in tensors_in(value)]
    return []
