"""The collectives of one rank, with the times at which the rank reached and finished each.

Times are of the host's monotonic clock, which all ranks of one host share. A CUDA event is placed
on it by an anchor, an event that is recorded on an idle device and waited for, so that its moment
on the host is known: the middle between its launch and the notice of its end, with an error of half
the time between the two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sysbench.core.ranks.clock_alignment import ClockReading, RoundTrip, on_reference, reading
from sysbench.core.record.distributed import Kind
from sysbench.core.trace.collective_kernels import Collective, RankStep

Stamp = int | torch.cuda.Event
"""Nanoseconds, or an event that is resolved once the device is done."""


class Stamps:
    """Timestamps of the CPU, where work is done when the call returns.

    Attributes:
        error_ns: Maximum common error of device times on the host's clock since `align`.
    """

    error_ns = 0

    def align(self) -> None:
        """Relate the device's clock to the host's; waits for the device."""

    def now(self) -> Stamp:
        """Timestamp of the end of all work queued so far."""
        return time.perf_counter_ns()

    def ns(self, stamp: Stamp) -> int:
        """Nanoseconds of a timestamp on the host's clock; the device must be done."""
        assert isinstance(stamp, int)
        return stamp


class CudaStamps(Stamps):
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


Launch = Callable[[], dist.Work | None]


class Collectives:
    """Runs the collectives of one rank and records their times by step.

    Attributes:
        why_unseen: Why stalls of computation cannot be measured; else empty.
        tag: Gets each buffer that is made for a collective.
    """

    def __init__(self, device: torch.device, backend: str) -> None:
        self.ranks = dist.get_world_size()
        self.rank = dist.get_rank()
        self.why_unseen = ""
        self.tag: Callable[[Tensor], None] = lambda buffer: None
        self.stamps = CudaStamps() if device.type == "cuda" else Stamps()
        self._watching: torch.cuda.Stream | None = None
        if backend == "nccl":
            self._watching = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._steps: list[_Step] = []

    def begin_step(self) -> None:
        """Begin a step; later collectives belong to it."""
        self._steps.append(_Step())

    def run(self, kind: Kind, size: int, launch: Launch) -> None:
        """Run a blocking collective; ``launch`` returns when it is done."""
        arrived, done = self.stamps.now(), Mark()
        launch()
        done.stamp = self.stamps.now()
        self._steps[-1].collectives.append((kind, size, arrived, done))
        self.stood_still(arrived, done)

    def start(self, kind: Kind, size: int, launch: Launch) -> Pending:
        """Start a collective that overlaps computation; ``launch`` returns its work at once."""
        arrived = self.stamps.now()
        work = launch()
        assert work is not None, "this process is not in the group"
        watching = self._watching
        pending = HostPending(work) if watching is None else DevicePending(work, watching)
        self._steps[-1].collectives.append((kind, size, arrived, pending.done))
        return pending

    def wait(self, pending: Pending) -> None:
        """Wait for a collective and record the stall."""
        began, ended = self.stamps.now(), Mark()
        pending.wait()
        ended.stamp = self.stamps.now()
        self.stood_still(began, ended)

    def stood_still(self, began: Stamp, ended: Mark) -> None:
        """Record an interval in which computation stalled; a reversed one counts as empty."""
        self._steps[-1].blocked.append((began, ended))

    def all_reduce(self, tensor: Tensor) -> None:
        self.run("all-reduce", tensor.nbytes, lambda: dist.all_reduce(tensor))

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        """Sum over ranks, overlapped with computation."""
        size = tensor.nbytes
        return self.start("all-reduce", size, lambda: dist.all_reduce(tensor, async_op=True))

    def start_broadcast(self, tensor: Tensor, owner: int) -> Pending:
        """Copy from one rank to all others, overlapped with computation."""
        size = tensor.nbytes
        return self.start("broadcast", size, lambda: dist.broadcast(tensor, owner, async_op=True))

    def take(self, step_ms: Sequence[float]) -> list[RankStep]:
        """Return and clear the recorded steps. The device must be done.

        Args:
            step_ms: Milliseconds of each step.
        """
        steps, self._steps = self._steps, []
        return [self._resolve(*pair) for pair in zip(steps, step_ms, strict=True)]

    def _resolve(self, step: _Step, step_ms: float) -> RankStep:
        ns = self.stamps.ns
        # Resolved only now: reading a CUDA event within the step would synchronise.
        blocked = [(ns(began), ns(ended.stamp)) for began, ended in step.blocked]
        return RankStep(
            step_ns=round(step_ms * 1e6),
            collectives=[
                Collective(kind, size, ns(arrived), ns(done.stamp))
                for kind, size, arrived, done in step.collectives
            ],
            blocked=None if self.why_unseen else blocked,
            error_ns=self.stamps.error_ns,
        )


class _Step:
    def __init__(self) -> None:
        self.collectives: list[tuple[Kind, int, Stamp, Mark]] = []
        self.blocked: list[tuple[Stamp, Mark]] = []
