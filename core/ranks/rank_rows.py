"""The ranks of one job side by side, from a folder with a file of each; public JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from sysbench.core.record.record import Finding

Cause = Literal["idle", "compute", "communication"]


class FileRankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank over its file's span; nanoseconds of its own clock.

    ``span_ns`` is the sum of ``compute_ns`` (computing or copying, communication beside it or
    not), ``waiting_ns``, ``transfer_ns``, ``undivided_ns`` and ``idle_ns``. The three in the middle
    are communication that no computation hides, ``exposed_ns`` in all: ``waiting`` until the last
    rank of the folder had reached a collective, ``transfer`` from then on. What is no collective
    in which every rank needs every other, or has no counterpart in the other files, is undivided.

    ``last`` counts the collectives that this rank reached last, ``late_ns`` is the time for which
    those wanted for this rank alone, and ``late_causes`` tells that time by what the rank did
    beyond the median of the others. ``clock_ahead_ns`` is how far its clock is ahead of the
    reference rank's, ``clock_error_ns`` the most by which that can be wrong, and
    ``clock_spread_ns`` what it is if collectives end on all ranks together; null where no
    collective ties the two. ``bounded_ns`` is the part of ``late_ns`` that holds without that.
    """

    rank: int
    file: str
    source: Literal["kernels", "operators"]
    device: int | None
    span_ns: int
    compute_ns: int
    exposed_ns: int
    waiting_ns: int
    transfer_ns: int
    undivided_ns: int
    idle_ns: int
    collectives: int
    matched: int
    last: int
    late_ns: int
    bounded_ns: int
    late_causes: dict[Cause, int] = {}
    clock_ahead_ns: int | None = None
    clock_error_ns: int | None = None
    clock_spread_ns: int | None = None


class RankStepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One marked step of one rank; columns as in a `FileRankRow`."""

    step: int
    rank: int
    ns: int
    exposed_ns: int
    waiting_ns: int
    transfer_ns: int


class MatchedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one kind, size and group that several files have; times are means over their
    calls and ranks.

    ``bytes`` are as nccl-tests counts them. ``waiting_ns`` is from a rank's arrival to the last
    one's, ``transfer_ns`` from there to its end. Bandwidths are of the transfer, in GB/s, and null
    where the clocks do not resolve it.
    """

    kind: str
    bytes: int | None
    group: str | None
    ranks: int
    calls: int
    waiting_ns: float
    most_waiting_ns: int
    transfer_ns: float
    algorithm_gbs: float | None = None
    bus_gbs: float | None = None


class RankMemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one rank by its snapshot, or by its trace where that has the allocations; bytes as
    in the record's memory block, at the peak and at the end of the recording. ``largest_bytes``
    are held at the peak by one place in the code, ``largest``."""

    rank: int
    file: str
    peak_bytes: int
    reserved_bytes: int | None
    end_bytes: int
    baseline_bytes: int
    largest_bytes: int | None = None
    largest: str | None = None


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a folder.

    ``kind`` is that of the files with times and ``reference`` the rank whose clock the others are
    told by; null where there are no times.
    ``clock_conflict_ns`` is by how much the collectives contradict each other whatever the clocks:
    clocks that drift, or stamps that are not exact. ``absent`` are ranks of the job without a file,
    ``left_out`` files of the folder that are none of these kinds.
    """

    folder: str
    kind: Literal["chrome-trace", "nsys-export"] | None = None
    world_size: int | None = None
    absent: list[int] = []
    left_out: list[str] = []
    reference: int | None = None
    clock_conflict_ns: int = 0
    rows: list[FileRankRow] = []
    steps: list[RankStepRow] = []
    collectives: list[MatchedCollective] = []
    memory: list[RankMemoryRow] = []
    findings: list[Finding] = []
    missing: dict[str, str] = {}
