"""What a snapshot of CUDA's caching allocator tells: blocks, and one ring of events a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from sysbench.core.memory.history import History, Integers, Stack
from sysbench.core.predict.allocator_blocks import GRANULE

MOVES = {"alloc": 1, "free_completed": -1}
"""Events that change the allocated bytes, with their sign."""

RESERVING = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Events that change the reserved bytes, with their sign."""

MAX_DEVICES = 256
ALLOCATED = "active_allocated"

Size = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
Address = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Device = Annotated[int, msgspec.Meta(ge=0, lt=MAX_DEVICES)]


class PastBlock(msgspec.Struct, gc=False):
    frames: Any = None


class Block(msgspec.Struct):
    """A block; torch 2.0 wrote no address, and frames in the history of the block alone."""

    size: Size
    address: Address | None = None
    requested_size: Size | None = None
    state: str = "inactive"
    frames: Any = None
    history: list[PastBlock] = []


class Segment(msgspec.Struct):
    device: Device = 0
    address: Address = 0
    total_size: Size = 0
    allocated_size: Size | None = None
    blocks: list[Block] = []


@dataclass(frozen=True, slots=True)
class InUse:
    """A block in use when the snapshot was taken; ``stack`` is -1 where it is not known."""

    address: int
    size: int
    requested: int
    stack: int
    is_allocated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """One device's ring of events; arrays have one element an event.

    Of an event that changes no bytes, such as a request to free, nothing else is read: its address,
    size and time are 0.

    Attributes:
        move: 1 where memory was taken, -1 where it was given back, else 0.
        reserve: The same for the bytes that the allocator reserves.
        address: Start of the block or segment.
        size: Bytes as requested.
        time_us: Microseconds since the Unix epoch.
        stack: Index of the stacks, -1 where there is none.
    """

    move: Integers
    reserve: Integers
    address: Integers
    size: Integers
    time_us: Integers
    stack: Integers

    def __len__(self) -> int:
        return len(self.move)


NO_EVENTS = Events(**{name: np.zeros(0, dtype=np.int64) for name in Events.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The allocator's state: see the module's description; ``in_use`` is by device."""

    segments: list[Segment]
    events: list[Events]
    stacks: list[Stack]
    in_use: Mapping[int, list[InUse]]

    @property
    def busiest_device(self) -> int:
        """The device with the most events."""
        lengths = [len(events) for events in self.events]
        return lengths.index(max(lengths)) if lengths else 0

    @property
    def used_devices(self) -> list[int]:
        """The devices that have events or segments, in order."""
        with_events = {device for device, events in enumerate(self.events) if len(events)}
        return sorted(with_events | {segment.device for segment in self.segments})

    def end_allocated_bytes(self, device: int) -> int | None:
        """Bytes of the blocks that were allocated at the end, as ``torch.cuda.memory_allocated``
        counts them; None without segments."""
        if not any(segment.device == device for segment in self.segments):
            return None
        return sum(block.size for block in self.in_use.get(device, ()) if block.is_allocated)

    def counted_allocated_bytes(self, device: int) -> int | None:
        """The same by the counters of the segments; None where the file has none."""
        sizes = [one.allocated_size for one in self.segments if one.device == device]
        known = [size for size in sizes if size is not None]
        return sum(known) if known and len(known) == len(sizes) else None

    def peak_reserved_bytes(self, device: int) -> int:
        """Largest reserved bytes of a device since the oldest event."""
        at_end = sum(segment.total_size for segment in self.segments if segment.device == device)
        if device >= len(self.events):
            return at_end
        events = self.events[device]
        # Backwards from the end: element i is the change since the (i + 1)-th last event, so
        # that the end less the smallest is the largest reserve. ``initial`` is the end itself.
        since = np.cumsum((events.size * events.reserve)[::-1])
        return at_end - int(min(since.min(initial=0), 0))

    def history(self, device: int) -> History:
        """The events of one device that took or gave back memory."""
        in_use = self.in_use.get(device, [])
        events = self.events[device] if device < len(self.events) else NO_EVENTS
        moved = (events.move != 0) & (events.size > 0)
        # The middle of the microsecond that the allocator recorded.
        time_ns = events.time_us[moved] * 1000 + 500
        return History(
            # `History` requires times that never fall.
            time_ns=np.maximum.accumulate(time_ns),
            address=events.address[moved],
            change=(events.size * events.move)[moved],
            stack=np.where(events.move > 0, events.stack, -1)[moved],
            stacks=self.stacks,
            survivors=[(block.address, block.requested) for block in in_use],
            survivor_stacks={block.address: block.stack for block in in_use},
            end_blocks={block.address: block.size for block in in_use},
            granule=GRANULE,
        )
