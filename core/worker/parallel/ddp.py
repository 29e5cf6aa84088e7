"""torch's own DistributedDataParallel, its collectives watched through a communication hook."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from ..ranks.collectives import Collectives
from ..ranks.stamps import Mark, Pending, Stamp


class Bucket(Protocol):
    """What DDP gives to a communication hook."""

    def buffer(self) -> Tensor: ...


class TorchDdp:
    """Buckets in C++. It stands still at the end of the backward pass, when every gradient is
    there and the last bucket has been sent, until the last one is back.
    """

    phase = ""

    def __init__(self, model: nn.Module, collectives: Collectives, bucket_mib: float) -> None:
        # The model's buffers never change: sending them in each forward would be no part of this.
        wrapped = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=bucket_mib, broadcast_buffers=False
        )
        # A lambda: under postponed annotations DDP takes those of a named hook for wrong ones.
        wrapped.register_comm_hook(None, lambda _, bucket: self._send(bucket))
        self.model: nn.Module = wrapped
        self._collectives = collectives
        self._sent: list[Mark] = []
        self._all_sent: Stamp = 0

    def _send(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        pending: Pending = self._collectives.start_all_reduce(bucket.buffer())
        self._sent.append(pending.done)
        self._all_sent = self._collectives.stamps.now()
        ranks = self._collectives.ranks
        return pending.future.then(lambda future: future.value()[0].div_(ranks))

    def finish(self) -> None:
        for done in self._sent:
            self._collectives.stood_still(self._all_sent, done)
        self._sent.clear()
