"""Where the model of CUDA's caching allocator has new memory from: segments of the device."""

from __future__ import annotations

from typing import Protocol

from .blocks import SHARED_SEGMENT, Block, Pool, join, segment_bytes


class Device(Protocol):
    """What an allocator does for its segments."""

    def reserve(self, count: int) -> bool:
        """Take bytes from the device, if it has them."""

    def unreserve(self, count: int) -> None:
        """Give bytes back to the device."""

    def address_space(self, count: int) -> int:
        """Address of so many bytes that nothing else has."""

    def new_block(self, address: int, count: int, pool: Pool) -> Block:
        """A block without neighbours, the last in order."""

    def cut_front(self, block: Block, size: int) -> Block:
        """Make the front of a block that is in no pool a new one; the given one is the rest."""

    def cut_back(self, block: Block, size: int) -> Block:
        """Leave a block that is in no pool that size; what is behind it becomes a new one."""


class Source(Protocol):
    """Where memory comes from when no free block is large enough."""

    def block_for(self, pool: Pool, size: int) -> Block | None:
        """A block of at least that size with new memory, not in the pool; None without any."""

    def release(self, pool: Pool) -> None:
        """Give the pool's unused memory back."""


class Segments:
    """A segment of its own for each request that finds no block."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def block_for(self, pool: Pool, size: int) -> Block | None:
        count = segment_bytes(size)
        if not self._device.reserve(count):
            return None
        return self._device.new_block(self._device.address_space(count), count, pool)

    def release(self, pool: Pool) -> None:
        for block in [pool.at[address] for *_, address in pool.free]:
            if not block.is_split:
                pool.remove(block)
                self._device.unreserve(block.bytes)


class ExpandableSegments:
    """One segment for a pool: address space as large as any card, and pages as they are needed."""

    ADDRESS_SPACE = 2**16 * SHARED_SEGMENT

    def __init__(self, device: Device) -> None:
        self._device = device

    def block_for(self, pool: Pool, size: int) -> Block | None:
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

    def release(self, pool: Pool) -> None:
        for block in [pool.at[address] for *_, address in pool.free]:
            self._unmap(block)

    def _candidate(self, pool: Pool, size: int) -> Block:
        """The lowest free or unmapped block with room to grow to that size."""
        for address in pool.unmapped:
            block = pool.at[address]
            if block.before is not None and block.before.is_free:
                block = block.before
            room, reached = 0, block
            while room < size:
                room += reached.bytes
                if reached.after is None or not reached.after.is_free:
                    break
                reached = reached.after
            if room >= size:
                return block
        space = self._device.address_space(self.ADDRESS_SPACE + SHARED_SEGMENT)
        start = -(-space // SHARED_SEGMENT) * SHARED_SEGMENT  # pages are counted from address 0
        block = self._device.new_block(start, self.ADDRESS_SPACE, pool)
        block.is_mapped = False
        pool.add(block)
        return block

    def _map(self, block: Block, count: int) -> Block | None:
        """Put memory behind the front of an unmapped block, in whole pages; the free block there.

        It is joined with a free block before it. None where the device has no more.
        """
        page = block.pool.segment_bytes
        count = -(-count // page) * page
        if not self._device.reserve(count):
            return None
        block.pool.remove(block)
        if count < block.bytes:
            block.pool.add(self._device.cut_back(block, count))
        block.is_mapped = True
        join(block)
        block.pool.add(block)
        return block

    def _unmap(self, block: Block) -> None:
        """Take the whole pages of a free block away."""
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
        join(block)
        block.pool.add(block)
