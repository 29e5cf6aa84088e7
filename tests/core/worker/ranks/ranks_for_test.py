"""What each rank of test_distributed.py runs, under one torchrun: ``FOLDER`` gets the results."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # for optimizers
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.trace.collective_kernels import Split, split_step
from sysbench.core.worker.ranks.rank_timing import (
    AllReduceWorkload,
    ParallelWorkload,
    RanksClock,
    join_ranks,
)
from sysbench.core.worker.ranks.watched_collectives import Collectives
from sysbench.core.worker.workloads.model_workload import Workload
from sysbench.core.worker.workloads.stepped_workload import EnterPhase, StepError, SteppedWorkload

SPEC = RunSpec(device="cpu", ranks=2, parallel="naive", batch=2, context=16, threads=1)
WAYS: dict[str, dict[str, object]] = {
    "naive": {"parallel": "naive"},
    "flat": {"parallel": "flat"},
    "overlap": {"parallel": "overlap"},
    "bucketed": {"parallel": "bucketed", "bucket_mib": 0.5},
    "ddp": {"parallel": "ddp", "bucket_mib": 0.5},
    "fsdp2": {"parallel": "fsdp2"},
    "sharded": {"parallel": "flat", "shard_optimizer": True},
    "sharded-ddp": {"parallel": "ddp", "shard_optimizer": True},
}
LATE_SECONDS = 0.1


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def one_step(workload: SteppedWorkload) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients that the optimizer gets, and the weights that it makes of them."""
    gradients: list[Tensor] = []

    def enter(phase: str) -> None:
        if phase == "optimizer":
            gradients.extend(whole(one.grad) for one in parameters if one.grad is not None)

    parameters: list[nn.Parameter] = list(workload.model.parameters())
    workload.step(enter)
    return gradients, [whole(one) for one in parameters]


def furthest(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference over the largest value, of all tensors."""
    assert len(ours) == len(theirs)
    largest = max(float(one.abs().max()) for one in theirs)
    pairs = zip(ours, theirs, strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs) / largest


def compare_with_alone() -> dict[str, dict[str, object]]:
    """Each way of sharing against one process that has the combined batch."""
    alone = SPEC.changed(batch=SPEC.batch * SPEC.ranks, ranks=1, parallel="none")
    gradients, weights = one_step(Workload(alone))
    found: dict[str, dict[str, object]] = {}
    for name, changes in WAYS.items():
        collectives = Collectives(torch.device("cpu"), "gloo")
        workload = ParallelWorkload(SPEC.changed(**changes), collectives)
        ours, made = one_step(workload)
        (step,) = collectives.take([1e6])
        found[name] = {
            "gradients": furthest(ours, gradients),
            "weights": furthest(made, weights),
            "calls": len(step.collectives),
            "memory": [row.optimizer_bytes for row in workload.memory_of_a_step()],
            "phases": workload.phases,
        }
    return found


OWN = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.outer(F.gelu(self.inner(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(64, 16)
        self.blocks_of_mine = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(16, 64, bias=False)
        self.head.weight = self.tokens.weight
        self.frozen = nn.Parameter(torch.ones(16), requires_grad=False)

    def forward(self, ids):
        return self.head(self.blocks_of_mine(self.tokens(ids) * self.frozen))


def make():
    return Model()


class Unused(Model):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)


def unused():
    return Unused()
"""


def own_spec(factory: str, folder: Path, **changes: object) -> RunSpec:
    """The spec of a factory of `OWN`."""
    named = {"model": f"{folder / 'own.py'}:{factory}", "device": "cpu", "context": 8}
    return resolve(parse_spec({**named, "batch": 2, "ranks": 2, "threads": 1, **changes}))


def compare_own_with_alone(folder: Path) -> dict[str, float]:
    """Gradients of a model of the user's against the mean of those of the batch of each rank."""
    found = {}
    for way in ("naive", "bucketed", "ddp", "fsdp2"):
        collectives = Collectives(torch.device("cpu"), "gloo")
        spec = own_spec("make", folder, parallel=way)
        workload = ParallelWorkload(spec, collectives)
        batches: list[tuple[Tensor, Tensor]] = [(torch.empty(0),) * 2] * spec.ranks
        dist.all_gather_object(batches, (workload.batch, workload.targets))
        alone = Workload(spec.changed(ranks=1, parallel="none"))
        weights = [whole(one) for one in workload.model.parameters()]
        with torch.no_grad():
            for own, weight in zip(alone.model.parameters(), weights, strict=True):
                own.copy_(weight)
        loss = sum(
            nn.functional.cross_entropy(alone.model(ids).flatten(0, 1), targets.flatten())
            for ids, targets in batches
        )
        assert isinstance(loss, Tensor) and not torch.equal(batches[0][0], batches[1][0])
        (loss / spec.ranks).backward()  # type: ignore[no-untyped-call]
        gradients, _ = one_step(workload)
        expected = [one.grad for one in alone.model.parameters() if one.grad is not None]
        found[way] = furthest(gradients, expected)
    return found


def complaint_of_an_unused_part(folder: Path) -> str:
    workload = ParallelWorkload(
        own_spec("unused", folder, parallel="flat"), Collectives(torch.device("cpu"), "gloo")
    )
    try:
        workload.step(lambda phase: None)
    except StepError as error:
        return str(error.__cause__)
    return ""


def wait_for_a_late_rank() -> list[list[Split]]:
    """Steps of an all-reduce that rank 1 always reaches late."""
    spec = RunSpec(
        device="cpu", ranks=2, workload="all-reduce", payload_mib=0.1, threads=1, batch=1
    )
    collectives = Collectives(torch.device("cpu"), "gloo")
    workload = AllReduceWorkload(spec, collectives)
    clock = RanksClock(spec, collectives)

    def step(enter: EnterPhase) -> None:
        if collectives.rank == 1:
            time.sleep(LATE_SECONDS)
        workload.step(enter)

    if collectives.rank:
        clock.follow(step, list)
        return []
    clock.time(step, 3)
    clock.stop()
    return [split_step(ranks) for ranks in clock.steps]


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    gc.freeze()  # a model of the user's is looked for among all objects
    torch.set_num_threads(1)
    join_ranks(rank, SPEC, folder / "ranks")
    late = wait_for_a_late_rank()
    found = {
        "ways": compare_with_alone(),
        "own": compare_own_with_alone(folder),
        "unused": complaint_of_an_unused_part(folder),
        "late": [
            [[split.compute_ns, split.waiting_ns, split.transfer_ns] for split in step]
            for step in late
        ],
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
