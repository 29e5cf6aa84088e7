"""FSDP2: every rank keeps a shard of each weight, gradient and state, and gathers the rest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from sysbench.core.record.distributed import Kind
from sysbench.core.worker.ranks.watched_collectives import Collectives, Launch
from sysbench.core.worker.workloads.model_workload import blocks_of

UNSEEN = "on CUDA stalls for fully_shard's streams cannot be measured; see a trace"


class Fsdp2:
    """``fully_shard`` around each of the model's blocks and around the model.

    On the CPU its collectives block computation; on CUDA they run on separate streams.
    """

    phase = ""

    def __init__(self, model: nn.Module, collectives: Collectives) -> None:
        if next(model.parameters()).is_cuda:
            collectives.why_unseen = UNSEEN
        for part in (*blocks_of(model), model):
            sharded = fully_shard(part)
            # The annotations name private classes of torch; these have all that it calls.
            sharded.set_custom_all_gather(_AllGather(collectives))  # type: ignore[arg-type]
            sharded.set_custom_reduce_scatter(_ReduceScatter(collectives))  # type: ignore[arg-type]
        self.model = model

    def finish(self) -> None:
        pass


class _Watched:
    """Base of the collectives that fully_shard calls: allocation and timing."""

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def call(self, kind: Kind, unsharded: Tensor, launch: Launch, behind: bool) -> dist.Work | None:
        if behind:
            return self.collectives.start(kind, unsharded.nbytes, launch).work
        self.collectives.run(kind, unsharded.nbytes, launch)
        return None


class _AllGather(_Watched):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        def launch() -> dist.Work | None:
            work: dist.Work | None = dist.all_gather_into_tensor(
                output_tensor, input_tensor, group=group, async_op=async_op
            )
            return work

        return self.call("all-gather", output_tensor, launch, async_op)


class _ReduceScatter(_Watched):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> dist.Work | None:
        def launch() -> dist.Work | None:
            work: dist.Work | None = dist.reduce_scatter_tensor(
                output_tensor, input_tensor, op=op, group=group, async_op=async_op
            )
            return work

        return self.call("reduce-scatter", input_tensor, launch, async_op)
