"""Results of operations on tensors without data: as torch gives them, however often asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sysbench.core.worker.dry_run.operations import Results

aten = torch.ops.aten
LAYOUTS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda one: one,
    lambda one: one.t(),
    lambda one: one[:, :1].expand(one.shape),
    lambda one: one[1:],
)
OPERATIONS: tuple[Callable[[Tensor], tuple[Any, tuple[Any, ...]]], ...] = (
    lambda one: (aten.add.Tensor, (one, one)),
    lambda one: (aten.add.Tensor, (one, 1)),
    lambda one: (aten.add.Tensor, (one, 1.0)),
    lambda one: (aten.add.Tensor, (one, True)),
    lambda one: (aten.mm.default, (one, one.t())),
    lambda one: (aten._to_copy.default, (one,)),
    lambda one: (aten.sum.dim_IntList, (one, [1], True)),
    lambda one: (aten.max.dim, (one, 0)),
    lambda one: (aten._foreach_sqrt.default, ([one, one.t()],)),
    lambda one: (aten.cat.default, ([one, one], 1)),
    lambda one: (aten._unsafe_view.default, (one, [one.numel()])),
    lambda one: (aten.t.default, (one,)),
    lambda one: (aten.mul_.Tensor, (one, 2)),
)


def leaves(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def described(result: Any, operands: list[Tensor]) -> tuple[type, list[tuple[object, ...]]]:
    """Type of a result, and the layout and memory of its tensors."""
    taken = [one.untyped_storage()._cdata for one in operands]
    return type(result), [
        (
            one.shape,
            one.stride(),
            one.dtype,
            one.storage_offset(),
            one.untyped_storage().nbytes(),
            [address == one.untyped_storage()._cdata for address in taken],
        )
        for one in leaves(result)
    ]


@given(
    rows=st.integers(2, 5),
    columns=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
    layout=st.sampled_from(LAYOUTS),
    operations=st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=6),
)
def test_every_result_is_what_torch_gives(
    rows: int,
    columns: int,
    dtype: torch.dtype,
    layout: Callable[[Tensor], Tensor],
    operations: list[Callable[[Tensor], tuple[Any, tuple[Any, ...]]]],
) -> None:
    results = Results()
    for operation in operations * 3:
        operand = layout(torch.empty(rows, columns, dtype=dtype, device="meta"))
        func, args = operation(operand)
        try:
            expected = described(func(*args), [operand])
        except RuntimeError:
            with pytest.raises(RuntimeError):
                results.of(func, args, {})
            continue
        assert described(results.of(func, args, {}), [operand]) == expected


def test_torch_is_asked_once_for_a_kind_of_operands() -> None:
    asked = []

    class Watched:
        def __init__(self, func: Any) -> None:
            self._func = func

        def __getattr__(self, name: str) -> Any:
            return getattr(self._func, name)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            asked.append(self._func)
            return self._func(*args, **kwargs)

    results = Results()
    add, view, write = (
        Watched(one) for one in (aten.add.Tensor, aten._unsafe_view.default, aten.add_.Tensor)
    )
    made = []
    for _ in range(3):
        one = torch.empty(4, 3, device="meta")
        made.append(results.of(add, (one, one), {}))
        results.of(view, (one, [12]), {})
        results.of(write, (one, one), {})
    assert [asked.count(one) for one in (aten.add.Tensor, aten.add_.Tensor)] == [1, 3]
    assert asked.count(aten._unsafe_view.default) == 3
    assert len({one.untyped_storage()._cdata for one in made}) == 3


def test_tensors_with_data_are_computed() -> None:
    results = Results()
    step = torch.zeros(())
    for expected in (1.0, 2.0):
        results.of(aten._foreach_add_.Scalar, ([step], 1), {})
        assert step.item() == expected
    assert results.of(aten.add.Tensor, (step, 1), {}).item() == 3.0
    step += 1
    assert results.of(aten.add.Tensor, (step, 1), {}).item() == 4.0


def test_a_tensor_without_a_dtype_has_the_default_one() -> None:
    results, usual = Results(), torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.bfloat16, torch.float32):
            torch.set_default_dtype(dtype)
            made = results.of(aten.ones.default, ([64],), {"device": torch.device("meta")})
            assert made.dtype == dtype
    finally:
        torch.set_default_dtype(usual)
