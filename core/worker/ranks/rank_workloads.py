"""Workloads of several ranks: a step with shared gradients, a sharded optimizer, a bare all-reduce.

The sharded optimizer is the first stage of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054): it
divides state by whole parameters, and gradients stay whole on every rank. `fsdp2` cuts all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sysbench.core.errors import ModelError
from sysbench.core.record.distributed import MemoryRow, Moment
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.ranks.merged_block import resident_row, rows_around_optimizer
from sysbench.core.worker.ranks.strategies import Strategy, make_strategy, trained
from sysbench.core.worker.ranks.watched_collectives import Collectives
from sysbench.core.worker.workloads.model_workload import Workload
from sysbench.core.worker.workloads.stepped_workload import (
    EnterPhase,
    SteppedWorkload,
    optimizer_over,
)


def make_sharded_optimizer(
    spec: RunSpec, model: nn.Module, collectives: Collectives
) -> torch.optim.Optimizer:
    """The spec's optimizer over this rank's parameters; its step ends by broadcasting weights."""
    parameters = trained(model)
    owners = owners_of([parameter.numel() for parameter in parameters], collectives.ranks)
    pairs = list(zip(parameters, owners, strict=True))
    own = [parameter for parameter, owner in pairs if owner == collectives.rank]
    optimizer = optimizer_over(spec, own)

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


class OfRanks(SteppedWorkload):
    """Base of the training steps on one of several ranks.

    Attributes:
        collectives: Those of the step.
        strategy: The way in which its gradients are shared.
    """

    collectives: Collectives
    strategy: Strategy
    optimizer: torch.optim.Optimizer

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


def with_sharing(phases: tuple[str, ...], strategy: Strategy) -> tuple[str, ...]:
    """The phases of a step with that in which its strategy shares gradients, if it has one."""
    after = phases.index("backward") + 1
    own = (strategy.phase,) if strategy.phase else ()
    return (*phases[:after], *own, *phases[after:])


class ParallelWorkload(OfRanks, Workload):
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
        assert self.targets is not None
        self.batch, self.targets = self.batch[own].clone(), self.targets[own].clone()
        self.collectives = collectives
        self.strategy = make_strategy(spec, self.model, collectives)
        self.model = self.strategy.model
        self.optimizer = (
            make_sharded_optimizer(spec, self.model, collectives)
            if spec.shard_optimizer
            else optimizer_over(spec, list(self.model.parameters()))
        )
        self.phases = with_sharing(self.phases, self.strategy)


class ParallelOwnWorkload(OfRanks, Workload):
    """The training step of a model of the user's on one of several ranks.

    Every rank builds the model, takes the weights of rank 0, and has a batch of its own.
    """

    def __init__(self, spec: RunSpec, collectives: Collectives) -> None:
        """Build the model of this rank.

        Raises:
            SpecError, ModelError: As for a single device.
        """
        self.collectives = collectives
        self._has_checked_gradients = False
        super().__init__(spec)

    @property
    def facts(self) -> dict[str, Any]:
        return super().facts | {"class": self._class_name}  # the strategy's wrapper has another

    def _inputs(self) -> tuple[Any, torch.Tensor | None]:
        torch.manual_seed(self.spec.seed + 1 + self.collectives.rank)
        return super()._inputs()

    def _prepared(self, model: nn.Module) -> nn.Module:
        # What the factory draws may go by the rank.
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                dist.broadcast(tensor.detach(), 0)
        self._class_name = f"{type(model).__module__}.{type(model).__qualname__}"
        self.strategy = make_strategy(self.spec, super()._prepared(model), self.collectives)
        return self.strategy.model

    def _phases(self) -> tuple[str, ...]:
        return with_sharing(super()._phases(), self.strategy)

    def _optimizer(self) -> torch.optim.Optimizer | None:
        if not self.spec.shard_optimizer:
            return super()._optimizer()
        return make_sharded_optimizer(self.spec, self.model, self.collectives)

    def _update(self, enter: EnterPhase) -> None:
        if not self._has_checked_gradients:
            self._require_gradients()
            self._has_checked_gradients = True
        super()._update(enter)

    def _require_gradients(self) -> None:
        """Refuse a model of which a step leaves a part unused: ranks would wait for it.

        Raises:
            ModelError: A parameter that is trained got no gradient.
        """
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                raise ModelError(
                    f"parameter {name} got no gradient in a step, and ranks share the gradients of "
                    "all: use it, or set its requires_grad to False"
                )


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
