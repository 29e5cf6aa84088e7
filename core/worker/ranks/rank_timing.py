"""The timing pass of one rank among several: rank 0 leads, the others follow its orders.

Rank 0 runs the timing of a single process: same warm-up, same stop rule, same events. Only its
clock differs. To time some steps it broadcasts their number, all ranks run them, and rank 0
gathers the times, so that a step is as long as the slowest rank's.

Orders and gathered results go through a separate process group on the host, so that they do not
share the measured backend.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist

from sysbench.core.machine.node import describe_node
from sysbench.core.ranks.exchange import Reading
from sysbench.core.record.distributed import MemoryRow
from sysbench.core.record.events import ResultReported, StageEntered
from sysbench.core.record.record import Timing
from sysbench.core.runs.worker_job import Job, Report
from sysbench.core.spec.spec import RunSpec
from sysbench.core.trace.communication import RankStep
from sysbench.core.worker.passes.timing_pass import timed
from sysbench.core.worker.ranks.host_clocks import HostClocks, own_host
from sysbench.core.worker.ranks.merged_block import RankFacts, merged_block, slowest
from sysbench.core.worker.ranks.rank_workloads import (
    AllReduceWorkload,
    OfRanks,
    ParallelOwnWorkload,
    ParallelWorkload,
)
from sysbench.core.worker.ranks.watched_collectives import Collectives
from sysbench.core.worker.step_clock import TimedSteps, clock_for
from sysbench.core.worker.workloads.model_workload import report_own_model

STOP, MEMORY = 0, -1
TIMEOUT = timedelta(hours=1)
"""Longer than the supervisor's timeout, so that the supervisor ends a rank that hangs."""


def backend_of(spec: RunSpec) -> str:
    """The spec's backend; ``auto`` is nccl between CUDA devices, else gloo."""
    if spec.comm_backend != "auto":
        return spec.comm_backend
    return "nccl" if spec.on_cuda else "gloo"


def join(rank: int, spec: RunSpec, meeting: Path) -> None:
    """Join the process group through a file, so that no port is opened for it."""
    # Not by a file's URL: torch takes %20 in one for a part of the name, and waits for that file.
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
    """Measure as this rank of the process group; rank 0 reports the blocks.

    The job's device is the one of this rank.
    """
    spec = job.spec
    report(StageEntered(stage="build"))
    collectives = Collectives(torch.device(spec.device), backend_of(spec))
    workload = make_workload(spec, collectives)
    memory = [workload.memory_row("after init")] if isinstance(workload, OfRanks) else []
    clock = RanksClock(spec, collectives)

    def memory_of_a_step() -> list[MemoryRow]:
        assert isinstance(workload, OfRanks)
        return memory + workload.memory_of_a_step()

    if collectives.rank:
        clock.follow(workload.step, memory_of_a_step)
        return
    timing = _of_all_ranks(spec, timed(workload, clock, report))
    report_own_model(workload, report)  # its steps have named its loss
    kept = clock.steps[-timing.step.n :]  # without warm-up
    rows = clock.lead_memory(memory_of_a_step) if memory else []
    clock.stop()
    block = merged_block(spec, backend_of(spec), kept, clock.facts, rows, collectives.why_unseen)
    report(ResultReported(block="timing", data=msgspec.to_builtins(timing)))
    report(ResultReported(block="distributed", data=msgspec.to_builtins(block)))


def make_workload(spec: RunSpec, collectives: Collectives) -> OfRanks | AllReduceWorkload:
    """The workload of a rank of this spec."""
    if spec.is_own:
        return ParallelOwnWorkload(spec, collectives)
    if spec.workload == "all-reduce":
        return AllReduceWorkload(spec, collectives)
    return ParallelWorkload(spec, collectives)


def _of_all_ranks(spec: RunSpec, timing: Timing) -> Timing:
    """The timing with all ranks' tokens; an all-reduce has neither tokens nor a model."""
    if spec.workload == "all-reduce":
        unknown = ("tokens_per_second", "model_flops", "tflops")
        missing = timing.missing | dict.fromkeys(unknown, "an all-reduce runs no model")
        return msgspec.structs.replace(timing, **dict.fromkeys(unknown), missing=missing)
    if timing.tokens_per_second is None:  # a model of the user's may take no tokens
        return timing
    tokens = spec.tokens_per_step * spec.ranks / timing.step.median_ms * 1e3
    return msgspec.structs.replace(timing, tokens_per_second=tokens)


T = TypeVar("T")
Step = Callable[[Callable[[str], None]], None]


class RanksClock:
    """Times the same steps on all ranks.

    Attributes:
        steps: A list a step with an entry a rank. On rank 0 only.
        facts: Identities of the ranks. On rank 0 only.
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
        self.facts: list[RankFacts] = self._gathered(own)

    def time(self, step: Step, count: int) -> TimedSteps:
        """Lead: all ranks run ``count`` steps. Each is as long as on its slowest rank."""
        self._order(count)
        by_rank = self._gathered(self._timed_here(step, count))
        batches, steps, readings = zip(*by_rank, strict=True)
        self.steps += map(list, zip(*self._hosts.on_one_clock(steps, readings), strict=True))
        return slowest(batches)

    def lead_memory(self, rows: Callable[[], list[MemoryRow]]) -> list[MemoryRow]:
        """Lead: every rank makes its rows; returns them in the order of ranks."""
        self._order(MEMORY)
        return [row for rank_rows in self._gathered(rows()) for row in rank_rows]

    def stop(self) -> None:
        """Lead: the others may end."""
        self._order(STOP)

    def follow(self, step: Step, memory: Callable[[], list[MemoryRow]]) -> None:
        """Follow the orders of rank 0 until ``STOP``."""
        # The argument is overwritten by rank 0's broadcast.
        while (order := self._order(STOP)) != STOP:
            self._gathered(memory() if order == MEMORY else self._timed_here(step, order))

    def _order(self, order: int) -> int:
        """Broadcast rank 0's order; returns it on every rank at about the same moment."""
        box = torch.tensor(order)
        dist.broadcast(box, 0, group=self._control)
        dist.barrier(self._control)  # the broadcast alone lets rank 0 go on before the others
        return int(box.item())

    def _timed_here(
        self, step: Step, count: int
    ) -> tuple[TimedSteps, list[RankStep], tuple[Reading, Reading] | None]:
        # Anew for each batch, so that a drift between the two clocks does not add up.
        self._collectives.stamps.align()
        before = self._hosts.read()
        batch = self._own.time(step, count)
        after = self._hosts.read()
        readings = (before, after) if before and after else None
        return batch, self._collectives.take(batch.step_ms), readings

    def _gathered(self, own: T) -> list[T]:
        """Values of all ranks in their order on rank 0; an empty list on the others."""
        everyone: list[Any] | None = None
        if self._collectives.rank == 0:
            everyone = [None] * self._collectives.ranks
        dist.gather_object(own, everyone, group=self._control)
        return everyone or []
