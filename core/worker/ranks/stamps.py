"""Moments of the host's monotonic clock, on the host itself or read from CUDA events.

All ranks of one host share that clock, so their moments can be compared. A CUDA event is placed
on it by an anchor, an event that is recorded on an idle device and waited for, so that its moment
on the host is known: the middle between its launch and the notice of its end, with an error of half
the time between the two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from sysbench.core.ranks.exchange import ClockReading, RoundTrip, on_reference, reading
from sysbench.core.trace.collective_kernels import RankStep

Stamp = int | torch.cuda.Event
"""Nanoseconds, or an event that is resolved once the device is done."""


class Stamps(Protocol):
    """Timestamps that are taken in stream order and resolved later.

    Attributes:
        error_ns: Maximum common error of device times on the host's clock since `align`; 0 for host
            clocks.
    """

    error_ns: int

    def align(self) -> None:
        """Relate the device's clock to the host's; waits for the device."""
        ...

    def now(self) -> Stamp:
        """Timestamp of the end of all work queued so far."""
        ...

    def ns(self, stamp: Stamp) -> int:
        """Nanoseconds of a timestamp on the host's clock; the device must be done."""
        ...


class HostStamps:
    """Timestamps of the CPU, where work is done when the call returns."""

    error_ns = 0

    def align(self) -> None:
        pass

    def now(self) -> Stamp:
        return time.perf_counter_ns()

    def ns(self, stamp: Stamp) -> int:
        assert isinstance(stamp, int)
        return stamp


class CudaStamps:
    """CUDA events on the current stream; host timestamps are passed through."""

    def __init__(self) -> None:
        self._anchor = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._anchor_ns = 0
        self.error_ns = 0

    def align(self) -> None:
        torch.cuda.synchronize()
        before_ns = time.perf_counter_ns()
        self._anchor.record()
        self._anchor.synchronize()
        after_ns = time.perf_counter_ns()
        self.error_ns = (after_ns - before_ns) // 2
        self._anchor_ns = before_ns + self.error_ns

    def now(self) -> Stamp:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def ns(self, stamp: Stamp) -> int:
        if isinstance(stamp, int):
            return stamp
        since_ms: float = self._anchor.elapsed_time(stamp)
        return self._anchor_ns + round(since_ms * 1e6)


class Mark:
    """A timestamp that is not known yet; unlike a collective's work it keeps no tensor alive."""

    def __init__(self) -> None:
        self.stamp: Stamp = 0


class Pending:
    """A collective in progress.

    Attributes:
        done: When the data arrived; known once ``future`` is done.
        future: Has the tensors as its value.
    """

    def __init__(self, work: dist.Work) -> None:
        self.work = work
        self.done = Mark()
        self.future: torch.futures.Future[list[torch.Tensor]] = work.get_future()

    def wait(self) -> None:
        """Wait until the data has arrived.

        Raises:
            RuntimeError: The collective failed.
        """
        self.work.wait()


class HostPending(Pending):
    """A collective that ends on the host; the communication thread takes the timestamp."""

    def __init__(self, work: dist.Work) -> None:
        super().__init__(work)
        mark = self.done

        def note(future: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
            mark.stamp = time.perf_counter_ns()
            return future.value()

        self.future = self.future.then(note)

    def wait(self) -> None:
        super().wait()
        self.future.wait()  # work ends before its callbacks, and the stamp is made in one


class DevicePending(Pending):
    """A collective that ends on the device; an otherwise idle stream takes the timestamp."""

    def __init__(self, work: dist.Work, watching: torch.cuda.Stream) -> None:
        super().__init__(work)
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(watching):
            work.wait()
            event.record(watching)
        self.done.stamp = event


TRIPS = 40


def own_host() -> int:
    """Index of this rank's host, as torchrun counts them."""
    return int(os.environ.get("GROUP_RANK", 0))


class HostClocks:
    """Offsets of the hosts' clocks to the clock of rank 0's host.

    Args:
        control: Host-side group of all ranks.
    """

    def __init__(self, control: dist.ProcessGroup) -> None:
        self._control = control
        self._rank = dist.get_rank()
        hosts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(hosts, own_host(), group=control)
        self.hosts: list[int] = hosts
        firsts = {host: hosts.index(host) for host in sorted(set(hosts))}
        self._asking = [rank for host, rank in firsts.items() if host != hosts[0]]

    def read(self) -> ClockReading | None:
        """Read the clocks on all ranks together; None except on a rank that asked."""
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
        readings: Sequence[tuple[ClockReading, ClockReading] | None],
    ) -> list[list[RankStep]]:
        """Steps of each rank with all timestamps on the clock of rank 0's host.

        Args:
            readings: Clock readings of each rank before and after the steps.
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
