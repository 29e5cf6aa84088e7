"""Results of operations on tensors without data: as torch gives them, however often asked."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import profile

from sysbench.core.memory.profiled import HOST, ProfiledTrace
from sysbench.core.worker.dry_run.operations import Results, hidden_bytes

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


def measured_peak(run: Callable[[], object], folder: Path) -> int:
    with profile(profile_memory=True) as recording:
        run()
    trace = folder / "trace.json"
    recording.export_chrome_trace(str(trace))
    history, _ = ProfiledTrace(trace.read_bytes()).history(HOST)
    return int(np.cumsum(history.change).max(initial=0))


FULL, HALF, MASK, IDS = torch.float32, torch.bfloat16, torch.bool, torch.int64


@pytest.mark.parametrize(
    ("name", "dtypes", "copies"),
    [
        ("add_.Tensor", (FULL, HALF), 1),
        ("add_.Tensor", (HALF, FULL), 2),
        ("add.Tensor", (FULL, FULL), 0),
        ("mul.Tensor", (HALF, FULL), 1),
        ("mul.Tensor", (FULL, MASK), 1),
        ("sub.Tensor", (FULL, IDS), 1),
        ("gt.Tensor", (FULL, IDS), 1),
        ("gt.Tensor", (FULL, FULL), 0),
        ("maximum.default", (HALF, FULL), 1),
        ("where.self", (MASK, FULL, HALF), 1),
        ("masked_fill.Scalar", (FULL, MASK, 0.0), 0),
    ],
)
def test_operands_of_other_dtypes_are_cast_on_the_cpu(
    name: str, dtypes: tuple[Any, ...], copies: int, tmp_path: Path
) -> None:
    packet, _, overload = name.partition(".")
    func = getattr(getattr(aten, packet), overload)
    args = [
        torch.ones(300, 70, dtype=one) if isinstance(one, torch.dtype) else one for one in dtypes
    ]
    made = 0 if packet.endswith("_") else func(*args).nbytes
    hidden = hidden_bytes(func.overloadpacket, args, func(*args), on_cuda=False)
    assert hidden == copies * 300 * 70 * FULL.itemsize
    assert measured_peak(lambda: func(*args), tmp_path) == made + hidden
    assert hidden_bytes(func.overloadpacket, args, func(*args), on_cuda=True) == 0


@pytest.mark.parametrize(("rows", "ranks"), [(7, 3), (6, 3), (2, 4)])
def test_gradients_that_ranks_do_not_divide_are_padded(
    rows: int, ranks: int, tmp_path: Path
) -> None:
    importlib.import_module("torch.distributed.fsdp")  # it defines the operation
    gradients = [torch.ones(rows, 300), torch.ones(ranks, 50), torch.ones(rows)]
    padded = -(-rows // ranks) * 301 + 50
    out = torch.empty(ranks, padded)
    packet, args = torch.ops.fsdp.chunk_cat, (gradients, 0, ranks)
    hidden = hidden_bytes(packet, args, None, on_cuda=False)
    assert hidden == (4 * 301 * -(-rows // ranks) * ranks if rows % ranks else 0)
    assert measured_peak(lambda: packet(*args, out=out), tmp_path) == hidden
