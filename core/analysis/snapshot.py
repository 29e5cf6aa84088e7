"""Snapshots of CUDA's caching allocator: read them without trusting them.

The form is what ``torch.cuda.memory._snapshot()`` returns and its documentation describes:
segments of blocks, and for each device a ring of events. Keys may be absent.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import numpy as np

from ..errors import DamagedFileError
from .allocations import Frame, History, Integers, Stack

GRANULE = 512
"""Bytes that the allocator rounds a request up to: kMinBlockSize in CUDACachingAllocator."""

MOVES = {"alloc": 1, "free_completed": -1}
"""Events that change what is allocated, and how."""

RESERVING = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Events that change what the allocator holds of the device, and how."""

MAX_EVENTS = 10_000_000
"""More is refused: a few bytes of pickle can stand for very long lists."""

MAX_FRAMES = 100

Size = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
Address = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Microseconds = Annotated[int, msgspec.Meta(ge=0, le=2**52)]


class _Frame(msgspec.Struct, gc=False):
    filename: str = ""
    line: int = 0
    name: str = ""


class _Event(msgspec.Struct, gc=False):
    action: str
    addr: Address = 0
    size: Size = 0
    time_us: Microseconds = 0
    frames: Any = ()


class _Block(msgspec.Struct, gc=False):
    address: Address
    size: Size
    requested_size: Size | None = None
    state: str = "inactive"


class _Segment(msgspec.Struct):
    device: int = 0
    total_size: Size = 0
    blocks: list[_Block] = []


class Snapshot(msgspec.Struct, frozen=True):
    """What the allocator knew: see the module's description."""

    segments: list[_Segment] = []
    device_traces: list[list[_Event]] = []

    @property
    def busiest_device(self) -> int:
        """The device with the most events."""
        lengths = [len(trace) for trace in self.device_traces]
        return lengths.index(max(lengths)) if lengths else 0

    def peak_reserved_bytes(self, device: int) -> int:
        """The most that the allocator held of a device, as far back as the events go."""
        at_end = sum(one.total_size for one in self.segments if one.device == device)
        held = peak = at_end
        for event in reversed(self._trace(device)):
            held -= event.size * RESERVING.get(event.action, 0)
            peak = max(peak, held)
        return peak

    def history(self, device: int) -> History:
        """The events of one device that took or gave back memory.

        Raises:
            DamagedFileError: A stack, an address or a size is not what it should be.
        """
        moves = [event for event in self._trace(device) if event.action in MOVES and event.size]
        survivors = [
            (block.address, block.size if block.requested_size is None else block.requested_size)
            for segment in self.segments
            for block in segment.blocks
            if segment.device == device and block.state != "inactive"
        ]
        stacks: dict[Stack, int] = {}
        seen: dict[tuple[int, ...], int] = {}
        try:
            stack = _column([_number(event, seen, stacks) for event in moves])
        except (TypeError, KeyError, msgspec.ValidationError) as error:
            raise DamagedFileError(f"not a memory snapshot: {error}") from error
        # The middle of the microsecond that the allocator wrote down.
        time_ns = _column([event.time_us * 1000 + 500 for event in moves])
        return History(
            time_ns=np.maximum.accumulate(time_ns),
            address=_column([event.addr for event in moves]),
            change=_column([event.size * MOVES[event.action] for event in moves]),
            stack=stack,
            stacks=list(stacks),
            survivors=survivors,
            granule=GRANULE,
        )

    def _trace(self, device: int) -> list[_Event]:
        return self.device_traces[device] if device < len(self.device_traces) else []


def _number(event: _Event, seen: dict[tuple[int, ...], int], stacks: dict[Stack, int]) -> int:
    """The number of an allocation's stack, -1 without one.

    Snapshots share their frames, so that most stacks are known by the identity of those.
    """
    if not event.frames or event.action == "free_completed":
        return -1
    frames = event.frames[:MAX_FRAMES]
    key = tuple(map(id, frames))
    if key not in seen:
        typed = msgspec.convert(frames, list[_Frame])
        stack = tuple(Frame(one.filename, one.line, one.name) for one in typed)
        seen[key] = stacks.setdefault(stack, len(stacks))
    return seen[key]


def _column(values: list[int]) -> Integers:
    return np.array(values, dtype=np.int64)


def read_snapshot(path: Path) -> Snapshot:
    """A snapshot from a file that may come from anyone.

    No global is ever looked up, so that nothing in the file can run. Memory is not limited
    here: a caller who does not know the file sets a limit for its process.

    Raises:
        DamagedFileError: Absent, truncated, hostile, or not a snapshot.
    """
    try:
        with path.open("rb") as file, _collector_off():
            raw = _PlainUnpickler(file).load()
    except Exception as error:  # A foreign pickle can raise anything.
        raise DamagedFileError(f"{path} is not a memory snapshot: {error}") from error
    return snapshot_from(raw)


def snapshot_from(raw: object) -> Snapshot:
    """The same from what torch returns.

    Raises:
        DamagedFileError: Not a snapshot.
    """
    try:
        _check_length(raw)
        with _collector_off():
            return msgspec.convert(raw, Snapshot)
    except (TypeError, KeyError, msgspec.ValidationError) as error:
        raise DamagedFileError(f"not a memory snapshot: {error}") from error


def _check_length(raw: Any) -> None:
    """Refuse lists that share their elements to stand for more than memory holds."""
    lengths = [len(trace) for trace in raw["device_traces"]]
    lengths += [len(segment["blocks"]) for segment in raw["segments"]]
    if sum(lengths) > MAX_EVENTS:
        raise TypeError(f"{sum(lengths)} events and blocks, more than {MAX_EVENTS}")


class _PlainUnpickler(pickle.Unpickler):
    """A snapshot is plain containers: any global in one is an attack."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and plain data does not")


@contextmanager
def _collector_off() -> Iterator[None]:
    """Millions of new containers and no garbage: collecting would triple the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
