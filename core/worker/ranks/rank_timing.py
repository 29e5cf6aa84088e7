"""The timing pass of one rank among several: rank 0 leads, the others follow its orders.

Rank 0 runs the timing of a single process: same warm-up, same stop rule, same events. Only its
clock differs. To time some steps it broadcasts their number, all ranks run them, and rank 0
gathers the times, so that a step is as long as the slowest rank's.

Orders and gathered results go through a separate process group on the host, so that they do not
share the measured backend.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sysbench.core.errors import ModelError
from sysbench.core.machine.devices import describe_node
from sysbench.core.ranks.clock_alignment import ClockReading
from sysbench.core.record.distributed import MemoryRow, Moment
from sysbench.core.record.events import ResultReported, StageEntered
from sysbench.core.record.record import Timing
from sysbench.core.runs.worker_process import Job, Report
from sysbench.core.spec.spec import RunSpec
from sysbench.core.trace.collective_kernels import RankStep
from sysbench.core.worker.imports import measure_of, uncollected
from sysbench.core.worker.passes.timing_pass import time_steps
from sysbench.core.worker.ranks.merged_block import (
    RankFacts,
    merged_block,
    resident_row,
    rows_around_optimizer,
    slowest,
)
from sysbench.core.worker.ranks.strategies import make_strategy, trained
from sysbench.core.worker.ranks.watched_collectives import Collectives, HostClocks, own_host
from sysbench.core.worker.step_clock import TimedSteps, clock_for
from sysbench.core.worker.workloads.model_workload import Workload, report_own_model
from sysbench.core.worker.workloads.stepped_workload import EnterPhase, optimizer_over


def make_sharded_optimizer(
    spec: RunSpec, model: nn.Module, collectives: Collectives
) -> torch.optim.Optimizer:
    """The spec's optimizer over this rank's parameters; a step ends by broadcasting weights."""
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
    """Assign each size to a rank: largest first, to the rank with the least so far."""
    assigned = [0] * ranks
    owners = [0] * len(sizes)
    # Both the stable sort and `index` break ties alike on every rank: owners must agree.
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owners[index] = assigned.index(min(assigned))
        assigned[owners[index]] += sizes[index]
    return owners


class ParallelWorkload(Workload):
    """Training step of a model on one of several ranks, which begin with the weights of rank 0."""

    def __init__(self, spec: RunSpec, collectives: Collectives) -> None:
        """Build this rank's model.

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
        spec, rank = self.spec, self.collectives.rank
        if spec.is_own:
            torch.manual_seed(spec.seed + 1 + rank)
            return super()._inputs()
        # The batch of a single process with as many sequences: every rank draws all of it. Cloned,
        # because a slice would keep it alive.
        self.ids, own = spec.vocab, slice(rank * spec.batch, (rank + 1) * spec.batch)
        combined = spec.ranks * spec.batch, spec.context
        batch, targets = (torch.randint(self.ids, combined)[own].clone() for _ in range(2))
        return batch, targets

    def _prepare(self, model: nn.Module) -> nn.Module:
        # The factory may draw different numbers on each rank.
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                dist.broadcast(tensor.detach(), 0)
        self._class_name = f"{type(model).__module__}.{type(model).__qualname__}"
        self.strategy = make_strategy(self.spec, super()._prepare(model), self.collectives)
        return self.strategy.model

    @property
    def bare_model(self) -> nn.Module:
        """The model inside of DistributedDataParallel."""
        inner = self.model.module if isinstance(self.model, DistributedDataParallel) else self.model
        return cast("nn.Module", inner)

    @property
    def gathering(self) -> Sequence[nn.Module]:
        """Modules that ``fully_shard`` gathers."""
        return self.strategy.gathering

    def tag_sent(self, tag: Callable[[Tensor], None]) -> None:
        """Call ``tag`` with each buffer of a collective that is not a model's tensor."""
        self.collectives.tag = tag

    def _phases(self) -> tuple[str, ...]:
        """Insert the phase in which the strategy shares gradients, if it has one."""
        phases = super()._phases()
        after = phases.index("backward") + 1
        own = (self.strategy.phase,) if self.strategy.phase else ()
        return (*phases[:after], *own, *phases[after:])

    def _optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        if not self.spec.shard_optimizer:
            return super()._optimizers()
        return (make_sharded_optimizer(self.spec, self.model, self.collectives),)

    def step(self, enter: EnterPhase) -> None:
        self.collectives.begin_step()
        super().step(enter)

    def _update(self, enter: EnterPhase) -> None:
        if not self._has_checked_gradients:
            self._require_gradients()
            self._has_checked_gradients = True
        if self.strategy.phase:
            enter(self.strategy.phase)
        self.strategy.finish()
        super()._update(enter)

    def _require_gradients(self) -> None:
        """Refuse a model with unused parameters: ranks would wait for their gradients.

        Raises:
            ModelError: A trained parameter got no gradient.
        """
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                raise ModelError(
                    f"parameter {name} got no gradient in a step, and ranks share the gradients of "
                    "all: use it, or set its requires_grad to False"
                )

    def memory_row(self, moment: Moment) -> MemoryRow:
        return resident_row(self.collectives.rank, moment, self.model, self.states)

    def memory_of_a_step(self) -> list[MemoryRow]:
        """Run one more step; return this rank's rows before and after its optimizer."""
        return rows_around_optimizer(self.step, self.memory_row)


MIB = 2**20


class AllReduceWorkload:
    """Sums a float32 tensor of zeros over the ranks."""

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
        self.collectives.begin_step()
        enter("all-reduce")
        self.collectives.all_reduce(self.payload)
        enter("")


STOP, MEMORY = 0, -1
RANKS_FOLDER = "ranks"
TIMEOUT = timedelta(hours=1)
"""Longer than the supervisor's timeout, so that the supervisor ends a rank that hangs."""


def backend_of(spec: RunSpec) -> str:
    """The spec's backend; ``auto`` is nccl for CUDA devices, else gloo."""
    if spec.comm_backend != "auto":
        return spec.comm_backend
    return "nccl" if spec.on_cuda else "gloo"


def join_ranks(rank: int, spec: RunSpec, meeting: Path) -> None:
    """Join the process group through a file, which needs no port."""
    # Not by a file's URL: torch reads %20 as part of the name and waits for that file.
    store = dist.FileStore(str(meeting), spec.ranks)  # type: ignore[attr-defined]
    store.set_timeout(TIMEOUT)
    dist.init_process_group(
        backend_of(spec),
        store=store,
        rank=rank,
        world_size=spec.ranks,
        timeout=TIMEOUT,
        device_id=torch.device(spec.device) if backend_of(spec) == "nccl" else None,
    )


def measure(job: Job, report: Report) -> None:
    """Run the job's pass as this rank of the process group."""
    collectives = Collectives(torch.device(job.spec.device), backend_of(job.spec))
    if job.name == "timing":
        _time(job, collectives, report)
        return
    folder = job.path if not collectives.rank else job.path / f"rank-{collectives.rank}"
    folder.mkdir(exist_ok=True)
    own = msgspec.structs.replace(job, folder=str(folder))
    with uncollected():
        measure_own = measure_of(own)
    measure_own(own, report, lambda spec: ParallelWorkload(spec, collectives))
    if job.name == "trace":  # all ranks' in one folder, as `inspect` reads them
        together = job.path / RANKS_FOLDER
        together.mkdir(exist_ok=True)
        os.link(own.path / "trace.json.gz", together / f"rank-{collectives.rank}.json.gz")


def _time(job: Job, collectives: Collectives, report: Report) -> None:
    """Time steps; rank 0 reports the blocks."""
    spec = job.spec
    report(StageEntered(stage="build"))
    workload: ParallelWorkload | AllReduceWorkload
    memory: list[MemoryRow] = []
    if spec.workload == "all-reduce":
        workload = AllReduceWorkload(spec, collectives)
    else:
        workload = ParallelWorkload(spec, collectives)
        memory.append(workload.memory_row("after init"))
    clock = RanksClock(spec, collectives)

    def memory_of_a_step() -> list[MemoryRow]:
        assert isinstance(workload, ParallelWorkload)
        return memory + workload.memory_of_a_step()

    if collectives.rank:
        clock.follow(workload.step, memory_of_a_step)
        return
    timing = _of_all_ranks(spec, time_steps(workload, clock, report))
    report_own_model(workload, report)  # its steps have named its loss
    kept = clock.steps[-timing.step.n :]  # without warm-up
    rows = clock.lead_memory(memory_of_a_step) if memory else []
    clock.stop()
    block = merged_block(spec, backend_of(spec), kept, clock.facts, rows, collectives.why_unseen)
    report(ResultReported(block="timing", data=msgspec.to_builtins(timing)))
    report(ResultReported(block="distributed", data=msgspec.to_builtins(block)))


def _of_all_ranks(spec: RunSpec, timing: Timing) -> Timing:
    """Scale the timing to the tokens of all ranks; an all-reduce has no tokens."""
    if spec.workload == "all-reduce":
        unknown = ("tokens_per_second", "model_flops", "tflops")
        missing = timing.missing | dict.fromkeys(unknown, "an all-reduce runs no model")
        return msgspec.structs.replace(timing, **dict.fromkeys(unknown), missing=missing)
    if timing.tokens_per_second is None:  # a user's model may have no tokens
        return timing
    tokens = spec.tokens_per_step * spec.ranks / timing.step.median_ms * 1e3
    return msgspec.structs.replace(timing, tokens_per_second=tokens)


T = TypeVar("T")
Step = Callable[[Callable[[str], None]], None]


class RanksClock:
    """Times the same steps on all ranks.

    Attributes:
        steps: One list per step with one entry per rank; rank 0 only.
        facts: Identities of the ranks; rank 0 only.
    """

    def __init__(self, spec: RunSpec, collectives: Collectives) -> None:
        self._own = clock_for(torch.device(spec.device), every_step=spec.sync == "every-step")
        self.name = self._own.name
        self._collectives = collectives
        self._control = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self._hosts = HostClocks(self._control)
        self.steps: list[list[RankStep]] = []
        own = RankFacts(
            collectives.rank,
            spec.device,
            os.getpid(),
            torch.get_num_threads(),
            host=own_host(),
            node=describe_node().get("cluster", {}).get("node"),
        )
        self.facts: list[RankFacts] = self._gather(own)

    def time(self, step: Step, count: int) -> TimedSteps:
        """Lead all ranks through ``count`` steps; each takes as long as on its slowest rank."""
        self._order(count)
        by_rank = self._gather(self._timed_here(step, count))
        batches, steps, readings = zip(*by_rank, strict=True)
        self.steps += map(list, zip(*self._hosts.on_one_clock(steps, readings), strict=True))
        return slowest(batches)

    def lead_memory(self, rows: Callable[[], list[MemoryRow]]) -> list[MemoryRow]:
        """Collect every rank's memory rows, in rank order."""
        self._order(MEMORY)
        return [row for rank_rows in self._gather(rows()) for row in rank_rows]

    def stop(self) -> None:
        """End the other ranks' `follow`."""
        self._order(STOP)

    def follow(self, step: Step, memory: Callable[[], list[MemoryRow]]) -> None:
        """Follow the orders of rank 0 until ``STOP``."""
        # The argument is overwritten by rank 0's broadcast.
        while (order := self._order(STOP)) != STOP:
            self._gather(memory() if order == MEMORY else self._timed_here(step, order))

    def _order(self, order: int) -> int:
        """Broadcast rank 0's order; it returns on all ranks at about the same time."""
        box = torch.tensor(order)
        dist.broadcast(box, 0, group=self._control)
        dist.barrier(self._control)  # the broadcast alone lets rank 0 go on before the others
        return int(box.item())

    def _timed_here(
        self, step: Step, count: int
    ) -> tuple[TimedSteps, list[RankStep], tuple[ClockReading, ClockReading] | None]:
        # Align again for each batch, so that clock drift does not accumulate.
        self._collectives.stamps.align()
        before = self._hosts.read()
        batch = self._own.time(step, count)
        after = self._hosts.read()
        readings = (before, after) if before and after else None
        return batch, self._collectives.take(batch.step_ms), readings

    def _gather(self, own: T) -> list[T]:
        """Values of all ranks in order on rank 0; empty on the others."""
        everyone: list[Any] | None = None
        if self._collectives.rank == 0:
            everyone = [None] * self._collectives.ranks
        dist.gather_object(own, everyone, group=self._control)
        return everyone or []
