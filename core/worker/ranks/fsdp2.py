"""FSDP2: every rank keeps a shard of each weight, gradient and state, and gathers the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from sysbench.core.record.distributed import Kind
from sysbench.core.worker.ranks.watched_collectives import Collectives
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
        gather = _Watched(collectives, "all-gather", dist.all_gather_into_tensor)
        scatter = _Watched(collectives, "reduce-scatter", dist.reduce_scatter_tensor)
        self.gathering: Sequence[nn.Module] = (*blocks_of(model), model)
        for part in self.gathering:
            sharded = fully_shard(part)
            # The annotations name private classes of torch; these have all that it calls.
            sharded.set_custom_all_gather(gather)  # type: ignore[arg-type]
            sharded.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]
        self.model = model

    def finish(self) -> None:
        pass


class _Watched:
    """A collective that fully_shard calls: allocated as usual, and timed."""

    def __init__(
        self, collectives: Collectives, kind: Kind, run: Callable[..., dist.Work | None]
    ) -> None:
        self._collectives, self._kind, self._run = collectives, kind, run

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        buffer = torch.empty(*size, dtype=dtype, device=device)
        self._collectives.tag(buffer)
        return buffer

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, async_op: bool = False, **options: Any
    ) -> dist.Work | None:
        launch = partial(self._run, output_tensor, input_tensor, async_op=async_op, **options)
        size = max(output_tensor.nbytes, input_tensor.nbytes)  # of the tensor that is not sharded
        if async_op:
            return self._collectives.start(self._kind, size, launch).work
        self._collectives.run(self._kind, size, launch)
        return None
