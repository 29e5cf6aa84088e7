"""The inputs of an operator as torch.profiler records them with ``record_shapes``."""

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
    "long int": 8,
    "long": 8,
    "int": 4,
    "short int": 2,
    "short": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
}
FLOATING = ("double", "float", "c10::Half", "c10::BFloat16")
TENSORS = "TensorList"
LARGEST = 2**50
"""Elements of a tensor; a hostile trace may claim any number."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """One argument of an operator.

    Attributes:
        shapes: Shape of the tensor, or of each tensor of a list; empty for a number.
        type: Name as the profiler writes it: ``float``, ``TensorList``, ``Scalar``, ``""``.
        stored: Distinct elements of the tensors in memory: an expanded dimension holds one.
        value: A number or a list of numbers as text, else empty.
    """

    shapes: tuple[Shape, ...]
    type: str
    stored: int
    value: str

    @property
    def is_tensor(self) -> bool:
        """Whether it is one tensor of a known type."""
        return self.type in ITEM_BYTES

    @property
    def shape(self) -> Shape:
        """Shape of a single tensor."""
        return self.shapes[0]

    @property
    def elements(self) -> int:
        """Elements of all its tensors, expanded dimensions in full."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def item_bytes(self) -> int:
        """Bytes of one element of a tensor."""
        return ITEM_BYTES[self.type]

    @property
    def stored_bytes(self) -> int:
        """Bytes of the tensor in memory."""
        return self.stored * self.item_bytes


def operands_text(args: Args) -> bytes:
    """The inputs of an event as one JSON text; equal inputs have equal texts."""
    return msgspec.json.encode((args.dims, args.types, args.strides, args.values))


def parse_operands(text: bytes) -> list[Operand] | None:
    """The operands in a text of `operands_text`; None if they are inconsistent."""
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
    """The dimensions as a tuple.

    Raises:
        ValueError: They are no shape, or one larger than any memory.
    """
    if not isinstance(dims, list) or not all(type(n) is int and n >= 0 for n in dims):
        raise ValueError("not a shape")
    if math.prod(n for n in dims if n) > LARGEST:
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
    """The shape that tensors of these shapes broadcast to.

    Raises:
        ValueError: The shapes do not broadcast.
    """
    result: list[int] = []
    # Shapes are aligned at their last dimension: count from the end.
    for from_end in range(1, max(map(len, shapes), default=0) + 1):
        sizes = {shape[-from_end] for shape in shapes if len(shape) >= from_end} - {1}
        if len(sizes) > 1:
            raise ValueError(f"shapes {shapes} do not broadcast")
        result.append(sizes.pop() if sizes else 1)
    return tuple(reversed(result))


def result_bytes(tensors: Sequence[Operand]) -> int:
    """Bytes per element of the result of arithmetic on these tensors, by torch's promotion.

    Floats take precedence over integers and tensors over zero-dimensional ones; of the rest
    the widest type is the result's.
    """
    dimensioned = [tensor for tensor in tensors if tensor.shape] or tensors
    candidates = [tensor for tensor in dimensioned if tensor.type in FLOATING] or dimensioned
    return max(tensor.item_bytes for tensor in candidates)
