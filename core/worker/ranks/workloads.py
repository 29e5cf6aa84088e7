"""Workloads of several ranks: a step with shared gradients, a sharded optimizer, a bare all-reduce.

Gradients stay whole on every rank; only the optimizer's state is sharded (the first stage of
ZeRO, Rajbhandari et al. 2020, arXiv:1910.02054). A parameter is never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ...record.distributed import MemoryRow, Moment
from ...spec.spec import RunSpec
from ..workloads.base import EnterPhase
from ..workloads.transformer import Workload, make_optimizer
from .block import resident_row, rows_around_optimizer
from .collectives import Collectives
from .strategies import make_strategy


def make_sharded_optimizer(
    spec: RunSpec, model: nn.Module, collectives: Collectives
) -> torch.optim.Optimizer:
    """The spec's optimizer over this rank's parameters; its step ends by broadcasting weights."""
    parameters = list(model.parameters())
    owners = owners_of([parameter.numel() for parameter in parameters], collectives.ranks)
    pairs = list(zip(parameters, owners, strict=True))
    own = nn.ParameterList(parameter for parameter, owner in pairs if owner == collectives.rank)
    optimizer = make_optimizer(spec, own)

    def share(*_: Any) -> None:
        sent = [
            collectives.start_broadcast(parameter.detach(), owner) for parameter, owner in pairs
        ]
        for pending in sent:
            collectives.wait(pending)

    optimizer.register_step_post_hook(share)
    return optimizer


def owners_of(sizes: Sequence[int], ranks: int) -> list[int]:
    """The rank that keeps each size: largest first, each to the rank with least so far."""
    assigned = [0] * ranks
    owners = [0] * len(sizes)
    # Both the stable sort and `index` break ties alike on every rank: owners must agree.
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owners[index] = assigned.index(min(assigned))
        assigned[owners[index]] += sizes[index]
    return owners


class ParallelWorkload(Workload):
    """The transformer's training step on one of several ranks.

    Every rank draws the same weights and the same combined batch of ``ranks * batch`` sequences
    as a single process would, and keeps its ``batch`` of them.
    """

    def __init__(self, spec: RunSpec, collectives: Collectives) -> None:
        alone = spec.changed(
            batch=spec.batch * spec.ranks, ranks=1, parallel="none", shard_optimizer=False
        )
        super().__init__(alone)
        self.spec = spec
        own = slice(collectives.rank * spec.batch, (collectives.rank + 1) * spec.batch)
        # Cloned: a slice would keep the combined batch alive.
        self.tokens, self.targets = self.tokens[own].clone(), self.targets[own].clone()
        self.collectives = collectives
        self.strategy = make_strategy(spec, self.model, collectives)
        self.model = self.strategy.model
        make = make_sharded_optimizer if spec.shard_optimizer else _make_whole
        self.optimizer: torch.optim.Optimizer = make(spec, self.model, collectives)
        if self.strategy.phase:
            after = self.phases.index("backward") + 1
            self.phases = (*self.phases[:after], self.strategy.phase, *self.phases[after:])

    def step(self, enter: EnterPhase) -> None:
        self.collectives.begin_step()
        super().step(enter)

    def _update(self, enter: EnterPhase) -> None:
        if self.strategy.phase:
            enter(self.strategy.phase)
        self.strategy.finish()
        super()._update(enter)

    def memory_row(self, moment: Moment) -> MemoryRow:
        """Memory row of this rank now."""
        return resident_row(self.collectives.rank, moment, self.model, self.optimizer)

    def memory_of_a_step(self) -> list[MemoryRow]:
        """Run one more step; returns this rank's rows before and after its optimizer."""
        return rows_around_optimizer(self.step, self.memory_row)


def _make_whole(
    spec: RunSpec, model: torch.nn.Module, collectives: Collectives
) -> torch.optim.Optimizer:
    return make_optimizer(spec, model)


MIB = 2**20


class AllReduceWorkload:
    """Sums a float32 tensor over the ranks: zeros, whose sums stay zeros in every step."""

    phases = ("all-reduce",)

    def __init__(self, spec: RunSpec, collectives: Collectives) -> None:
        self.spec = spec
        self.device = torch.device(spec.device)
        elements = max(1, round(spec.payload_mib * MIB / 4))
        self.payload = torch.zeros(elements, dtype=torch.float32, device=self.device)
        self.collectives = collectives

    def loss_value(self) -> None:
        """None: an all-reduce has no loss."""

    def step(self, enter: EnterPhase) -> None:
        """One all-reduce."""
        self.collectives.begin_step()
        enter("all-reduce")
        self.collectives.all_reduce(self.payload)
        enter("")
