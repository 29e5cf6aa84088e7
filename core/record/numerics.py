"""The numerics block of a record: what number formats do to values and types."""

from __future__ import annotations

from typing import Literal

import msgspec


class Accumulated(msgspec.Struct, frozen=True, kw_only=True):
    """Many equal numbers, added one after another in a loop.

    Attributes:
        name: The loop, as the code has it: ``fp32 += fp16``.
        device: ``cpu`` or ``cuda``: where it was added.
        accumulator, addend: Their types. The addend is rounded to its type first.
        value: What came out.
        exact: What arithmetic without rounding gives.
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
            ``gradients``; ``logits.sum()`` and ``logits.mean()`` beside them.
        autocast: The device type of the autocast.
        lower: The type that it was asked for.
        dtype: ``float32``, ``float16`` or ``bfloat16``.
        source: ``measured`` on such a device; ``dispatcher`` where torch's own rules for the
            device chose it, on tensors without data; ``autograd``: what torch's engine
            guarantees, that a gradient has its parameter's type.
    """

    tensor: str
    autocast: Literal["cpu", "cuda"]
    lower: str
    dtype: str
    source: Literal["measured", "dispatcher", "autograd"]


class Numerics(msgspec.Struct, frozen=True, kw_only=True):
    """The numerics pass. ``accumulations`` is of workload accumulation, ``dtypes`` of
    autocast-dtypes; the other one is empty.
    """

    accumulations: list[Accumulated] = []
    dtypes: list[TensorDtype] = []
