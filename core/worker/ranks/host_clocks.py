"""The clocks of the hosts of a run, read by its ranks while nothing is measured.

On each host but the first, the first rank asks rank 0 for its time, some tens of times in a row.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from sysbench.core.ranks.exchange import Reading, RoundTrip, on_reference, reading
from sysbench.core.trace.communication import RankStep

TRIPS = 40


def own_host() -> int:
    """Number of this rank's host among those of the run, as torchrun counts them."""
    return int(os.environ.get("GROUP_RANK", 0))


class HostClocks:
    """The differences of the hosts' clocks to that of rank 0's host.

    Args:
        control: Group of all ranks on the host.
    """

    def __init__(self, control: dist.ProcessGroup) -> None:
        self._control = control
        self._rank = dist.get_rank()
        hosts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(hosts, own_host(), group=control)
        self.hosts: list[int] = hosts
        firsts = {host: hosts.index(host) for host in sorted(set(hosts))}
        self._asking = [rank for host, rank in firsts.items() if host != hosts[0]]

    def read(self) -> Reading | None:
        """Read the clocks, on all ranks at once; what a rank read that asked, else None."""
        own = None
        for rank in self._asking:
            if rank == self._rank:
                own = reading([self._ask() for _ in range(TRIPS)])
            elif self._rank == 0:
                self._answer(rank)
        if self._asking:
            # Those that had nothing to do would begin their steps before the others.
            dist.barrier(self._control)
        return own

    def on_one_clock(
        self,
        batches: Sequence[Sequence[RankStep]],
        readings: Sequence[tuple[Reading, Reading] | None],
    ) -> list[list[RankStep]]:
        """The steps of each rank with all moments on the clock of rank 0's host.

        Args:
            batches: The steps of each rank, in the order of ranks.
            readings: What each rank has read before and after them.
        """
        of_host = {
            host: pair for host, pair in zip(self.hosts, readings, strict=True) if pair is not None
        }
        return [
            [on_reference(step, host, *of_host[host]) for step in steps]
            if host in of_host
            else list(steps)
            for host, steps in zip(self.hosts, batches, strict=True)
        ]

    def _ask(self) -> RoundTrip:
        box = torch.zeros(1, dtype=torch.int64)
        sent_ns = time.perf_counter_ns()
        dist.send(box, 0, group=self._control)
        dist.recv(box, 0, group=self._control)
        return RoundTrip(sent_ns, int(box.item()), time.perf_counter_ns())

    def _answer(self, rank: int) -> None:
        box = torch.zeros(1, dtype=torch.int64)
        for _ in range(TRIPS):
            dist.recv(box, rank, group=self._control)
            box[0] = time.perf_counter_ns()
            dist.send(box, rank, group=self._control)
