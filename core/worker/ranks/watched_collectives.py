"""The collectives of one rank, with the times at which the rank reached and finished each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from sysbench.core.record.distributed import Kind
from sysbench.core.trace.collective_kernels import Collective, RankStep
from sysbench.core.worker.ranks.stamps import (
    CudaStamps,
    DevicePending,
    HostPending,
    HostStamps,
    Mark,
    Pending,
    Stamp,
    Stamps,
)

Launch = Callable[[], dist.Work | None]


class Collectives:
    """Runs the collectives of one rank and records their times by step.

    Attributes:
        why_unseen: Why stalls of computation cannot be measured; else empty.
    """

    def __init__(self, device: torch.device, backend: str) -> None:
        self.ranks = dist.get_world_size()
        self.rank = dist.get_rank()
        self.why_unseen = ""
        self.stamps: Stamps = CudaStamps() if device.type == "cuda" else HostStamps()
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
    """The stamps of one step."""

    def __init__(self) -> None:
        self.collectives: list[tuple[Kind, int, Stamp, Mark]] = []
        self.blocked: list[tuple[Stamp, Mark]] = []
