"""Operands of operators as the profiler writes them: shapes, types, strides, values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sysbench.core.trace.trace_json import Args

ITEM_BYTES = {
    "double": 8,
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float4_e2m1fn_x2": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "long int": 8,
    "long": 8,
    "int": 4,
    "short int": 2,
    "short": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
}
FLOATING = (
    *("double", "float", "c10::Half", "c10::BFloat16"),
    *("c10::complex<float>", "c10::complex<double>"),
)
PACKED = "c10::Float4_e2m1fn_x2"
"""Type of tensors that hold two numbers in each element."""
TENSORS = "TensorList"
MAX_ELEMENTS = 2**50
"""Maximum elements of a tensor; a hostile trace may claim any number."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """One argument of an operator: the shapes of its tensors, none for a number, and its type.

    ``stored`` counts distinct elements in memory: an expanded dimension has one. ``value`` is a
    number or a list of numbers as text, else empty.
    """

    shapes: tuple[Shape, ...]
    type: str
    stored: int
    value: str

    @property
    def is_tensor(self) -> bool:
        return self.type in ITEM_BYTES

    @property
    def shape(self) -> Shape:
        return self.shapes[0]

    @property
    def elements(self) -> int:
        """Elements of all tensors, expanded dimensions in full."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.type]

    @property
    def stored_bytes(self) -> int:
        return self.stored * self.item_bytes


def operands_text(args: Args) -> bytes:
    return msgspec.json.encode((args.dims, args.types, args.strides, args.values))


def parse_operands(text: bytes) -> list[Operand] | None:
    try:
        dims, types, strides, values = msgspec.json.decode(text)
        count = len(dims)
        strides = strides or [None] * count
        values = values or [""] * count
        return [_operand(*fields) for fields in zip(dims, types, strides, values, strict=True)]
    except (ValueError, TypeError, msgspec.DecodeError, RecursionError):
        return None


def _operand(dims: Any, type: Any, strides: Any, value: Any) -> Operand:
    if type == TENSORS:
        shapes = tuple(map(_shape, dims))
        all_strides = strides or [None] * len(shapes)
        stored = sum(map(_stored, shapes, all_strides))
    elif type in ITEM_BYTES:
        shapes = (_shape(dims),)
        stored = _stored(shapes[0], strides)
    else:
        shapes, stored = (), 0
    return Operand(shapes, str(type), stored, value if isinstance(value, str) else "")


def _shape(dims: Any) -> Shape:
    """Convert dimensions to a tuple; ValueError if no shape, or larger than any memory."""
    if not isinstance(dims, list) or not all(type(n) is int and n >= 0 for n in dims):
        raise ValueError("not a shape")
    if math.prod(n for n in dims if n) > MAX_ELEMENTS:
        raise ValueError("larger than any memory")
    return tuple(dims)


def _stored(shape: Shape, strides: Any) -> int:
    if not isinstance(strides, list) or len(strides) != len(shape):
        return math.prod(shape)
    if 0 in shape:
        return 0
    # An expanded dimension has stride 0: all its elements are the same place in memory.
    return math.prod(size for size, stride in zip(shape, strides, strict=True) if stride != 0)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that these shapes broadcast to; ValueError if they do not."""
    result: list[int] = []
    # Shapes are aligned at their last dimension: count from the end.
    for from_end in range(1, max(map(len, shapes), default=0) + 1):
        sizes = {shape[-from_end] for shape in shapes if len(shape) >= from_end} - {1}
        if len(sizes) > 1:
            raise ValueError(f"shapes {shapes} do not broadcast")
        result.append(sizes.pop() if sizes else 1)
    return tuple(reversed(result))


def result_bytes(tensors: Sequence[Operand]) -> int:
    """Return the bytes per element of an arithmetic result, by torch's type promotion.

    Floats take precedence over integers, and tensors over zero-dimensional ones; then the widest
    type.
    """
    dimensioned = [tensor for tensor in tensors if tensor.shape] or tensors
    candidates = [tensor for tensor in dimensioned if tensor.type in FLOATING] or dimensioned
    return max(tensor.item_bytes for tensor in candidates)
