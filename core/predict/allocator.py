"""Model PyTorch's CUDA caching allocator: the blocks and segments that requests get.

It has no memory and no device: addresses are numbers. It follows `DeviceCachingAllocator` of
``c10/cuda/CUDACachingAllocator.cpp`` in torch 2.9 to 2.13, function by function, without private
pools of CUDA graphs and without blocks that other streams still use.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from itertools import islice

from sysbench.core.predict.allocator_settings import MIB, AllocatorSettings

GRANULE = 512
"""Bytes: every request is rounded up to a multiple (``kMinBlockSize``)."""

SMALL_REQUEST = MIB
"""Bytes: requests up to this size come from the pool of small blocks (``kSmallSize``)."""

SMALL_SEGMENT = 2 * MIB
"""Bytes of a segment in the pool of small blocks (``kSmallBuffer``)."""

SHARED_BELOW = 10 * MIB
"""Bytes: large requests below this size share a segment (``kMinLargeAlloc``)."""

SHARED_SEGMENT = 20 * MIB
"""Bytes of a shared segment of large blocks (``kLargeBuffer``)."""

PAGE = 2 * MIB
"""Bytes: larger segments are a multiple of this (``kRoundLarge``)."""


def should_split(
    block_bytes: int, size: int, settings: AllocatorSettings, *, is_small: bool
) -> bool:
    """True if the allocator splits off the rest of a block beyond a rounded request."""
    rest = block_bytes - size
    if is_small or settings.expandable_segments:
        return rest >= GRANULE
    limit = settings.max_split_bytes
    return (limit is None or size < limit) and rest > SMALL_REQUEST


@dataclass(slots=True, eq=False)
class CachedBlock:
    """A piece of a segment, in use or free, linked to the pieces before and after it.

    Attributes:
        order: Number of the block in the order in which the allocator made them.
        is_mapped: False for address space of an expandable segment without memory behind it.
        since: Lookups in its pool when it became free.
        requested_bytes: Of the request that it serves.
    """

    address: int
    bytes: int
    pool: BlockPool
    order: int
    before: CachedBlock | None = None
    after: CachedBlock | None = None
    is_free: bool = True
    is_mapped: bool = True
    since: int = 0
    requested_bytes: int = 0

    @property
    def is_split(self) -> bool:
        return self.before is not None or self.after is not None


@dataclass(slots=True, eq=False)
class BlockPool:
    """The free blocks of one stream for small requests, or for large ones.

    Attributes:
        free: Size, order and address of each free block, ascending.
        at: Free and unmapped blocks by address.
        unmapped: Addresses of unmapped blocks, ascending.
    """

    is_small: bool
    free: list[tuple[int, int, int]] = field(default_factory=list)
    at: dict[int, CachedBlock] = field(default_factory=dict)
    unmapped: list[int] = field(default_factory=list)
    lookups: int = 0

    @property
    def segment_bytes(self) -> int:
        return SMALL_SEGMENT if self.is_small else SHARED_SEGMENT

    def add(self, block: CachedBlock) -> None:
        self.at[block.address] = block
        if block.is_mapped:
            block.since = self.lookups
            insort(self.free, (block.bytes, block.order, block.address))
        else:
            insort(self.unmapped, block.address)

    def remove(self, block: CachedBlock) -> None:
        del self.at[block.address]
        if block.is_mapped:
            key = block.bytes, block.order, block.address
            del self.free[bisect_left(self.free, key)]
        else:
            del self.unmapped[bisect_left(self.unmapped, block.address)]


def round_size(requested_bytes: int, settings: AllocatorSettings) -> int:
    """Round a request up to the size of the block that it needs."""
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


def join_blocks(block: CachedBlock) -> None:
    """Merge a block that is in no pool with adjacent free blocks."""
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


def could_have(block: CachedBlock) -> int:
    after = block.after
    return block.bytes + (after.bytes if after is not None and not after.is_mapped else 0)


class AllocationRefused(Exception):
    """The device has no memory for a request, even after cached segments were given back."""

    def __init__(self, requested_bytes: int, allocated_bytes: int, reserved_bytes: int) -> None:
        super().__init__(f"no memory for {requested_bytes:,} bytes")
        self.requested_bytes = requested_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes


class CachingAllocator:
    """The allocator of one device.

    Attributes:
        requested_at_peak_bytes: What was requested when most was allocated, without the rounding to
            blocks. More may be requested at another time.

    Args:
        capacity_bytes: Bytes available to it; None: unlimited.
        is_limited: Whether the capacity is a limit put on the process: torch collects long unused
            blocks only under such a limit.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        capacity_bytes: int | None = None,
        *,
        is_limited: bool = False,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self._requested_bytes = self.requested_at_peak_bytes = 0
        self._capacity = capacity_bytes
        self._collects = is_limited and self.settings.collect_above > 0
        is_expandable = self.settings.expandable_segments
        self._source = ExpandableSegments(self) if is_expandable else SegmentModel(self)
        self._pools: dict[tuple[int, bool], BlockPool] = {}
        self._next_address = PAGE
        self._made = 0

    def allocate(self, requested_bytes: int, stream: int = 0) -> CachedBlock:
        """Allocate a block, cut from a free one or from a new segment.

        Raises:
            AllocationRefused: No memory is left.
            ValueError: The request is smaller than one byte.
        """
        if requested_bytes < 1:
            raise ValueError(f"no block has {requested_bytes} bytes")
        size = round_size(requested_bytes, self.settings)
        is_small = size <= SMALL_REQUEST
        pool = self._pools.get((stream, is_small))
        if pool is None:
            pool = self._pools[stream, is_small] = BlockPool(is_small)
        if self._collects:
            pool.lookups += 1
        block = self._from_cache(pool, size)
        if block is None and self._collects:
            self._collect_unused()
        if block is None:
            block = self._source.block_for(pool, size)
        if block is None and self._release_for(pool, size):
            block = self._source.block_for(pool, size)
        if block is None:
            self.empty_cache()
            block = self._source.block_for(pool, size)
        if block is None:
            raise AllocationRefused(size, self.allocated_bytes, self.reserved_bytes)
        if should_split(block.bytes, size, self.settings, is_small=block.pool.is_small):
            rest, block = block, self.cut_front(block, size)
            rest.pool.add(rest)
        block.is_free, block.requested_bytes = False, requested_bytes
        self.allocated_bytes += block.bytes
        self._requested_bytes += requested_bytes
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
            self.requested_at_peak_bytes = self._requested_bytes
        return block

    def free(self, block: CachedBlock) -> None:
        """Free a block, and merge it with adjacent free blocks.

        Raises:
            ValueError: The block is not in use.
        """
        if block.is_free:
            raise ValueError("the block is free already")
        block.is_free = True
        self.allocated_bytes -= block.bytes
        self._requested_bytes -= block.requested_bytes
        join_blocks(block)
        block.pool.add(block)

    def empty_cache(self) -> None:
        for pool in self._pools.values():
            self._source.release(pool)

    def reset_peaks(self) -> None:
        self.peak_allocated_bytes = self.allocated_bytes
        self.requested_at_peak_bytes = self._requested_bytes
        self.peak_reserved_bytes = self.reserved_bytes

    def blocks(self) -> list[CachedBlock]:
        return [pool.at[row[-1]] for pool in self._pools.values() for row in pool.free]

    def reserve(self, count: int) -> bool:
        """Take bytes from the device; False if it has too few."""
        if self._capacity is not None and self.reserved_bytes + count > self._capacity:
            return False
        self.reserved_bytes += count
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes
        return True

    def unreserve(self, count: int) -> None:
        self.reserved_bytes -= count

    def address_space(self, count: int) -> int:
        """Reserve a range of addresses; the device hands ranges out in order."""
        address = self._next_address
        self._next_address += -(-count // PAGE) * PAGE
        return address

    def new_block(self, address: int, count: int, pool: BlockPool) -> CachedBlock:
        self._made += 1
        return CachedBlock(address, count, pool, self._made)

    def cut_front(self, block: CachedBlock, size: int) -> CachedBlock:
        """Cut the front of a block that is in no pool into a new block; the given one is the
        rest."""
        front = self.new_block(block.address, size, block.pool)
        front.before, front.after, front.is_mapped = block.before, block, block.is_mapped
        if block.before is not None:
            block.before.after = front
        block.before = front
        block.address += size
        block.bytes -= size
        return front

    def cut_back(self, block: CachedBlock, size: int) -> CachedBlock:
        """Cut a block that is in no pool to that size; the rest becomes a new block."""
        back = self.new_block(block.address + size, block.bytes - size, block.pool)
        back.before, back.after, back.is_mapped = block, block.after, block.is_mapped
        if block.after is not None:
            block.after.before = back
        block.after = back
        block.bytes = size
        return back

    def _from_cache(self, pool: BlockPool, size: int) -> CachedBlock | None:
        """The smallest free block that is large enough; among equal ones the one made first.

        This is the order of torch 2.12; earlier versions may take the lowest address among them.
        """
        index = bisect_left(pool.free, (size, 0, 0))
        if index == len(pool.free):
            return None
        block = pool.at[pool.free[index][-1]]
        if self.settings.expandable_segments:
            # The last block of a segment can grow: it counts as large as it can become.
            for *_, address in islice(pool.free, index + 1, None):
                other = pool.at[address]
                if could_have(other) >= could_have(block):
                    break
                block = other
        limit = self.settings.max_split_bytes
        if limit is not None:
            if size < limit <= block.bytes:
                return None
            if size >= limit and block.bytes >= size + SHARED_SEGMENT:
                return None
        pool.remove(block)
        return block

    def _release_for(self, pool: BlockPool, size: int) -> bool:
        """Give back blocks too large to be split, as many as the request needs."""
        limit = self.settings.max_split_bytes
        if limit is None or self.settings.expandable_segments:
            return False
        wanted = max(size, limit)
        index = bisect_left(pool.free, (wanted, 0, 0))
        if index < len(pool.free):
            self._give_back(pool.at[pool.free[index][-1]])
            return True
        released = 0
        while released < wanted and pool.free and pool.free[-1][0] >= limit:
            block = pool.at[pool.free[-1][-1]]
            released += block.bytes
            self._give_back(block)
        return released >= wanted

    def _collect_unused(self) -> None:
        """Give back whole segments of large blocks, least recently used first."""
        assert self._capacity is not None
        threshold = int(self.settings.collect_above * self._capacity)
        if self.reserved_bytes <= threshold:
            return
        target, reclaimed = self.reserved_bytes - threshold, 0
        large = [one for (_, is_small), one in self._pools.items() if not is_small]
        whole = [
            block
            for one in large
            for *_, address in one.free
            if not (block := one.at[address]).is_split
        ]
        while reclaimed < target and whole:
            ages = [block.pool.lookups - block.since for block in whole]
            mean = sum(ages) / len(ages)
            old = [block for block, age in zip(whole, ages, strict=True) if age >= mean]
            for block in old:
                reclaimed += block.bytes
                self._give_back(block)
            whole = [block for block in whole if block not in old]

    def _give_back(self, block: CachedBlock) -> None:
        block.pool.remove(block)
        self.unreserve(block.bytes)


class SegmentModel:
    """Makes a new segment for each request that finds no block."""

    def __init__(self, device: CachingAllocator) -> None:
        self._device = device

    def block_for(self, pool: BlockPool, size: int) -> CachedBlock | None:
        """A block of at least that size in new memory, not in the pool; None if memory is
        exhausted."""
        count = segment_bytes(size)
        if not self._device.reserve(count):
            return None
        return self._device.new_block(self._device.address_space(count), count, pool)

    def release(self, pool: BlockPool) -> None:
        for block in [pool.at[address] for *_, address in pool.free]:
            if not block.is_split:
                pool.remove(block)
                self._device.unreserve(block.bytes)


class ExpandableSegments:
    """Grows one segment per pool: address space of any size, and pages on demand."""

    ADDRESS_SPACE = 2**16 * SHARED_SEGMENT

    def __init__(self, device: CachingAllocator) -> None:
        self._device = device

    def block_for(self, pool: BlockPool, size: int) -> CachedBlock | None:
        block = self._candidate(pool, size)
        if not block.is_mapped:
            mapped = self._map(block, min(block.bytes, size))
            if mapped is None:
                return None
            block = mapped
        while block.bytes < size:
            assert block.after is not None
            mapped = self._map(block.after, min(size - block.bytes, block.after.bytes))
            if mapped is None:
                return None
            block = mapped
        pool.remove(block)
        return block

    def release(self, pool: BlockPool) -> None:
        for block in [pool.at[address] for *_, address in pool.free]:
            self._unmap(block)

    def _candidate(self, pool: BlockPool, size: int) -> CachedBlock:
        for address in pool.unmapped:
            block = pool.at[address]
            if block.before is not None and block.before.is_free:
                block = block.before
            reach, reached = 0, block
            while reach < size:
                reach += reached.bytes
                if reached.after is None or not reached.after.is_free:
                    break
                reached = reached.after
            if reach >= size:
                return block
        space = self._device.address_space(self.ADDRESS_SPACE + SHARED_SEGMENT)
        start = -(-space // SHARED_SEGMENT) * SHARED_SEGMENT  # pages are counted from address 0
        block = self._device.new_block(start, self.ADDRESS_SPACE, pool)
        block.is_mapped = False
        pool.add(block)
        return block

    def _map(self, block: CachedBlock, count: int) -> CachedBlock | None:
        """Map whole pages at the front of an unmapped block, and return the free block there.

        It is merged with a free block before it. None if the device has no more memory.
        """
        page = block.pool.segment_bytes
        count = -(-count // page) * page
        if not self._device.reserve(count):
            return None
        block.pool.remove(block)
        if count < block.bytes:
            block.pool.add(self._device.cut_back(block, count))
        block.is_mapped = True
        join_blocks(block)
        block.pool.add(block)
        return block

    def _unmap(self, block: CachedBlock) -> None:
        page = block.pool.segment_bytes
        begin = -(-block.address // page) * page
        end = (block.address + block.bytes) // page * page
        if begin >= end:
            return
        block.pool.remove(block)
        if begin > block.address:
            block.pool.add(self._device.cut_front(block, begin - block.address))
        if end < block.address + block.bytes:
            block.pool.add(self._device.cut_back(block, end - block.address))
        block.is_mapped = False
        self._device.unreserve(block.bytes)
        join_blocks(block)
        block.pool.add(block)
