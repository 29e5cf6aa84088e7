"""What one rank holds for its model: weights, gradients and the optimizer's state, in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ...record.distributed import MemoryRow, Moment
from ..workloads.base import EnterPhase


def resident_row(
    rank: int, moment: Moment, model: nn.Module, optimizer: torch.optim.Optimizer
) -> MemoryRow:
    """The row of this moment; of a divided tensor only this rank's part counts."""
    parameters = list(model.parameters())
    gradients = [one.grad for one in parameters if one.grad is not None]
    states = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    sizes = [_local_bytes(tensors) for tensors in (parameters, gradients, states)]
    on_cuda = parameters[0].is_cuda
    return MemoryRow(
        rank=rank,
        moment=moment,
        parameter_bytes=sizes[0],
        gradient_bytes=sizes[1],
        optimizer_bytes=sizes[2],
        total_bytes=sum(sizes),
        allocated_bytes=torch.cuda.memory_allocated() if on_cuda else None,
        peak_allocated_bytes=torch.cuda.max_memory_allocated() if on_cuda else None,
    )


def rows_around_optimizer(
    step: Callable[[EnterPhase], None], row: Callable[[Moment], MemoryRow]
) -> list[MemoryRow]:
    """Run one step; the rows just before and just after its optimizer."""
    rows: list[MemoryRow] = []

    def enter(phase: str) -> None:
        if phase == "optimizer":
            rows.append(row("before step"))
            _forget_peak()
        elif len(rows) == 1:
            rows.append(row("after step"))

    _forget_peak()
    step(enter)
    return rows


def _forget_peak() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats()


def _local_bytes(tensors: Iterable[Tensor]) -> int:
    # Asked by its method: importing DTensor takes half a second, and only fsdp2 has any.
    return sum(
        (tensor.to_local() if hasattr(tensor, "to_local") else tensor).nbytes for tensor in tensors
    )
