"""The ranks of one job, from a folder with a file per rank, or from one file; public JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from sysbench.core.record.record import Finding

Cause = Literal["idle", "compute", "communication"]


class FileRankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank over its file's span; nanoseconds of its own clock.

    ``span_ns`` is the sum of ``compute_ns`` (computing or copying, overlapped or not),
    ``waiting_ns``, ``transfer_ns``, ``undivided_ns`` and ``idle_ns``. ``exposed_ns``, the sum of
    the three in the middle, is communication without computation: waiting until the last rank
    reached the collective, then transfer; undivided if the collective does not synchronize all
    ranks or has no counterpart in the other files.

    ``last`` counts the collectives that this rank reached last, ``late_ns`` is the time in which
    they waited only for it, and ``late_causes`` splits it by activity beyond the median of the
    others. ``clock_ahead_ns`` is the offset from the reference rank's clock, ``clock_error_ns`` its
    maximum error, and ``clock_spread_ns`` the error if collectives end on all ranks together; null
    if no collective aligns the two. ``bounded_ns`` is the lateness, in full, in the collectives
    where it exceeds the error.
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
    """Collectives of one kind, size and group in several files; mean times over calls and ranks.

    ``bytes`` are as nccl-tests counts them. ``waiting_ns`` is from a rank's arrival to the last
    one's, ``transfer_ns`` from there to its end. Bandwidths are of the transfer, in GB/s, null if
    the clocks are not exact enough. ``purpose`` is the name that the program gave the group, such
    as ``mesh_tp``. ``source`` and ``target`` are the ranks of a transfer from one to the other,
    else null.
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
    purpose: str | None = None
    source: int | None = None
    target: int | None = None


class RankMemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one rank from its snapshot, or from a trace with allocations.

    Bytes as in the record's memory block, at the peak and at the end of the recording. ``largest``
    is the code location with most bytes at the peak, ``largest_bytes``. Without a history
    ``peak_bytes`` is null, and the others are of the state. ``device`` is that of the snapshot.
    """

    rank: int
    file: str
    peak_bytes: int | None
    reserved_bytes: int | None
    end_bytes: int
    baseline_bytes: int
    largest_bytes: int | None = None
    largest: str | None = None
    device: int | None = None


TimedKind = Literal["chrome-trace", "perfetto-trace", "nsys-export"]


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a folder.

    ``kind`` is that of the files with times, ``reference`` the rank with the reference clock; null
    without times. ``clock_conflict_ns`` is the contradiction between collectives that no offsets
    explain: clocks drift, or stamps are inexact. ``absent`` are ranks of the job without a file,
    ``left_out`` files of unknown kinds. With ``one_clock`` the ranks are devices or processes of
    one file.
    """

    folder: str
    kind: TimedKind | None = None
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
    one_clock: bool = False
