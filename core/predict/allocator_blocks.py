"""Blocks of memory and pools of free ones, as CUDA's caching allocator has them."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from sysbench.core.predict.allocator_settings import MIB, AllocatorSettings

GRANULE = 512
"""Bytes: every request is rounded up to a multiple (``kMinBlockSize``)."""

SMALL_REQUEST = MIB
"""Bytes: requests up to this come from the pool of small blocks (``kSmallSize``)."""

SMALL_SEGMENT = 2 * MIB
"""Bytes of a segment of the pool of small blocks (``kSmallBuffer``)."""

SHARED_BELOW = 10 * MIB
"""Bytes: large requests below this share a segment (``kMinLargeAlloc``)."""

SHARED_SEGMENT = 20 * MIB
"""Bytes of such a segment (``kLargeBuffer``)."""

PAGE = 2 * MIB
"""Bytes: larger segments are a multiple of this (``kRoundLarge``)."""


def should_split(
    block_bytes: int, size: int, settings: AllocatorSettings, *, is_small: bool
) -> bool:
    """Whether the allocator splits off what a block has beyond a rounded request."""
    rest = block_bytes - size
    if is_small or settings.expandable_segments:
        return rest >= GRANULE
    limit = settings.max_split_bytes
    return (limit is None or size < limit) and rest > SMALL_REQUEST


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment, in use or free, between its neighbours.

    Attributes:
        bytes: Its size; at least the request's.
        order: Number of the block in the order in which the allocator made them.
        is_mapped: False for address space of an expandable segment without memory behind it.
        since: Requests of its pool that had been looked up when it became free.
    """

    address: int
    bytes: int
    pool: Pool
    order: int
    before: Block | None = None
    after: Block | None = None
    is_free: bool = True
    is_mapped: bool = True
    since: int = 0

    @property
    def is_split(self) -> bool:
        """Whether it is a part of its segment only."""
        return self.before is not None or self.after is not None


@dataclass(slots=True, eq=False)
class Pool:
    """The free blocks of one stream that serve small requests, or large ones.

    Attributes:
        free: Size, order and address of each free block, ascending.
        at: Free and unmapped blocks by address.
        unmapped: Addresses of unmapped blocks, ascending.
        lookups: Requests so far.
    """

    is_small: bool
    free: list[tuple[int, int, int]] = field(default_factory=list)
    at: dict[int, Block] = field(default_factory=dict)
    unmapped: list[int] = field(default_factory=list)
    lookups: int = 0

    @property
    def segment_bytes(self) -> int:
        """Bytes by which an expandable segment grows."""
        return SMALL_SEGMENT if self.is_small else SHARED_SEGMENT

    def add(self, block: Block) -> None:
        """Put a block among the free or the unmapped ones."""
        self.at[block.address] = block
        if block.is_mapped:
            block.since = self.lookups
            insort(self.free, (block.bytes, block.order, block.address))
        else:
            insort(self.unmapped, block.address)

    def remove(self, block: Block) -> None:
        """Take a block from among them."""
        del self.at[block.address]
        if block.is_mapped:
            key = block.bytes, block.order, block.address
            del self.free[bisect_left(self.free, key)]
        else:
            del self.unmapped[bisect_left(self.unmapped, block.address)]


def round_size(requested_bytes: int, settings: AllocatorSettings) -> int:
    """Round a request up to the bytes of the block that it needs."""
    if requested_bytes < GRANULE:
        return GRANULE
    power = requested_bytes.bit_length() - 1
    index = min(max(0, power - 20), len(settings.roundup_divisions) - 1)
    divisions = settings.roundup_divisions[index]
    if divisions > 1 and requested_bytes > GRANULE * divisions:
        unit = (1 << power) // divisions
        return -(-requested_bytes // unit) * unit
    return -(-requested_bytes // GRANULE) * GRANULE


def segment_bytes(size: int) -> int:
    """Bytes of a new segment for a block of that size: ``get_allocation_size``."""
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if size < SHARED_BELOW:
        return SHARED_SEGMENT
    return -(-size // PAGE) * PAGE


def join(block: Block) -> None:
    """Let a block that is in no pool take in its neighbours that are free as it is."""
    before, after = block.before, block.after
    if before is not None and before.is_free and before.is_mapped == block.is_mapped:
        before.pool.remove(before)
        block.address = before.address
        block.bytes += before.bytes
        block.before = before.before
        if block.before is not None:
            block.before.after = block
    if after is not None and after.is_free and after.is_mapped == block.is_mapped:
        after.pool.remove(after)
        block.bytes += after.bytes
        block.after = after.after
        if block.after is not None:
            block.after.before = block


def could_have(block: Block) -> int:
    """Bytes that a block has or could be expanded to."""
    after = block.after
    return block.bytes + (after.bytes if after is not None and not after.is_mapped else 0)
