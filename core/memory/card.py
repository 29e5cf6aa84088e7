"""Split a device's used memory into segments, pools, and memory outside the allocator.

The source is ``torch.cuda.memory._snapshot()``: the segments at the end, and the events that made
and freed them. Undoing the events from the end is exact back to the oldest event.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.core.errors import DamagedFileError
from sysbench.core.memory.history import Integers
from sysbench.core.memory.snapshot_reading import RESERVING, Segment, segments_in, trace_of
from sysbench.core.record.memory import RESIDUAL, Pool
from sysbench.core.record.record import LedgerRow


class CardReading(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes in use at the end of a step; None if not reported.

    Attributes:
        used: By everything on the device; on the CPU the resident set of the process.
        allocated: Blocks handed out by torch's caching allocator, at the step's peak if the column
            is a peak.
        reserved: By torch's caching allocator; None on the CPU.
        process: By this process on the device, including its context and libraries.
        others: By other processes on the device.
    """

    used: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    process: int | None = None
    others: int | None = None

    def with_reserved(self, reserved: int) -> CardReading:
        """The same device when the allocator had reserved this many bytes."""
        if self.reserved is None:
            return self
        more = reserved - self.reserved
        return msgspec.structs.replace(
            self,
            used=None if self.used is None else self.used + more,
            reserved=reserved,
            process=None if self.process is None else self.process + more,
        )


def card_rows(allocated: int, reading: CardReading, pools: Sequence[Pool] = ()) -> list[LedgerRow]:
    """Rows that sum to ``reading.used``; empty if that is unknown.

    Args:
        allocated: Sum of the ledger at the same instant.
        pools: The allocator's pools at that instant, to split its slack. Free memory in private
            pools is not slack: the ledger counts it as held.
    """
    pools = [pool for pool in pools if not pool.name.startswith(PRIVATE_POOL)]
    if reading.used is None:
        return []
    rows = [LedgerRow("allocated", allocated)]
    if reading.reserved is None:
        rest = LedgerRow("interpreter, libraries, recording", reading.used - allocated)
        return [*rows, rest]
    rows += _slack(reading.reserved - allocated, pools)
    outside = reading.used - reading.reserved
    if reading.process is None or reading.others is None:
        return [*rows, LedgerRow("outside the allocator", outside)]
    own = reading.process - reading.reserved
    return [
        *rows,
        LedgerRow("context and libraries", own),
        LedgerRow("other processes", reading.others),
        LedgerRow(RESIDUAL, outside - own - reading.others),
    ]


def _slack(slack: int, pools: Sequence[Pool]) -> list[LedgerRow]:
    """Reserved bytes that are not handed out.

    The ledger counts the excess of a block over its request as handed out, the pools count it as
    free. Only large pools have such blocks, so the largest one takes the difference.
    """
    if not pools:
        return [LedgerRow("allocator slack", slack)]
    free = {pool.name: pool.free_bytes for pool in pools}
    free[max(pools, key=lambda pool: pool.free_bytes).name] += slack - sum(free.values())
    return [LedgerRow(f"slack, {name}", count) for name, count in free.items()]


WHOLE = ("segment_alloc", "segment_free")
"""Events of segments that never merge with their neighbours; the others grow and shrink one."""

PRIVATE_POOL = "private pool"
"""Prefix of the names of pools with a single user, such as a CUDA graph."""

GIVEN_BACK = "given back since"
"""Pool name for segments freed before the snapshot, whose pool is not recorded."""


class _Event(msgspec.Struct, gc=False):
    action: str
    addr: int = 0
    size: int = 0
    time_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """One device's segments at the end, as address to (bytes, pool), and the events before it as
    (nanoseconds since the epoch, address, bytes, sign, whether a whole segment)."""

    at_end: dict[int, tuple[int, str]]
    events: list[tuple[int, int, int, int, bool]]

    def reserved_bytes(self, time_ns: int) -> int:
        end_bytes = sum(size for size, _ in self.at_end.values())
        return end_bytes - sum(
            size * sign for event_ns, _, size, sign, _ in self.events if event_ns > time_ns
        )

    def is_private(self, address: Integers) -> NDArray[np.bool_]:
        """Mask of the addresses that lie in private pools' segments at the end."""
        ranges = [
            (begin, begin + size)
            for begin, (size, pool) in sorted(self.at_end.items())
            if pool.startswith(PRIVATE_POOL)
        ]
        begins, ends = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
        before = np.searchsorted(begins, address, side="right") - 1
        # Without a segment before it an address reads the last end, and is masked.
        inside: NDArray[np.bool_] = before >= 0
        if len(ends):
            inside &= address < ends[before]
        return inside

    def private_bytes(self, times_ns: Integers) -> Integers:
        """Reserved bytes of private pools at each time: the end minus the later events.

        Segments freed before the snapshot are left out, because their pool is unknown.
        """
        at_end = sum(s for s, pool in self.at_end.values() if pool.startswith(PRIVATE_POOL))
        rows = np.array([row[:4] for row in self.events], dtype=np.int64).reshape(-1, 4)
        event_ns, address, size, sign = rows[np.argsort(rows[:, 0], kind="stable")].T
        change = np.where(self.is_private(address), size * sign, 0)
        # Element i is the change by the first i events.
        so_far = np.append(0, np.cumsum(change))
        later = so_far[-1] - so_far[np.searchsorted(event_ns, times_ns, side="right")]
        result: Integers = at_end - later
        return result

    def pools(self, time_ns: int, address: Integers, size: Integers) -> list[Pool]:
        """The pools at that time, sorted by name."""
        # Blocks do not overlap, so that sorted by address their ends are sorted too.
        order = np.argsort(address)
        begins, ends = address[order], address[order] + size[order]
        free: defaultdict[str, list[int]] = defaultdict(list)
        reserved: Counter[str] = Counter()
        for begin, end, pool in self._runs(time_ns):
            inside = slice(*np.searchsorted(begins, [begin, end]))
            # Free before each block: from the end of the one before it, or of the run.
            gaps = np.append(begins[inside], end) - np.append(begin, ends[inside])
            reserved[pool] += end - begin
            free[pool] += gaps.tolist()
        return [
            Pool(pool, pool_bytes, pool_bytes - sum(free[pool]), sum(free[pool]), max(free[pool]))
            for pool, pool_bytes in sorted(reserved.items())
        ]

    def _runs(self, time_ns: int) -> list[tuple[int, int, str]]:
        """The reserved ranges at that time as (begin, end, pool), half open, sorted."""
        # A sweep over addresses: by how much the cover changes at each.
        change: Counter[int] = Counter()
        borders = set(self.at_end)
        for address, (size, _) in self.at_end.items():
            change[address] += 1
            change[address + size] -= 1
        for event_ns, address, size, sign, is_whole in self.events:
            if event_ns > time_ns:
                change[address] -= sign
                change[address + size] += sign
                if is_whole:
                    borders |= {address, address + size}
        starts = sorted(self.at_end)
        runs: list[tuple[int, int, str]] = []
        covered = 0
        for begin, end in pairwise(sorted(change)):
            covered += change[begin]
            if covered <= 0:
                continue
            pool = self._pool_at(begin, starts)
            if runs and runs[-1][1:] == (begin, pool) and begin not in borders:
                runs[-1] = (runs[-1][0], end, pool)
            else:
                runs.append((begin, end, pool))
        return runs

    def _pool_at(self, address: int, starts: list[int]) -> str:
        before = bisect_right(starts, address)
        size, pool = self.at_end[starts[before - 1]] if before else (0, "")
        return pool if before and address < starts[before - 1] + size else GIVEN_BACK


def segments_of(snapshot: Mapping[str, Any], device: int) -> Segments:
    """Extract one device's segments from a snapshot taken by this process.

    Raises:
        DamagedFileError: torch changed the form of its snapshots.
    """
    changes = [row for row in trace_of(snapshot, device) if row["action"] in RESERVING]
    try:
        events = msgspec.convert(changes, list[_Event])
    except msgspec.ValidationError as error:
        raise DamagedFileError(f"not a memory snapshot: {error}") from error
    return Segments(
        at_end={
            segment.address: (segment.total_size, _pool_name(segment))
            for segment in segments_in(snapshot, device)
        },
        events=[
            (row.time_us * 1000, row.addr, row.size, RESERVING[row.action], row.action in WHOLE)
            for row in events
        ],
    )


def _pool_name(segment: Segment) -> str:
    number = ".".join(str(part) for part in segment.segment_pool_id if part)
    return f"{PRIVATE_POOL} {number}, {segment.segment_type}" if number else segment.segment_type
