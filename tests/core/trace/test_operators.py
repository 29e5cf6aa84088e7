"""FLOPs and bytes of operators, against arithmetic by hand and torch's own counter."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from sysbench.core.trace.operands import Operand, broadcast, parse_operands
from sysbench.core.trace.operators import Cost, operator_cost

sizes = st.integers(1, 40)
TYPES = {torch.float32: "float", torch.bfloat16: "c10::BFloat16", torch.bool: "bool"}


def operands(*inputs: Any) -> list[Operand]:
    """Tensors as the profiler notes them; other values as it writes those."""
    dims, types, strides, values = [], [], [], []
    for one in inputs:
        is_tensor = isinstance(one, torch.Tensor)
        dims.append(list(one.shape) if is_tensor else [])
        strides.append(list(one.stride()) if is_tensor else [])
        kind = "ScalarList" if isinstance(one, list) else "Scalar"
        types.append(TYPES[one.dtype] if is_tensor else kind)
        values.append("" if is_tensor else str(one))
    parsed = parse_operands(json.dumps([dims, types, strides, values]).encode())
    assert parsed is not None
    return parsed


def cost(name: str, *inputs: Any) -> Cost:
    found = operator_cost(name, operands(*inputs))
    assert found is not None
    return found


@given(sizes, sizes, sizes)
def test_a_product_is_two_flops_per_multiply_add(m: int, k: int, n: int) -> None:
    a, b = torch.empty(m, k), torch.empty(k, n)
    found = cost("aten::mm", a, b)
    assert found.flops == 2 * m * k * n
    assert found.moved_bytes == 4 * (m * k + k * n + m * n)
    assert found.is_product
    bias = cost("aten::addmm", torch.empty(n), a, b)
    assert (bias.flops, bias.moved_bytes) == (found.flops, found.moved_bytes + 4 * n)


@given(sizes, sizes, sizes, sizes)
def test_a_batched_product_counts_every_batch(batch: int, m: int, k: int, n: int) -> None:
    found = cost("aten::bmm", torch.empty(batch, m, k), torch.empty(batch, k, n))
    one = cost("aten::mm", torch.empty(m, k), torch.empty(k, n))
    assert found.flops == batch * (one.flops or 0)
    assert found.moved_bytes == batch * one.moved_bytes


def test_products_count_as_torch_counts_them() -> None:
    a, b = torch.empty(6, 3, 4), torch.empty(6, 4, 5)
    with FlopCounterMode(display=False) as counter:
        torch.bmm(a, b)
    assert cost("aten::bmm", a, b).flops == counter.get_total_flops()
    q = torch.empty(2, 3, 8, 16, requires_grad=True)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        scaled_dot_product_attention(q, q, q)
    fused = cost("aten::_scaled_dot_product_flash_attention", q, q, q)
    assert fused.flops == counter.get_total_flops()


def test_a_result_that_is_given_to_be_written_counts_once() -> None:
    a, b = torch.empty(3, 4), torch.empty(4, 5)
    assert cost("aten::mm", a, b, torch.empty(3, 5)) == cost("aten::mm", a, b)


@given(sizes, sizes, sizes, st.sampled_from([8, 16]))
def test_fused_attention_counts_in_full_and_its_scores_twice(
    batch: int, heads: int, context: int, d: int
) -> None:
    shape = (batch, heads, context, d)
    q, k, v = (torch.empty(shape, device="meta") for _ in range(3))
    name = "aten::_scaled_dot_product_flash_attention"
    forward = cost(name, q, k, v)
    assert forward.flops == 4 * batch * heads * context**2 * d
    assert forward.moved_bytes == 4 * 4 * math.prod(shape)
    lse = torch.empty(shape[:3], device="meta")
    backward = cost(f"{name}_backward", q, q, k, v, q, lse)
    assert backward.flops == 2.5 * forward.flops


@given(st.lists(sizes, min_size=1, max_size=4))
def test_elementwise_work_reads_and_writes_each_element(shape: list[int]) -> None:
    elements = math.prod(shape)
    x = torch.empty(shape)
    assert cost("aten::mul", x, torch.empty(shape)).moved_bytes == 3 * 4 * elements
    assert cost("aten::exp", x) == Cost(float(elements), 2 * 4 * elements)
    assert cost("aten::mul_", x, 2.0).moved_bytes == 2 * 4 * elements


def test_an_expanded_input_counts_what_it_has_in_memory() -> None:
    rows = torch.empty(64, 1).expand(64, 100)
    assert cost("aten::div", rows, 2.0).moved_bytes == 4 * (64 + 6400)


def test_the_result_has_the_wider_type_of_the_tensors() -> None:
    half, full = torch.empty(10, dtype=torch.bfloat16), torch.empty(10)
    assert cost("aten::add", half, full).moved_bytes == 20 + 40 + 40
    assert cost("aten::mul", half, torch.empty(())).moved_bytes == 20 + 4 + 20
    assert cost("aten::where", torch.empty(10, dtype=torch.bool), half, half).moved_bytes == 70
    assert cost("aten::lt", full, full).moved_bytes == 90


@given(sizes, sizes, sizes)
def test_a_reduction_reads_all_and_writes_what_is_left(a: int, b: int, c: int) -> None:
    x = torch.empty(a, b, c)
    assert cost("aten::sum", x, [-1], True) == Cost(a * b * c, 4 * (a * b * c + a * b))
    assert cost("aten::mean", x, [0, 2], False).moved_bytes == 4 * (a * b * c + b)
    assert cost("aten::sum", x).moved_bytes == 4 * (a * b * c + 1)


def test_softmax_and_copies() -> None:
    x, half = torch.empty(6, 7), torch.empty(6, 7, dtype=torch.bfloat16)
    assert cost("aten::_softmax", x, -1, False) == Cost(5 * 42, 2 * 42 * 4)
    assert cost("aten::_log_softmax", half, -1, True).moved_bytes == 42 * (2 + 4)
    assert cost("aten::_softmax_backward_data", x, x, -1, 6).flops == 4 * 42
    assert cost("aten::copy_", half, x, False) == Cost(0.0, 42 * (2 + 4))
    assert cost("aten::fill_", x, 0) == Cost(0.0, 42 * 4)


def lists(*counts: int) -> list[Operand]:
    dims = [[[count], [1]] for count in counts]
    text = json.dumps([dims, ["TensorList"] * len(dims), None, None])
    parsed = parse_operands(text.encode())
    assert parsed is not None
    return parsed


def test_an_optimizer_on_lists_counts_when_their_type_is_known() -> None:
    adam = lists(99, 99, 99, 99, 0, 0)
    assert operator_cost("aten::_fused_adamw_", adam) is None
    fused = operator_cost("aten::_fused_adamw_", lists(99, 99, 99, 99), 4)
    assert fused is not None
    assert fused.flops is None
    assert fused.moved_bytes == 7 * 4 * 100
    added = operator_cost("aten::_foreach_addcdiv_", lists(99, 99, 99), 2)
    assert added is not None
    assert added.moved_bytes == 4 * 2 * 100


def test_wrappers_and_strangers_have_no_cost() -> None:
    x, w = torch.empty(2, 3), torch.empty(4, 3)
    for name in ("aten::linear", "aten::matmul", "MmBackward0", "aten::to", "mine::mm", "mul"):
        assert operator_cost(name, operands(x, w)) is None


@given(st.text() | st.binary().map(repr))
def test_operands_that_make_no_sense_are_refused(text: str) -> None:
    assert parse_operands(text.encode("utf-8", "replace")) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(["aten::mm", "aten::bmm", "aten::sum", "aten::mul", "aten::index_select"])


@given(names, st.lists(json_values, min_size=4, max_size=4))
def test_hostile_operands_give_no_cost_and_no_error(name: str, columns: list[Any]) -> None:
    parsed = parse_operands(json.dumps(columns).encode())
    found = operator_cost(name, parsed) if parsed else None
    assert found is None or found.moved_bytes >= 0


@pytest.mark.parametrize(
    "dims", [[[-1, 2], [2, 2]], [[2**60], [1]], [[1.5], [1]], [["2"], [1]], [[True], [1]]]
)
def test_shapes_out_of_this_world_are_refused(dims: Any) -> None:
    assert parse_operands(json.dumps([dims, ["float"] * 2, None, None]).encode()) is None


@given(st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=3))
def test_shapes_broadcast_as_numpy_has_them(shapes: list[list[int]]) -> None:
    try:
        expected = np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        with pytest.raises(ValueError, match="broadcast"):
            broadcast(list(map(tuple, shapes)))
    else:
        assert broadcast(list(map(tuple, shapes))) == expected
