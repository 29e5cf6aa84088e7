"""Workloads of several ranks: a step with shared gradients, and a bare all-reduce."""

from __future__ import annotations

import torch

from ...record.distributed import MemoryRow, Moment
from ...spec.spec import RunSpec
from ..workloads.base import EnterPhase
from ..workloads.transformer import Workload, make_optimizer
from .block import resident_row, rows_around_optimizer
from .collectives import Collectives
from .sharded_optimizer import make_sharded_optimizer
from .strategies import make_strategy


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
