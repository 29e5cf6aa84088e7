"""Record block of several ranks: the cost of communication, and the memory of each."""

from __future__ import annotations

from typing import Literal

import msgspec

from sysbench.core.record.timing import Spread

Kind = Literal["all-reduce", "broadcast", "all-gather", "reduce-scatter"]
Moment = Literal["after init", "before step", "after step"]


class CollectiveRow(msgspec.Struct, frozen=True):
    """Collectives of one kind, per step.

    ``bytes`` is the size of one rank's input or output, whichever is larger. ``sent_bytes`` is what
    a rank sends in a ring, the least that any algorithm moves: 2 (n - 1) / n of an all-reduce, (n -
    1) / n of the other kinds (a broadcast: the mean rank).
    """

    kind: Kind
    calls: float
    bytes: float
    sent_bytes: float


class RankRow(msgspec.Struct, frozen=True):
    """One rank: medians per step in milliseconds, split as in `Distributed`.

    ``last_share`` is the share of collectives that this rank reached last, by more than the clock
    error between two hosts. ``host`` is null for a single host.
    """

    rank: int
    device: str
    pid: int
    threads: int
    step_ms: float
    compute_ms: float | None
    exposed_ms: float | None
    waiting_ms: float | None
    transfer_ms: float | None
    communication_ms: float
    last_share: float
    host: int | None = None


class HostRow(msgspec.Struct, frozen=True):
    """One of several hosts, with the clock of its ranks' times.

    ``node`` are the digits that replace its name in records. ``clock_ahead_ms`` is the offset of
    its monotonic clock from the first host's at the end of the last steps, and ``clock_error_ms``
    the largest error of that over all steps, from the round trips of the readings. Drift is assumed
    to be even within a batch of steps.
    """

    host: int
    node: str | None
    ranks: int
    clock_ahead_ms: float
    clock_error_ms: float


class MemoryRow(msgspec.Struct, frozen=True):
    """Memory of one rank at one moment of the optimizer's life.

    ``after init`` is before the first step; the other two are just before and just after the
    optimizer runs in a steady step. The first three are bytes of live tensors. The allocator's two
    are null on the CPU, whose allocator has no counters. Peaks start at the process, at that step,
    and at the optimizer.
    """

    rank: int
    moment: Moment
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    total_bytes: int
    allocated_bytes: int | None = None
    peak_allocated_bytes: int | None = None


class AllReduce(msgspec.Struct, frozen=True):
    """Times and bandwidths of a plain all-reduce of float32.

    ``transfer`` is from the last rank's arrival to this rank's end, mean over ranks. Between
    devices, a transfer below half a millisecond is the shortest rank's step by its own events
    (``timed_by``), since two clocks cannot resolve it. The bandwidths use its median: algorithm =
    payload / time, bus = algorithm · 2 (n - 1) / n, which compares with the speed of a link for any
    n (NVIDIA's nccl-tests, PERFORMANCE.md).
    """

    payload_bytes: int
    transfer: Spread
    algorithm_gigabytes_per_second: float
    bus_gigabytes_per_second: float
    formula: str
    timed_by: Literal["arrivals", "events"] = "arrivals"


class Distributed(msgspec.Struct, frozen=True, kw_only=True):
    """The timing pass of several ranks, split into computing and communication.

    Each series has one sample a step, the mean over ranks, so that in every sample::

        step = compute + exposed,  exposed = waiting + transfer

    ``exposed`` is the time in which computing stopped for communication: ``waiting`` while some
    rank had not reached the collective, ``transfer`` after all had. ``communication`` is the time
    in which data could move, hidden behind computing or not. They are null if the strategy hides
    where it waits; ``missing`` has the reason. The ``timing`` block's step is the slowest rank's.

    ``disorder_ms`` checks the shared clock: the largest time by which an all-reduce ended before
    its last rank reached it, 0 on an exact clock. ``clock_error_ms`` bounds the error of device
    times on the host's clock, plus the error between the clocks of ``hosts``: 0 on the CPU of one
    host, null in older records. ``hosts`` is empty for a single one.
    """

    ranks: int
    parallel: str
    backend: str
    interconnect: str
    shard_optimizer: bool
    bucket_mib: float | None
    steps: int
    step: Spread
    compute: Spread | None
    exposed: Spread | None
    waiting: Spread | None
    transfer: Spread | None
    communication: Spread
    disorder_ms: float
    collectives: list[CollectiveRow]
    rows: list[RankRow]
    memory: list[MemoryRow]
    all_reduce: AllReduce | None = None
    clock_error_ms: float | None = None
    hosts: list[HostRow] = []
    missing: dict[str, str] = {}

    @property
    def overhead(self) -> float | None:
        """Exposed communication as a share of the step."""
        if self.exposed is None or not self.step.mean_ms:
            return None
        return self.exposed.mean_ms / self.step.mean_ms
