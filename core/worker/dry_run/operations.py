"""Costs and results of operations on tensors without data."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from sysbench.core.trace.operands import TENSORS, Operand
from sysbench.core.trace.operators import is_product, may_multiply, product_cost
from sysbench.core.worker.workloads.stepped_workload import tensors_in

_aten = torch.ops.aten
OF_CUDA = (_aten._softmax_backward_data, _aten._scaled_dot_product_flash_attention)
"""Operations with scratch memory on CUDA alone."""
OF_BOTH = (_aten.native_layer_norm_backward, _aten._safe_softmax)
"""Operations with scratch memory on the CPU as on CUDA."""
COMPARISONS = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})
PROMOTING = COMPARISONS | {"add", "div", "maximum", "minimum", "mul", "pow", "sub", "where"}
"""Names of elementwise operations whose operands may have different dtypes."""


TYPES = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
    torch.float8_e4m3fn: "c10::Float8_e4m3fn",
    torch.float8_e5m2: "c10::Float8_e5m2",
    torch.float4_e2m1fn_x2: "c10::Float4_e2m1fn_x2",
    torch.int64: "long int",
    torch.int32: "int",
    torch.int8: "signed char",
}
"""Names of the profiler for dtypes of products and of their indices."""


def flops_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """FLOPs of matrix products, as `product_cost` has them; 0 for other operations.

    None for an operation that may multiply matrices and has no formula.
    """
    name = func._schema.name
    if not is_product(name):
        return None if may_multiply(name) else 0
    cost = product_cost(name, operands_of(func, args, kwargs))
    return None if cost is None or cost.flops is None else int(cost.flops)


def operands_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Operand]:
    """The operands of a call in the order of its schema, as the profiler would write them."""
    values = [
        args[index] if index < len(args) else kwargs.get(declared.name, declared.default_value)
        for index, declared in enumerate(func._schema.arguments)
    ]
    return list(map(_operand, values))


def _operand(value: Any) -> Operand:
    if isinstance(value, Tensor):
        return Operand((tuple(value.shape),), TYPES.get(value.dtype, ""), value.numel(), "")
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
        shapes = tuple(tuple(one.shape) for one in value)
        return Operand(shapes, TENSORS, sum(one.numel() for one in value), "")
    return Operand((), "", 0, "" if value is None else str(value))


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
    (``batch_norm_backward_cpu_template``), that of flash attention copies a part of a gradient,
    elementwise operations cast what is not of the common dtype (``TensorIteratorBase``), and
    ``fully_shard`` pads gradients that its ranks do not divide (``_chunk_cat``).
    """
    if packet in OF_BOTH or (on_cuda and packet in OF_CUDA):
        return sum(scratch_after(packet, args, result))
    if on_cuda and packet is _aten._foreach_norm:
        return sum(scratch_before(packet, args))
    if not on_cuda and packet is _aten.native_batch_norm_backward and result[0] is not None:
        last = torch.channels_last
        is_dense = all(x.is_contiguous() or x.is_contiguous(memory_format=last) for x in args[:2])
        return _bytes(result[0]) if is_dense else 0
    if packet is _aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return 0 if args[0].transpose(1, 2).is_contiguous() else _bytes(args[0])
    if not on_cuda and (name := packet.__name__.rstrip("_")) in PROMOTING:
        return _cast_bytes(name, args, result)
    if not on_cuda and packet.__name__ == "chunk_cat":
        tensors, dim, chunks = args  # each is padded to a multiple of the chunks along dim
        rows = [(one, one.shape[dim]) for one in tensors if one.shape[dim] % chunks]
        return sum(_bytes(one) // size * -(-size // chunks) * chunks for one, size in rows)
    return 0


def _cast_bytes(name: str, args: Sequence[Any], result: Tensor) -> int:
    """Bytes of the copies of operands, and of a result in place, in the common dtype."""
    operands = args[-2:]  # the condition of where() comes first
    if not all(isinstance(one, Tensor) for one in operands):
        return 0
    common = torch.result_type(*operands)
    cast = [one for one in operands if one.dtype != common]
    if result.dtype != common and name not in COMPARISONS:
        cast.append(result)
    return sum(one.numel() * common.itemsize for one in cast)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.itemsize


def in_kernel_s_layout(packet: Any, result: Any) -> Any:
    """Give results the strides of the real kernel where meta tensors differ.

    ``native_layer_norm_backward`` returns a contiguous input gradient on CPU and CUDA; on meta
    tensors it keeps the incoming strides, and views copy it.
    """
    if packet is not _aten.native_layer_norm_backward or result[0] is None:
        return result
    return (result[0].contiguous(), *result[1:])


def results_on_device(packet: Any, result: Any) -> Any:
    """The results that a kernel makes on the device, in the order in which it makes them.

    Without dropout the memory-efficient kernel has its seed and offset on the host; cuDNN's are
    made before the other results.
    """
    if packet is _aten._scaled_dot_product_efficient_attention:
        return result[:2]
    if packet is _aten._scaled_dot_product_cudnn_attention:
        return (*result[6:8], *result[:2])
    return result


SORTED_FROM = 3_073
"""Indices from which an embedding's gradient sorts them first."""

ROWS_OF_A_PART = 10
"""Rows of one index that a thread adds up."""

MULTIPROCESSORS = 132
"""Of an H100 or H200. Flash attention splits keys for few queries, and less on smaller devices."""

SPLIT_ROWS, MAX_SPLITS = 64, 128
"""Queries of a block, and the most parts of the keys, in flash attention that splits keys."""

CHUNK = 65_536
"""Elements that one block of a kernel over lists of tensors takes: ``ForeachReduceOp.cu``."""

FLASH_ROWS, FLASH_COLUMNS = 128, 32
"""Flash attention rounds the tokens and the width of a head up to multiples of these."""


def scratch_before(packet: Any, args: Sequence[Any]) -> list[int]:
    """Bytes requested before the results; all are returned when the operation ends."""
    if packet is _aten.roll and not args[0].is_contiguous():
        return [_bytes(args[0])]
    if packet is _aten._foreach_norm:
        # A sum of each chunk of each tensor, and as many for each as the longest has.
        chunks = max(-(-tensor.numel() // CHUNK) for tensor in args[0])
        return [len(args[0]) * chunks * max(4, args[0][0].itemsize)]
    return []


RESULTS_BEFORE_SCRATCH = {_aten._scaled_dot_product_flash_attention: 2}
"""Number of results that are requested before `scratch_after`, where it is not all."""


def scratch_after(packet: Any, args: Sequence[Any], result: Any) -> list[int]:
    """Bytes requested after the results; a negative ``~n`` returns the n-th of before.

    The rest is returned when the operation ends.
    """
    if packet is _aten.embedding_dense_backward:
        return _sorted_embedding(args[0], args[1], args[2])
    if packet is _aten._scaled_dot_product_efficient_attention_backward:
        return _efficient_backward(args[1])
    if packet is _aten._scaled_dot_product_flash_attention:
        return _flash_forward(args[0], args[1])
    if packet is _aten._scaled_dot_product_flash_attention_backward:
        return _flash_backward(args[1])
    if packet is _aten._scaled_dot_product_cudnn_attention_backward:
        return _cudnn_backward(args[1])
    if packet is _aten._safe_softmax:
        # Marks of elements that are minus infinity and of rows that are so entirely, and the zero
        # that such rows are set to, in the softmax itself.
        return [result.numel(), result.numel() // result.shape[-1], result.itemsize]
    if packet is _aten._softmax_backward_data:
        return [_bytes(args[0])]  # the gradient times the softmax, which the CPU's kernel skips
    if packet is _aten.native_layer_norm_backward:
        return [_bytes(tensor) for tensor in args[:2] if not tensor.is_contiguous()]
    return []


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
    """Of ``_efficient_attention_backward``: the rows' sums, then tiles of the gradient of q.

    Tiles are those of the kernels for compute capabilities 8.0 and 9.0, each with a lock and a
    counter. In 16 bits the kernel makes the sums, and adds up k and v, too, of wide heads.
    """
    batch, heads, tokens, width = q.shape
    is_half = q.itemsize == 2
    rows = batch * heads * tokens * 4
    tile = 64 if width <= 64 else 128
    columns = 128 if is_half and 64 < width <= 128 else 64
    count = -(-tokens // tile) * -(-width // columns) * (tile * columns * 4 + 16)
    if is_half and width > 128:
        count += 2 * (-(-tokens // 64) * 64) * (-(-width // 128) * 128) * 4
    sums = [rows] if is_half else [rows * width, rows, rows, ~0, ~1]
    return [*sums, batch * heads * count]


def _flash_forward(q: Tensor, k: Tensor) -> list[int]:
    """Of ``set_params_splitkv``: sums and results of each part, where keys are split in parts."""
    batch, heads, tokens, width = q.shape
    keys = 256 if width <= 64 else 128 if width <= 128 else 64
    blocks = batch * heads * -(-tokens // SPLIT_ROWS)
    splits = flash_splits(blocks, -(-k.shape[2] // keys))
    if splits == 1:
        return []
    rows = splits * batch * heads * tokens * 4
    return [rows, rows * -(-width // FLASH_COLUMNS) * FLASH_COLUMNS]


def flash_splits(blocks: int, key_blocks: int, places: int = 2 * MULTIPROCESSORS) -> int:
    """Parts into which flash attention splits the keys: ``num_splits_heuristic``.

    Args:
        blocks: Of queries.
        places: For blocks that run at once.
    """
    if blocks >= 0.8 * places:
        return 1
    efficiencies: dict[int, float] = {}
    for splits in range(1, min(MAX_SPLITS, places, key_blocks) + 1):
        # Others have the same number of keys in a part as fewer splits.
        if splits == 1 or -(-key_blocks // splits) != -(-key_blocks // (splits - 1)):
            waves = blocks * splits / places
            efficiencies[splits] = waves / math.ceil(waves)
    best = max(efficiencies.values())
    return next(splits for splits, one in efficiencies.items() if one >= 0.85 * best)


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


_empty = torch.ops.aten.empty_strided.default
PLAIN_VALUES = (
    *(type(None), bool, int, float, str),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
"""Types of operands on whose value alone a result depends."""


@dataclass(frozen=True, slots=True)
class _New:
    """New tensor of an operation: sizes, strides and dtype."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def make(self) -> Tensor:
        made: Tensor = _empty(self.sizes, self.strides, dtype=self.dtype, device="meta")
        return made


SAME_TENSOR = frozenset(
    {"_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"}
)
"""Operations that return their argument, and on meta tensors another one."""


class Results:
    """Calls operations, and caches results that consist of new tensors only, by kind of operands.

    Layers repeat, and torch computes shapes in Python: 0.1 to 2 ms an operation. It never caches
    operations that write to an operand or return a view of one.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}
        self._views: set[Any] = set()  # writes that the operation's schema does not declare

    def clear(self) -> None:
        """Forget all results."""
        self._known.clear()
        self._views.clear()

    def of(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The operation's result, with new tensors wherever torch makes new ones."""
        if _only_writes_lists(func) and all(one.is_meta for one in args[0]):
            return None
        if func.name() in SAME_TENSOR:
            return torch.ops.aten.alias(args[0])
        may_know = _makes_tensors(func) and func not in self._views
        # A tensor that is made without a dtype has the default one.
        named = func.name(), torch.get_default_dtype(), *args, *kwargs.items()
        key = _kind(named) if may_know else None
        if key is None:
            return func(*args, **kwargs)
        if key in self._known:
            return _made_again(self._known[key])
        result = func(*args, **kwargs)
        taken = {one.untyped_storage()._cdata for one in tensors_in((args, *kwargs.values()))}
        if _is_new(result, taken):
            self._known[key] = _recipe(result)
        else:
            self._views.add(func)
        return result


RESULTS = Results()
"""Those of one prediction, whose runs at several depths share them."""


@cache
def _only_writes_lists(func: Any) -> bool:
    """Whether the operation only writes to its first list, as optimizer steps do."""
    schema = func._schema
    if schema.returns or not schema.name.startswith("aten::_foreach_"):
        return False
    written = [one for one in schema.arguments if one.alias_info is not None]
    return bool(written == schema.arguments[:1])


@cache
def _makes_tensors(func: Any) -> bool:
    schema = func._schema
    named = (*schema.arguments, *schema.returns)
    return bool(schema.returns) and all(one.alias_info is None for one in named)


def _kind(value: Any) -> Hashable | None:
    """Everything about an operand that a result can depend on; None if unknown."""
    if isinstance(value, Tensor):
        # A host tensor may matter by its value; subclasses have their own rules.
        if type(value) not in (Tensor, nn.Parameter) or not value.is_meta:
            return None
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        kinds = tuple(map(_kind, value))
        return None if None in kinds else kinds
    if isinstance(value, PLAIN_VALUES):
        return type(value), value  # 1, 1.0 and True are equal, and different operands
    return None


def _is_new(result: Any, taken: set[int]) -> bool:
    """Whether each tensor of a result has its own storage, no larger than itself."""
    for one in tensors_in(result):
        storage = one.untyped_storage()
        whole = type(one) is Tensor and one.is_meta and not one.storage_offset()
        if not whole or storage._cdata in taken or storage.nbytes() != _bytes_of(one):
            return False
        taken.add(storage._cdata)
    return True


def _bytes_of(tensor: Tensor) -> int:
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.itemsize


def _recipe(result: Any) -> Any:
    if isinstance(result, Tensor):
        return _New(tuple(result.shape), result.stride(), result.dtype)
    if isinstance(result, (tuple, list)):
        return type(result)(map(_recipe, result))
    return result


def _made_again(recipe: Any) -> Any:
    if isinstance(recipe, _New):
        return recipe.make()
    if isinstance(recipe, (tuple, list)):
        return type(recipe)(map(_made_again, recipe))
    return recipe
