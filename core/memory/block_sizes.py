"""Infer the block sizes that CUDA's caching allocator handed out.

Events contain only requested bytes. A block is cut from the free block at the same address, and the
rest is split off only if it is large enough. The recorded addresses and the allocator's splitting
rule therefore determine every block size. The blocks in use at the end of the recording are in the
snapshot, and verify the replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from sysbench.core.errors import DamagedFileError
from sysbench.core.memory.card import WHOLE
from sysbench.core.memory.history import Integers
from sysbench.core.memory.snapshot_reading import MOVES, RESERVING, Segment, segments_in, trace_of
from sysbench.core.predict.allocator import SMALL_REQUEST, round_size, should_split
from sysbench.core.predict.allocator_settings import AllocatorSettings


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
    """Replay the events of one device in a snapshot taken by this process.

    Raises:
        DamagedFileError: torch changed the form of its snapshots.
    """
    trace, own = trace_of(snapshot, device), segments_in(snapshot, device)
    try:
        settings = msgspec.convert(snapshot.get("allocator_settings") or {}, _Settings)
    except msgspec.ValidationError as error:
        raise DamagedFileError(f"not a memory snapshot: {error}") from error
    limit = settings.max_split_size
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
