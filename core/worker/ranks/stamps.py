"""Moments of the host's monotonic clock, on the host itself or read from CUDA events.

All ranks of one host share that clock, so their moments can be compared. A CUDA event is put
on it by an event whose moment on the host is known: recorded when the device had nothing to
do, and waited for. That is off by the few microseconds between its end and being seen.
"""

from __future__ import annotations

import time
from typing import Protocol

import torch
import torch.distributed as dist

Stamp = int | torch.cuda.Event
"""Nanoseconds, or an event that is resolved once the device is done."""


class Stamps(Protocol):
    """Marks moments as work reaches them, and tells later when they were."""

    def align(self) -> None:
        """Tie the device's time to the host's; waits for the device."""
        ...

    def now(self) -> Stamp:
        """The moment at which all work asked for so far is done."""
        ...

    def ns(self, stamp: Stamp) -> int:
        """The stamp on the host's clock; the device must have been waited for."""
        ...


class HostStamps:
    """The CPU: a moment is a moment."""

    def align(self) -> None:
        pass

    def now(self) -> Stamp:
        return time.perf_counter_ns()

    def ns(self, stamp: Stamp) -> int:
        assert isinstance(stamp, int)
        return stamp


class CudaStamps:
    """A CUDA device: events on the current stream. Stamps of the host pass through."""

    def __init__(self) -> None:
        self._anchor = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._anchor_ns = 0

    def align(self) -> None:
        torch.cuda.synchronize()
        self._anchor.record()
        self._anchor.synchronize()
        self._anchor_ns = time.perf_counter_ns()

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
    """A moment that is not known yet. It holds no tensor, so that it may be kept.

    Attributes:
        stamp: 0 until it is known.
    """

    def __init__(self) -> None:
        self.stamp: Stamp = 0


class Pending:
    """A collective under way.

    Attributes:
        done: When the data had arrived; known when ``future`` is done.
        future: Its value are the tensors.
    """

    def __init__(self, work: dist.Work) -> None:
        self.work = work
        self.done = Mark()
        self.future: torch.futures.Future[list[torch.Tensor]] = work.get_future()

    def wait(self) -> None:
        """Let the caller go on only with the data; raises what went wrong."""
        self.work.wait()


class HostPending(Pending):
    """Ends on the host: the thread that moved the data notes when."""

    def __init__(self, work: dist.Work) -> None:
        super().__init__(work)
        mark = self.done

        def note(future: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
            mark.stamp = time.perf_counter_ns()
            return future.value()

        self.future = self.future.then(note)

    def wait(self) -> None:
        super().wait()
        self.future.wait()


class DevicePending(Pending):
    """Ends on the device: a stream with nothing else to do waits for it, and notes when."""

    def __init__(self, work: dist.Work, watching: torch.cuda.Stream) -> None:
        super().__init__(work)
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(watching):
            work.wait()
            event.record(watching)
        self.done.stamp = event
