"""What each rank of test_distributed.py runs, under one torchrun: ``FOLDER`` gets the results."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sysbench.core.analysis.kernels.communication import Split, split_step
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.ranks.collectives import Collectives
from sysbench.core.worker.ranks.timing import RanksClock, join
from sysbench.core.worker.ranks.workloads import AllReduceWorkload, ParallelWorkload
from sysbench.core.worker.workloads.base import EnterPhase
from sysbench.core.worker.workloads.transformer import Workload

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


def one_step(workload: Workload) -> tuple[list[Tensor], list[Tensor]]:
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
    torch.set_num_threads(1)
    join(rank, SPEC, folder / "ranks")
    late = wait_for_a_late_rank()
    found = {
        "ways": compare_with_alone(),
        "late": [
            [[split.compute_ns, split.waiting_ns, split.transfer_ns] for split in step]
            for step in late
        ],
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
