"""Strategies that turn the gradients of the ranks into those of the combined batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sysbench.core.record.distributed import Kind
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.ranks.watched_collectives import Collectives, Mark, Pending, Stamp
from sysbench.core.worker.workloads.model_workload import blocks_of

SYNC = "sync"
MIB = 2**20


class Strategy(Protocol):
    """Shares gradients; after ``finish`` each is the mean over the ranks.

    Attributes:
        model: The model to call, possibly a wrapper.
        phase: Name of the phase of ``finish``; empty if backward does all of it.
        gathering: Modules that have whole parameters during their forward only.
    """

    model: nn.Module
    phase: str
    gathering: Sequence[nn.Module]

    def finish(self) -> None:
        """Finish sharing, after backward and before gradients are read."""
        ...


def make_strategy(spec: RunSpec, model: nn.Module, collectives: Collectives) -> Strategy:
    """Return the spec's strategy for a model that is identical on all ranks.

    Raises:
        ValueError: There is no strategy of that name.
    """
    sizes = [parameter.nbytes for parameter in trained(model)[::-1]]
    each = [[index] for index in range(len(sizes))]
    match spec.parallel:
        case "naive":
            return ByGroups(model, collectives, each, is_early=False, is_packed=False)
        case "flat":
            whole = [range(len(sizes))]
            return ByGroups(model, collectives, whole, is_early=False, is_packed=True)
        case "overlap":
            return ByGroups(model, collectives, each, is_early=True, is_packed=False)
        case "bucketed":
            buckets = group_sizes(sizes, spec.bucket_mib * MIB)
            return ByGroups(model, collectives, buckets, is_early=True, is_packed=True)
        case "ddp":
            return TorchDdp(model, collectives, spec.bucket_mib)
        case "fsdp2":
            return Fsdp2(model, collectives)
        case other:
            raise ValueError(f"no strategy {other!r}")


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def gradient_of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


class Bucket(Protocol):
    """Argument that DDP passes to a communication hook."""

    def buffer(self) -> Tensor: ...


class TorchDdp:
    """DistributedDataParallel of torch: buckets in C++.

    Computation stalls at the end of backward, from the launch of the last bucket until the last
    arrival.
    """

    phase = ""
    gathering: Sequence[nn.Module] = ()

    def __init__(self, model: nn.Module, collectives: Collectives, bucket_mib: float) -> None:
        # The model's buffers never change, so sending them in each forward would only add time.
        # Weights are equal already: gloo would keep the copies that DDP sends to make sure.
        wrapped = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=bucket_mib, broadcast_buffers=False, init_sync=False
        )
        # A lambda, since DDP checks the annotations of a named hook and rejects postponed ones.
        wrapped.register_comm_hook(None, lambda _, bucket: self._send(bucket))
        self.model: nn.Module = wrapped
        self._collectives = collectives
        self._sent: list[Mark] = []
        self._all_sent: Stamp = 0

    def _send(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        self._collectives.tag(bucket.buffer())
        pending: Pending = self._collectives.start_all_reduce(bucket.buffer())
        self._sent.append(pending.done)
        self._all_sent = self._collectives.stamps.now()
        ranks = self._collectives.ranks
        return pending.future.then(lambda future: future.value()[0].div_(ranks))

    def finish(self) -> None:
        for done in self._sent:
            self._collectives.stood_still(self._all_sent, done)
        self._sent.clear()


UNSEEN = "on CUDA stalls for fully_shard's streams cannot be measured; see a trace"


class Fsdp2:
    """``fully_shard`` around each of the model's blocks and around the model.

    On the CPU its collectives block computation; on CUDA they run on separate streams.
    """

    phase = ""

    def __init__(self, model: nn.Module, collectives: Collectives) -> None:
        from torch.distributed.fsdp import fully_shard  # lazy: FSDP takes a second

        if next(model.parameters()).is_cuda:
            collectives.why_unseen = UNSEEN
        gather = _WatchedTransfer(collectives, "all-gather", dist.all_gather_into_tensor)
        scatter = _WatchedTransfer(collectives, "reduce-scatter", dist.reduce_scatter_tensor)
        self.gathering: Sequence[nn.Module] = (*blocks_of(model), model)
        for part in self.gathering:
            sharded = fully_shard(part)
            # The annotations name private classes of torch; these have all that it calls.
            sharded.set_custom_all_gather(gather)  # type: ignore[arg-type]
            sharded.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]
        self.model = model

    def finish(self) -> None:
        pass


class _WatchedTransfer:
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


class ByGroups:
    """One collective for each group of gradients, of the last parameters first.

    That is roughly the order in which backward computes them.

    Args:
        groups: Indices into the trained parameters in that order.
        is_early: Whether a group is sent as soon as backward has computed it, or after backward.
        is_packed: Whether its gradients are copied into a flat tensor and back.
    """

    phase = SYNC
    gathering: Sequence[nn.Module] = ()

    def __init__(
        self,
        model: nn.Module,
        collectives: Collectives,
        groups: Sequence[Sequence[int]],
        *,
        is_early: bool,
        is_packed: bool,
    ) -> None:
        self.model = model
        self._collectives = collectives
        self._is_packed = is_packed
        self._sent: list[tuple[list[Tensor], Tensor, Pending]] = []
        parameters = trained(model)[::-1]
        members = [[parameters[index] for index in group] for group in groups]
        self._late = [] if is_early else members
        for group in members if is_early else ():
            self._send_when_complete(group)

    def _send_when_complete(self, group: Sequence[nn.Parameter]) -> None:
        missing = len(group)

        def count_down(_: nn.Parameter) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                missing = len(group)  # for the next step
                gradients, sent = self._packed(group)
                self._sent.append((gradients, sent, self._collectives.start_all_reduce(sent)))

        for parameter in group:
            parameter.register_post_accumulate_grad_hook(count_down)  # type: ignore[no-untyped-call]

    def _packed(self, group: Sequence[nn.Parameter]) -> tuple[list[Tensor], Tensor]:
        gradients = [gradient_of(parameter) for parameter in group]
        if not self._is_packed:
            return gradients, gradients[0]
        packed = torch.cat([gradient.flatten() for gradient in gradients])
        self._collectives.tag(packed)
        return gradients, packed

    def _take_mean(self, gradients: list[Tensor], total: Tensor) -> None:
        total.div_(self._collectives.ranks)
        if self._is_packed:
            parts = torch.split(total, [gradient.numel() for gradient in gradients])
            for part, gradient in zip(parts, gradients, strict=True):
                gradient.copy_(part.view_as(gradient))

    def finish(self) -> None:
        for group in self._late:
            gradients, sent = self._packed(group)
            self._collectives.all_reduce(sent)
            self._take_mean(gradients, sent)
        for gradients, sent, pending in self._sent:
            self._collectives.wait(pending)
            self._take_mean(gradients, sent)
        self._sent.clear()


def group_sizes(sizes: Sequence[int], limit: float) -> list[list[int]]:
    """Group consecutive indices up to ``limit`` in total; a larger size is its own group."""
    groups: list[list[int]] = []
    group_size = 0
    for index, size in enumerate(sizes):
        if not groups or group_size + size > limit:
            groups.append([])
            group_size = 0
        groups[-1].append(index)
        group_size += size
    return groups
