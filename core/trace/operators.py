"""FLOPs and bytes that one call of an operator must cost, from the shapes of its inputs.

FLOPs: two per multiply-add of a matrix product; attention in full, including its masked half and
the scores that a fused backward recomputes; one per element of an elementwise result; one per
element that a reduction reads; five per element of a softmax (maximum, difference, exponential,
sum, quotient), four of its backward.

Bytes: every input and every output once, as if the cache held everything within an operator and
nothing between operators. An expanded input counts its elements in memory; a tensor changed in
place is read and written.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from sysbench.core.trace.classify import classify_operator
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
MAX_ELEMENTS = 2**50
"""Maximum elements of a tensor; a hostile trace may claim any number."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """One argument of an operator.

    Attributes:
        shapes: Shape of the tensor, or of each tensor of a list; empty for a number.
        type: As the profiler writes it: ``float``, ``TensorList``, ``Scalar``, ``""``.
        stored: Distinct elements in memory: an expanded dimension has one.
        value: A number or a list of numbers as text, else empty.
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


COUNTED_CATEGORIES = ("gemm", "attention", "convolution")
MOVES_ONLY = ("roll", "flip", "tril", "triu", "where", "masked_fill")
BOOLEAN = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite")
"""Elementwise operators with one byte per result element."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Minimum work of one call; ``flops`` is None if unknown.

    Attributes:
        is_product: A matrix product: peaks are quoted for these, closed forms count these.
        is_composite: Composed of other operators on some devices; there these count instead.
    """

    flops: float | None
    moved_bytes: float
    is_product: bool = False
    is_composite: bool = False


Rule = Callable[[Sequence[Operand]], Cost]


def operator_cost(
    name: str, operands: Sequence[Operand], list_item_bytes: int | None = None
) -> Cost | None:
    """Return the cost of a call; None if unknown, or if it only calls others.

    Args:
        name: As in the trace, ``aten::mm``.
        list_item_bytes: Bytes per element of tensors in lists (the optimizer's); the profiler does
            not record their type.
    """
    plain = name.removeprefix("aten::")
    try:
        if plain.startswith(("_foreach_", "_fused_adam")):
            return _list_cost(plain, operands, list_item_bytes)
        rule = _RULES.get(plain)
        if rule is None and classify_operator(name) == "elementwise" and name != plain:
            return _elementwise(plain.rstrip("_"), operands)
        return rule(operands) if rule else None
    except (ValueError, IndexError, KeyError, SyntaxError):
        return None


def _product(operands: Sequence[Operand], *, used: int, dimensions: int) -> Cost:
    """Matrix product of the last two used operands; one before them is added."""
    *_, a, b = tensors = operands[:used]
    *batch, rows, inner = a.shape
    *_, columns = b.shape if len(b.shape) > 1 else (1,)
    if len(a.shape) != dimensions or len(b.shape) > dimensions:
        raise ValueError("not the shapes of this product")
    results = math.prod(batch) * rows * columns
    moved = results * result_bytes(tensors) + sum(tensor.stored_bytes for tensor in tensors)
    return Cost(2.0 * results * inner, moved, is_product=True)


def _attention(operands: Sequence[Operand]) -> Cost:
    """q, k, v of shape (batch, heads, context, width)."""
    q, k, v = operands[:3]
    scores, width, value_width = _scores(q, k, v)
    batch, heads, context, _ = q.shape
    written = batch * heads * context * value_width * q.item_bytes
    return Cost(
        2.0 * scores * (width + value_width),
        written + sum(tensor.stored_bytes for tensor in (q, k, v)),
        is_product=True,
    )


def _attention_backward(operands: Sequence[Operand]) -> Cost:
    """Operands: gradient of the result, q, k, v, then the tensors saved by forward.

    Five products: the scores again, and the gradients of v, the weights, q and k.
    """
    q, k, v = operands[1:4]
    scores, width, value_width = _scores(q, k, v)
    written = sum(tensor.elements * tensor.item_bytes for tensor in (q, k, v))
    return Cost(
        # Scores, gradients of q and of k have a query's width; of v and of the weights a value's.
        2.0 * scores * (3 * width + 2 * value_width),
        written + sum(operand.stored_bytes for operand in operands if operand.is_tensor),
        is_product=True,
    )


def _scores(q: Operand, k: Operand, v: Operand) -> tuple[int, int, int]:
    """Return number of scores, width of a query, width of a value."""
    batch, heads, queries, width = q.shape
    return batch * heads * queries * k.shape[2], width, v.shape[3]


def _elementwise(plain: str, operands: Sequence[Operand]) -> Cost:
    tensors = [operand for operand in operands if operand.is_tensor]
    elements = math.prod(broadcast([tensor.shape for tensor in tensors]))
    item_bytes = 1 if plain in BOOLEAN else result_bytes(tensors)
    read = sum(tensor.stored_bytes for tensor in tensors)
    return Cost(0.0 if plain in MOVES_ONLY else float(elements), read + elements * item_bytes)


def _reduction(operands: Sequence[Operand]) -> Cost:
    """Reduce along the first list of integers, or along all dimensions."""
    tensor = operands[0]
    lists = [operand.value for operand in operands[1:] if operand.type == "ScalarList"]
    along = ast.literal_eval(lists[0]) if lists and lists[0] else []
    # Elements that one result is made of; at least 1, as it divides.
    reduced = math.prod(tensor.shape[dim] for dim in along) or 1 if along else tensor.elements or 1
    written = tensor.elements // reduced * tensor.item_bytes
    return Cost(float(tensor.elements), tensor.stored_bytes + written)


def _softmax(operands: Sequence[Operand]) -> Cost:
    tensor = operands[0]
    item_bytes = 4 if operands[2].value == "True" else tensor.item_bytes  # ``half_to_float``
    return Cost(5.0 * tensor.elements, tensor.stored_bytes + tensor.elements * item_bytes)


def _softmax_backward(operands: Sequence[Operand]) -> Cost:
    gradient, result = operands[:2]
    read = gradient.stored_bytes + result.stored_bytes
    return Cost(4.0 * result.elements, read + result.elements * result.item_bytes)


def _copy(operands: Sequence[Operand]) -> Cost:
    target, source = operands[:2]
    return Cost(0.0, source.stored_bytes + target.elements * target.item_bytes)


def _fill(operands: Sequence[Operand]) -> Cost:
    return Cost(0.0, operands[0].elements * operands[0].item_bytes)


def _index_select(operands: Sequence[Operand]) -> Cost:
    """Rows of a table are read and written once."""
    table, dim, index = operands[:3]
    moved = index.elements * (table.elements // table.shape[int(dim.value)]) * table.item_bytes
    return Cost(0.0, 2 * moved + index.stored_bytes)


def _embedding_backward(operands: Sequence[Operand]) -> Cost:
    """One gradient per token, summed into a table of ``rows`` rows."""
    gradient, index, rows = operands[:3]
    written = int(rows.value) * gradient.shape[-1] * gradient.item_bytes
    read = gradient.stored_bytes + index.stored_bytes
    return Cost(float(gradient.elements), read + written)


def _norm(operands: Sequence[Operand]) -> Cost:
    """Forward, and backward without gradients of the gains: reads all, writes one tensor."""
    read = sum(operand.stored_bytes for operand in operands if operand.is_tensor)
    written = operands[0].elements * operands[0].item_bytes
    return Cost(None, read + written, is_composite=True)


def _list_cost(plain: str, operands: Sequence[Operand], item_bytes: int | None) -> Cost | None:
    """Many tensors at once: optimizers and gradient clipping."""
    lists = [operand.elements for operand in operands if operand.type == TENSORS]
    if item_bytes is None or not lists:
        return None
    if plain.startswith("_fused_adam"):
        # Parameters, gradients, two or three moments; the step counts are a number each. All
        # are read, and all but the gradients written.
        read = sum(lists[:5])
        return Cost(None, (read + read - lists[1]) * item_bytes, is_composite=True)
    read = sum(lists[1:] if plain == "_foreach_copy_" else lists)
    written = len(operands[0].shapes) if plain == "_foreach_norm" else lists[0]
    return Cost(float(lists[0]), (read + written) * item_bytes, is_composite=True)


FUSED_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
)
_RULES: dict[str, Rule] = {
    **dict.fromkeys(("mm", "mv", "_scaled_mm"), partial(_product, used=2, dimensions=2)),
    **dict.fromkeys(("addmm", "_addmm_activation"), partial(_product, used=3, dimensions=2)),
    "bmm": partial(_product, used=2, dimensions=3),
    "baddbmm": partial(_product, used=3, dimensions=3),
    **dict.fromkeys(FUSED_ATTENTION, _attention),
    **dict.fromkeys((f"{name}_backward" for name in FUSED_ATTENTION), _attention_backward),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "linalg_vector_norm"), _reduction),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_backward),
    "copy_": _copy,
    **dict.fromkeys(("fill_", "zero_"), _fill),
    "index_select": _index_select,
    "embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(("_fused_rms_norm", "native_layer_norm"), _norm),
    **dict.fromkeys(("_fused_rms_norm_backward", "native_layer_norm_backward"), _norm),
}
