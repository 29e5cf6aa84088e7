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

from sysbench.core.memory.history import Integers
from sysbench.core.memory.snapshot_reading import (
    MOVES,
    RESERVING,
    Segment,
    SnapshotEvent,
    convert_own,
    segments_in,
    trace_of,
)
from sysbench.core.predict.allocator import SMALL_REQUEST, round_size, should_split
from sysbench.core.predict.allocator_settings import AllocatorSettings
from sysbench.core.record.memory import RESIDUAL, Pool
from sysbench.core.record.record import LedgerRow


class CardReading(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes in use at the end of a step; None if not reported.

    ``used`` is by everything on the device, on the CPU the resident set of the process.
    ``allocated`` are blocks handed out by torch's caching allocator, at the step's peak if the
    column is a peak, ``reserved`` its segments. ``process`` includes its context and libraries,
    ``others`` are processes.
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

    ``allocated`` is the sum of the ledger at the same instant; the pools split the allocator's
    slack. Free memory in private pools is not slack: the ledger counts it as held.
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
    """Extract one device's segments from a snapshot of this process; raises as `convert_own`."""
    changes = [row for row in trace_of(snapshot, device) if row["action"] in RESERVING]
    return Segments(
        at_end={
            segment.address: (segment.total_size, _pool_name(segment))
            for segment in segments_in(snapshot, device)
        },
        events=[
            (row.time_us * 1000, row.addr, row.size, RESERVING[row.action], row.action in WHOLE)
            for row in convert_own(changes, list[SnapshotEvent])
        ],
    )


def _pool_name(segment: Segment) -> str:
    number = ".".join(str(part) for part in segment.segment_pool_id if part)
    return f"{PRIVATE_POOL} {number}, {segment.segment_type}" if number else segment.segment_type


class _Settings(msgspec.Struct):
    max_split_size: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """Block sizes, one element an event as in a `History`: the size of the block if one was taken,
    else 0. ``bytes`` is None if unknown; ``missing`` has the reason."""

    bytes: Integers | None
    missing: str = ""


class _Unlike(Exception):
    """The history contradicts this splitting rule; the message has the event."""


def block_sizes(snapshot: Mapping[str, Any], device: int) -> BlockSizes:
    """Replay the events of one device in a snapshot of this process; raises as `convert_own`."""
    trace, own = trace_of(snapshot, device), segments_in(snapshot, device)
    limit = convert_own(snapshot.get("allocator_settings") or {}, _Settings).max_split_size
    replay = _Replay(
        AllocatorSettings(
            # Expandable segments have one rule for all pools, and it holds for the whole process.
            expandable_segments=any(
                row["action"] in RESERVING.keys() - set(WHOLE) for row in trace
            ),
            max_split_bytes=limit if limit > 0 else None,
        )
    )
    try:
        replay.begin(own, trace)
        found = [size for row in trace if (size := replay.follow(row)) is not None]
        replay.check(own)
    except _Unlike as reason:
        return BlockSizes(bytes=None, missing=str(reason))
    return BlockSizes(bytes=np.array(found, dtype=np.int64))


class _Replay:
    def __init__(self, settings: AllocatorSettings) -> None:
        self._settings = settings
        self._taken: dict[int, int] = {}
        self._free: dict[int, int] = {}  # address to size
        self._free_ends: dict[int, int] = {}  # end to address
        self._borders: Counter[int] = Counter()  # ends of segments, over which no block merges

    def begin(self, segments: list[Segment], trace: list[dict[str, Any]]) -> None:
        """Start with the segments that are older than the events, all free."""
        made: set[int] = set()
        taken: set[int] = set()
        for row in trace:
            action, address = row["action"], row.get("addr", 0)
            if action in WHOLE:
                if RESERVING[action] < 0 and address not in made:
                    raise _Unlike("a segment is older than the recording")
                made.add(address)
            elif MOVES.get(action, 0) > 0:
                taken.add(address)
            elif action in MOVES and address not in taken:
                raise _Unlike("a block is older than the recording, or its events were dropped")
        if self._settings.expandable_segments:
            return  # what was mapped before shows as an address that is not free
        for segment in segments:
            if segment.address not in made:
                self._reserve(segment.address, segment.total_size, is_whole=True)

    def follow(self, row: Mapping[str, Any]) -> int | None:
        """Apply one event. Returns the size of the block it took, 0 if it returned one, else
        None."""
        action, address, size = row["action"], row.get("addr", 0), row.get("size", 0)
        if action in RESERVING:
            is_whole = action in WHOLE
            if RESERVING[action] > 0:
                self._reserve(address, size, is_whole=is_whole)
            else:
                self._give_back(address, size, is_whole=is_whole)
            return None
        if action not in MOVES or size <= 0:
            return None
        if MOVES[action] > 0:
            return self._take(address, size)
        if address not in self._taken:
            raise _Unlike("an event freed memory that was not allocated")
        self._make_free(address, self._taken.pop(address))
        return 0

    def check(self, segments: list[Segment]) -> None:
        in_use = {
            block.address: block.size
            for segment in segments
            for block in segment.blocks
            if block.state != "inactive"
        }
        if in_use != self._taken:
            differing = len(in_use.items() ^ self._taken.items())
            raise _Unlike(f"{differing} blocks of the snapshot differ from the replayed ones")

    def _take(self, address: int, requested: int) -> int:
        free = self._free.get(address)
        size = round_size(requested, self._settings)
        if free is None or free < size:
            raise _Unlike("a block was allocated where none was free")
        self._forget_free(address)
        if should_split(free, size, self._settings, is_small=size <= SMALL_REQUEST):
            self._put_free(address + size, free - size)
        else:
            size = free
        self._taken[address] = size
        return size

    def _reserve(self, address: int, size: int, *, is_whole: bool) -> None:
        if is_whole:
            self._borders.update((address, address + size))
        self._make_free(address, size)

    def _give_back(self, address: int, size: int, *, is_whole: bool) -> None:
        """Remove a range from the free block around it; a mapped range may be part of one."""
        free = self._free.items()
        around = next((start for start, length in free if start <= address < start + length), None)
        if around is None or address + size > around + self._free[around]:
            raise _Unlike("memory in use was given back to the driver")
        length = self._free[around]
        self._forget_free(around)
        if around < address:
            self._put_free(around, address - around)
        if address + size < around + length:
            self._put_free(address + size, around + length - address - size)
        if is_whole:
            self._borders.subtract((address, address + size))

    def _make_free(self, address: int, size: int) -> None:
        """Add a free block, merged with adjacent free blocks of the same segment."""
        before = None if self._borders[address] > 0 else self._free_ends.get(address)
        if before is not None:
            size += self._free[before]
            address = before
            self._forget_free(before)
        end = address + size
        after = None if self._borders[end] > 0 else self._free.get(end)
        if after is not None:
            self._forget_free(end)
            size += after
        self._put_free(address, size)

    def _put_free(self, address: int, size: int) -> None:
        self._free[address] = size
        self._free_ends[address + size] = address

    def _forget_free(self, address: int) -> None:
        del self._free_ends[address + self._free.pop(address)]
