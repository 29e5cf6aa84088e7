"""FLOPs and bytes that one call of an operator must cost, from the shapes of its inputs.

FLOPs: two per multiply-add of a matrix product, eight if its numbers are complex; attention in
full, including its masked half and the scores that a fused backward recomputes; one per element of
an elementwise result; one per element that a reduction reads; five per element of a softmax
(maximum, difference, exponential, sum, quotient), four of its backward.

The dry run and the tables of a trace count products by the same rules, `product_cost`.

Bytes: every input and every output once, as if the cache held everything within an operator and
nothing between operators. An expanded input counts its elements in memory; a tensor changed in
place is read and written.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sysbench.core.trace.classify import classify_operator
from sysbench.core.trace.operands import (
    PACKED,
    TENSORS,
    Operand,
    Shape,
    broadcast,
    result_bytes,
)

COUNTED_CATEGORIES = ("gemm", "attention", "convolution")
MOVES_ONLY = ("roll", "flip", "tril", "triu", "where", "masked_fill")
BOOLEAN = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite")
"""Elementwise operators with one byte per result element."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Minimum work of one call; ``flops`` is None if unknown.

    Peaks are quoted for products, and closed forms count these. A composite consists of other
    operators on some devices; there these count instead.
    """

    flops: float | None
    moved_bytes: float
    is_product: bool = False
    is_composite: bool = False


Rule = Callable[[Sequence[Operand]], Cost]


def operator_cost(
    name: str, operands: Sequence[Operand], list_item_bytes: int | None = None
) -> Cost | None:
    """Return the cost of a call, ``aten::mm``; None if unknown, or if it only calls others.

    ``list_item_bytes`` is the size of elements of tensors in lists (the optimizer's), whose type
    the profiler does not record.
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


def product_cost(name: str, operands: Sequence[Operand]) -> Cost | None:
    """Return the cost of a matrix product, convolution or attention; None for other operators, and
    if the shapes do not determine it."""
    rule = _PRODUCTS.get(name.removeprefix("aten::"))
    try:
        return rule(operands) if rule else None
    except (ValueError, IndexError, KeyError, SyntaxError, TypeError):
        return None


def is_product(name: str) -> bool:
    return name.removeprefix("aten::") in _PRODUCTS


def may_multiply(name: str) -> bool:
    """Whether an operator may compute matrix products by itself, judged by its name.

    An operator of another library than torch may compute anything.
    """
    namespace, _, plain = name.rpartition("::")
    if namespace != "aten":
        is_operator = NAMESPACE.fullmatch(namespace) and plain.isidentifier()
        return bool(is_operator) and namespace not in WITHOUT_PRODUCTS
    if FACTORISATIONS.search(plain):
        return True
    return classify_operator(name) in COUNTED_CATEGORIES and not CHOICES.search(plain)


def _products_cost(products: int, tensors: Sequence[Operand], results: int) -> Cost:
    """Cost of multiply-adds that read the tensors and write that many results."""
    # A complex product is four products of real numbers, and its sum two sums.
    each = 8.0 if any("complex" in tensor.type for tensor in tensors) else 2.0
    moved = results * result_bytes(tensors) + sum(tensor.stored_bytes for tensor in tensors)
    return Cost(each * products, moved, is_product=True)


def _product(operands: Sequence[Operand], *, used: int, dimensions: int) -> Cost:
    """Matrix product of the last two used operands; one before them is added."""
    *_, a, b = tensors = operands[:used]
    *batch, rows, inner = a.shape
    *_, columns = b.shape if len(b.shape) > 1 else (1,)
    if len(a.shape) != dimensions or len(b.shape) > dimensions:
        raise ValueError("not the shapes of this product")
    results = math.prod(batch) * rows * columns
    return _products_cost(results * inner * _packed(a), tensors, results)


def _packed(operand: Operand) -> int:
    return 2 if operand.type == PACKED else 1


def _dot(operands: Sequence[Operand]) -> Cost:
    return _products_cost(operands[0].elements, operands[:2], 1)


def _summed_batches(operands: Sequence[Operand]) -> Cost:
    """``addbmm``: products of all batches, added up."""
    _, a, b = operands[:3]
    batch, rows, inner = a.shape
    return _products_cost(batch * rows * inner * b.shape[2], operands[:3], rows * b.shape[2])


def _grouped(operands: Sequence[Operand]) -> Cost:
    """Products of groups: ``_grouped_mm`` of torch's ``native/GroupedMMUtils.h``.

    A dimension that only one operand has in three is cut into groups, whose offsets need not be
    alike: each row, column or inner index belongs to one group. Rows beyond the last group would
    be counted, too.
    """
    a, b = operands[:2]
    *of_a, rows, inner = a.shape
    *of_b, _, columns = b.shape
    if max(len(of_a), len(of_b)) > 1 or not all(one.is_tensor for one in (a, b)):
        raise ValueError("not the shapes of this product")
    results = rows * columns
    if of_a == of_b:  # batches, or groups of inner indices
        groups = operands[2] if len(operands) > 2 else None
        is_cut = not of_a and groups is not None and groups.is_tensor
        results *= groups.elements if is_cut and groups is not None else math.prod(of_a)
    products = math.prod(of_a if of_a == of_b else ()) * rows * columns * inner
    return _products_cost(products * _packed(a), [a, b], results)


def _scaled_grouped(operands: Sequence[Operand]) -> Cost:
    """As `_grouped`, with scales between the operands and the offsets."""
    offsets = [one for one in operands[2:] if one.type in ("int", "long int")]
    return _grouped([*operands[:2], *offsets[:1]])


def _convolution(operands: Sequence[Operand]) -> Cost:
    """Each weight is used once at each place of the result, or of the input if transposed.

    The weight has the channels of one group in its second dimension, so groups are in its size.
    Padding is counted. Sizes of the result: documentation of ``torch.nn.ConvTranspose2d`` and
    ``torch.nn.Conv2d``.
    """
    x, weight = operands[:2]
    stride, padding, dilation = (_integers(operand) for operand in operands[3:6])
    is_transposed, more = operands[6].value == "True", _integers(operands[7])
    batch, _, *sizes = x.shape
    kernel = weight.shape[2:]
    several = [one * len(sizes) if len(one) == 1 else one for one in (stride, padding, dilation)]
    rows = list(zip(sizes, kernel, *several, strict=True))
    if is_transposed:
        groups = int(operands[8].value)
        channels = weight.shape[1] * groups
        more = more * len(sizes) if len(more) == 1 else more
        results = [
            (n - 1) * step - 2 * pad + far * (k - 1) + extra + 1
            for (n, k, step, pad, far), extra in zip(rows, more, strict=True)
        ]
        places = sizes
    else:
        channels = weight.shape[0]
        places = results = [
            (n + 2 * pad - far * (k - 1) - 1) // step + 1 for n, k, step, pad, far in rows
        ]
    return _products_cost(
        batch * math.prod(places) * weight.elements,
        [one for one in operands[:3] if one.is_tensor],
        batch * channels * math.prod(results),
    )


def _convolution_backward(operands: Sequence[Operand]) -> Cost:
    """Operands: gradient of the result, input, weight. As many products as forward for each
    gradient, of the input and of the weight, that is asked for."""
    gradient, x, weight = operands[:3]
    is_transposed = operands[7].value == "True"
    of_input, of_weight, *_ = ast.literal_eval(operands[10].value)
    batch, _, *places = (x if is_transposed else gradient).shape
    products = batch * math.prod(places) * weight.elements
    results = of_input * x.elements + of_weight * weight.elements
    return _products_cost((of_input + of_weight) * products, [gradient, x, weight], results)


def _integers(operand: Operand) -> list[int]:
    return [int(number) for number in ast.literal_eval(operand.value)]


def _recurrent(operands: Sequence[Operand], *, backward: bool = False) -> Cost:
    """A layer, ``mkldnn_rnn_layer``, or all layers, ``_cudnn_rnn``: each token meets each weight.

    Backward computes the gradients of inputs, states and weights. That of a sequence's first state
    is not counted: torch's own states are constants.
    """
    x = operands[0]
    matrices: list[Shape]
    if operands[1].type == TENSORS:
        matrices = [shape for shape in operands[1].shapes if len(shape) == 2]
        state = operands[4]
    else:
        matrices = [one.shape for one in operands[1:3]]
        state = operands[5]
    tokens = math.prod(x.shape[:-1])
    weights = sum(map(math.prod, matrices))
    products = tokens * weights
    if backward:
        # Input and recurrent weights alternate.
        recurrent = sum(map(math.prod, matrices[1::2]))
        products = 2 * products - state.shape[-2] * recurrent
    results = tokens * sum(shape[1] for shape in matrices[1::2])
    moved = (results + weights * (1 + backward)) * x.item_bytes + x.stored_bytes
    return Cost(2.0 * products, moved, is_product=True)


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


def _dense_attention(operands: Sequence[Operand], *, jagged: int, first: int = 0) -> Cost:
    """q, k, v of shape (batch, context, heads, width).

    ``jagged`` is the index of the offsets of packed sequences. With these the number of scores is
    unknown: shapes do not have the sequences' lengths.
    """
    if operands[jagged].is_tensor:
        raise ValueError("sequences of unknown lengths")
    changed = list(operands)
    for index in range(first, first + 3):
        batch, context, heads, width = operands[index].shape
        shape = (batch, heads, context, width)
        changed[index] = replace(operands[index], shapes=(shape,))
    return _attention_backward(changed) if first else _attention(changed)


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
_PRODUCTS: dict[str, Rule] = {
    **dict.fromkeys(
        ("mm", "mv", "_scaled_mm", "_scaled_mm_v2", "_int_mm"),
        partial(_product, used=2, dimensions=2),
    ),
    **dict.fromkeys(
        ("addmm", "addmv", "_addmm_activation"), partial(_product, used=3, dimensions=2)
    ),
    "bmm": partial(_product, used=2, dimensions=3),
    "baddbmm": partial(_product, used=3, dimensions=3),
    "addbmm": _summed_batches,
    **dict.fromkeys(("dot", "vdot"), _dot),
    "_grouped_mm": _grouped,
    **dict.fromkeys(("_scaled_grouped_mm", "_scaled_grouped_mm_v2"), _scaled_grouped),
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _convolution),
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(("mkldnn_rnn_layer", "_cudnn_rnn"), _recurrent),
    **dict.fromkeys(
        ("mkldnn_rnn_layer_backward", "_cudnn_rnn_backward"), partial(_recurrent, backward=True)
    ),
    **dict.fromkeys(FUSED_ATTENTION, _attention),
    **dict.fromkeys((f"{name}_backward" for name in FUSED_ATTENTION), _attention_backward),
    "_flash_attention_forward": partial(_dense_attention, jagged=3),
    "_efficient_attention_forward": partial(_dense_attention, jagged=4),
    "_flash_attention_backward": partial(_dense_attention, jagged=6, first=1),
    "_efficient_attention_backward": partial(_dense_attention, jagged=6, first=1),
}
"""Operators of matrix products, by name."""

NAMESPACE = re.compile(r"[a-z]\w*", re.ASCII)
WITHOUT_PRODUCTS = (
    *("prim", "prims", "c10d", "_c10d_functional", "fsdp", "inductor", "autograd", "profiler"),
    *("nccl", "gloo", "mpi", "ucc"),
)
"""Namespaces of operators that multiply no matrices themselves."""
FACTORISATIONS = re.compile(
    r"linalg_(?!(vector_|matrix_)?norm|cross|vecdot|diagonal)|cholesky|triangular_solve|geqrf"
    r"|ormqr|orgqr|_lu_|_euclidean_dist|cdist|(cudnn|miopen|mkldnn)_rnn|_trilinear|matrix_exp"
)
CHOICES = re.compile(r"_fused_sdp_choice|philox|convert")
"""Operators of attention that compute no product."""

_RULES: dict[str, Rule] = {
    **_PRODUCTS,
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
