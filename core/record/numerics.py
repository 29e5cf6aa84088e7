"""Record block of number formats and their effects on values and types."""

from __future__ import annotations

from typing import Literal

import msgspec


class Accumulated(msgspec.Struct, frozen=True, kw_only=True):
    """Sum of many equal numbers, added one after another in a loop.

    Attributes:
        name: The loop as code: ``fp32 += fp16``.
        accumulator, addend: Their types. The addend is rounded to its type first.
        error: ``value`` minus ``exact``.
    """

    name: str
    device: str
    accumulator: str
    addend: str
    value: float
    exact: float
    error: float


class TensorDtype(msgspec.Struct, frozen=True, kw_only=True):
    """The type that one tensor of a step has under autocast.

    Attributes:
        tensor: ``parameters``, ``fc1 output``, ``LayerNorm output``, ``logits``, ``loss`` or
            ``gradients``; ``logits.sum()`` and ``logits.mean()`` too.
        dtype: ``float32``, ``float16`` or ``bfloat16``.
        source: ``measured`` on such a device; ``dispatcher`` if torch's rules for the device chose
            it, on tensors without data; ``autograd`` if torch's engine guarantees it: a gradient
            has its parameter's type.
    """

    tensor: str
    autocast: Literal["cpu", "cuda"]
    lower: str
    dtype: str
    source: Literal["measured", "dispatcher", "autograd"]


class Numerics(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the numerics pass: one of the two lists is empty, by the workload."""

    accumulations: list[Accumulated] = []
    dtypes: list[TensorDtype] = []
