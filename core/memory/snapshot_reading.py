"""Read snapshots of CUDA's caching allocator from untrusted files.

The form is that of ``torch.cuda.memory._snapshot()``, as its documentation describes it: segments
of blocks, and for each device a ring of events. Keys may be absent. A bare list of segments is what
``torch.cuda.memory_snapshot()`` returns: a state without a history.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple, NoReturn, TypeVar, cast

import msgspec
import numpy as np

from sysbench.core.errors import DamagedFileError
from sysbench.core.memory.history import (
    AnnotationMark,
    History,
    Integers,
    Labels,
    OomEvent,
    Stack,
    Stacks,
    annotation_ranges,
    pair,
    read_annotations,
    read_ring,
)
from sysbench.core.predict.allocator import GRANULE
from sysbench.core.trace.trace_reader import collector_off

T = TypeVar("T")
N = TypeVar("N", int, Integers)

MOVES = {"alloc": 1, "free_completed": -1}
RESERVING = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Events that change the allocated bytes, and the reserved ones, with their sign."""
OOM = "oom"

MAX_DEVICES = 256
ALLOCATED = "active_allocated"

Size = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
Address = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Time = Annotated[int, msgspec.Meta(ge=0, le=2**52)]
Device = Annotated[int, msgspec.Meta(ge=0, lt=MAX_DEVICES)]


class SnapshotEvent(msgspec.Struct, gc=False):
    action: str
    addr: Address = 0
    size: Size = 0
    time_us: Time = 0
    frames: Any = None
    user_metadata: Any = None


class _RefusedEvent(msgspec.Struct, gc=False):
    size: Size = 0
    device_free: Size | None = None
    time_us: Time = 0
    frames: Any = None


class _LastRefusal(NamedTuple):
    """The last of ``failures`` refused requests, after ``changes_before`` events that change the
    bytes."""

    event: _RefusedEvent
    changes_before: int
    stack: int
    failures: int


class PastBlock(msgspec.Struct, gc=False):
    frames: Any = None


class SnapshotBlock(msgspec.Struct):
    """A block. torch 2.0 wrote no address, and frames only in the block's history."""

    size: Size
    address: Address | None = None
    requested_size: Size | None = None
    state: str = "inactive"
    frames: Any = None
    history: list[PastBlock] = []
    user_metadata: Any = None


class Segment(msgspec.Struct):
    device: Device = 0
    address: Address = 0
    total_size: Size = 0
    allocated_size: Size | None = None
    segment_type: str = ""
    segment_pool_id: tuple[int, int] = (0, 0)
    is_expandable: bool = False
    blocks: list[SnapshotBlock] = []


@dataclass(frozen=True, slots=True)
class InUse:
    """A block in use when the snapshot was taken; ``stack`` and ``metadata`` are -1 if unknown.

    ``requested`` is the size of the block if the file does not have that of the request.
    """

    address: int
    size: int
    requested: int
    stack: int
    is_allocated: bool
    metadata: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEvents:
    """The events of one device's ring that change its bytes; arrays have one element an event.

    ``move`` is 1 if memory was taken, -1 if it was given back, else 0, ``reserve`` the same for
    reserved bytes. ``stack`` and ``metadata`` are indices, -1 for none; times are of the Unix
    epoch.
    """

    move: Integers
    reserve: Integers
    address: Integers
    size: Integers
    time_us: Integers
    stack: Integers
    metadata: Integers

    def __len__(self) -> int:
        return len(self.move)


NO_EVENTS = SnapshotEvents(
    **{name: np.zeros(0, dtype=np.int64) for name in SnapshotEvents.__slots__}
)


class FailedRequest(NamedTuple):
    """The last of a device's ``failures`` requests that ran out of memory; time 0 if unknown.

    Allocated and reserved bytes are of that moment, free ones None if the file does not have them.
    """

    bytes: int
    free_bytes: int | None
    allocated_bytes: int
    reserved_bytes: int
    stack: Stack
    time_us: int
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The allocator's state; ``in_use`` and ``refusals`` are by device.

    ``labels`` are texts that the user attached. Facts that the file does not have are None.
    """

    segments: list[Segment]
    events: list[SnapshotEvents]
    stacks: list[Stack]
    in_use: Mapping[int, list[InUse]]
    refusals: Mapping[int, _LastRefusal]
    labels: list[str]
    annotations: list[AnnotationMark] | None
    ring_events: int | None
    is_overflowed: bool | None

    def failed_request(self, device: int) -> FailedRequest | None:
        refusal = self.refusals.get(device)
        if refusal is None:
            return None
        events, later = self.events[device], slice(refusal.changes_before, None)
        allocated = sum(block.requested for block in self.in_use.get(device, ()))
        reserved = sum(row.total_size for row in self.segments if row.device == device)
        return FailedRequest(
            bytes=refusal.event.size,
            free_bytes=refusal.event.device_free,
            allocated_bytes=allocated - int((events.move * events.size)[later].sum()),
            reserved_bytes=reserved - int((events.reserve * events.size)[later].sum()),
            stack=self.stacks[refusal.stack] if refusal.stack >= 0 else (),
            time_us=refusal.event.time_us,
            failures=refusal.failures,
        )

    def refusal(self, device: int) -> OomEvent | None:
        """The last failed request of a device, as an event of its history."""
        failed = self.failed_request(device)
        if failed is None:
            return None
        return OomEvent(time_ns=_middle_ns(failed.time_us), bytes=failed.bytes, stack=failed.stack)

    @property
    def is_empty(self) -> bool:
        return not self.used_devices

    @property
    def default_device(self) -> int:
        """The device that ran out of memory last, else the one with the most allocated bytes."""
        if self.refusals:
            return max(self.refusals, key=lambda device: self.refusals[device].event.time_us)
        # Only several devices need the replay.
        used = self.used_devices
        return max(used, key=self._most_bytes) if len(used) > 1 else (used or [0])[0]

    def _most_bytes(self, device: int) -> tuple[int, int]:
        lifetimes = pair(self.history(device))
        return int(lifetimes.curve(lifetimes.blocks).max()), self.peak_reserved_bytes(device)

    @property
    def used_devices(self) -> list[int]:
        with_events = {device for device, events in enumerate(self.events) if len(events)}
        segments = {segment.device for segment in self.segments}
        return sorted(with_events | segments | set(self.refusals))

    def has_segments(self, device: int) -> bool:
        return any(segment.device == device for segment in self.segments)

    def refused_instant(self, device: int) -> int | None:
        """Instant of the last failed request in `history`; None without one."""
        refusal = self.refusals.get(device)
        if refusal is None:
            return None
        before, events = slice(refusal.changes_before), self.events[device]
        return int(np.count_nonzero((events.move[before] != 0) & (events.size[before] > 0)))

    def end_in_use_bytes(self, device: int) -> int | None:
        """Bytes of blocks at the end, also awaiting their free; None without segments."""
        if not self.has_segments(device):
            return None
        return sum(block.size for block in self.in_use.get(device, ()))

    def end_allocated_bytes(self, device: int) -> int | None:
        """Bytes that ``torch.cuda.memory_allocated`` counts at the end; None without segments."""
        if not self.has_segments(device):
            return None
        return sum(block.size for block in self.in_use.get(device, ()) if block.is_allocated)

    def counted_allocated_bytes(self, device: int) -> int | None:
        sizes = [row.allocated_size for row in self.segments if row.device == device]
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
        in_use = self.in_use.get(device, [])
        events = self.events[device] if device < len(self.events) else NO_EVENTS
        moved = (events.move != 0) & (events.size > 0)
        return History(
            # `History` requires times that never fall.
            time_ns=np.maximum.accumulate(_middle_ns(events.time_us[moved])),
            address=events.address[moved],
            change=(events.size * events.move)[moved],
            stack=np.where(events.move > 0, events.stack, -1)[moved],
            stacks=self.stacks,
            survivors=[(block.address, block.requested) for block in in_use],
            survivor_stacks={block.address: block.stack for block in in_use},
            end_blocks={block.address: block.size for block in in_use},
            granule=GRANULE,
            labels=self.labels,
            label=np.where(events.move > 0, events.metadata, -1)[moved],
            survivor_labels={block.address: block.metadata for block in in_use},
            ranges=annotation_ranges(self.annotations or (), device),
        )


def _middle_ns(time_us: N) -> N:
    """The middle of the microsecond that the allocator recorded."""
    return time_us * 1000 + 500


def trace_of(snapshot: Mapping[str, Any], device: int) -> list[dict[str, Any]]:
    traces = snapshot.get("device_traces", [])
    return traces[device] if device < len(traces) else []


def convert_own(value: object, kind: type[T]) -> T:
    """Convert a part of a snapshot of this process; DamagedFileError if torch changed its form."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise DamagedFileError(f"not a memory snapshot: {error}") from error


def segments_in(snapshot: Mapping[str, Any], device: int) -> list[Segment]:
    """The segments of one device in a snapshot of this process; raises as `convert_own`."""
    segments = convert_own(snapshot.get("segments"), list[Segment])
    return [segment for segment in segments if segment.device == device]


MAX_EVENTS = 10_000_000
"""Longer files are refused: a few bytes of pickle can represent very long lists."""

GZIP = b"\x1f\x8b"
READ_BYTES = 2**20

Progress = Callable[[int, int], None]
"""Called with the number of bytes read and the size of the file."""


def read_snapshot(path: Path, progress: Progress | None = None) -> Snapshot:
    """Read a snapshot from an untrusted file; raises DamagedFileError.

    No global is ever looked up, so nothing in the file can run. Memory is not limited here: callers
    with untrusted files set a limit for their process.
    """
    with collector_off():
        try:
            with BufferedReader(_WatchedFile(path, progress), READ_BYTES) as file:
                is_packed = file.peek(len(GZIP))[: len(GZIP)] == GZIP
                content = cast(BinaryIO, gzip.GzipFile(fileobj=file) if is_packed else file)
                raw = _PlainUnpickler(content).load()
        except Exception as error:  # an untrusted pickle can raise anything.
            raise DamagedFileError(f"{path} is not a memory snapshot: {error}") from error
        return _converted(raw)


def snapshot_from(raw: object) -> Snapshot:
    """Convert torch's own structure without changing it; raises DamagedFileError."""
    with collector_off():
        return _converted(raw)


def _converted(raw: Any) -> Snapshot:
    try:
        content = _content_of(raw)
        stacks, labels = Stacks(), Labels()
        segments = msgspec.convert(content["segments"], list[Segment])
        traces = [_events(trace, stacks, labels) for trace in content["device_traces"]]
        in_use = _in_use(segments, stacks, labels)
        refusals = {
            device: refusal
            for device, trace in enumerate(content["device_traces"])
            if (refusal := _last_refusal(trace, stacks)) is not None
        }
        ring_events, is_overflowed = read_ring(content)
        return Snapshot(
            segments=segments,
            events=traces,
            stacks=stacks.distinct,
            in_use=in_use,
            refusals=refusals,
            labels=list(labels.numbers),
            annotations=read_annotations(content),
            ring_events=ring_events,
            is_overflowed=is_overflowed,
        )
    except (
        *(TypeError, KeyError, IndexError, AttributeError, OverflowError, ValueError),
        *(RecursionError, msgspec.ValidationError),
    ) as error:
        raise DamagedFileError(f"not a memory snapshot: {error}") from error


NOTHING_RESERVED = "the process had reserved no GPU memory"


def _content_of(raw: Any) -> Mapping[str, Any]:
    """The snapshot's dictionary, with absent traces as none; TypeError if its form is another."""
    if not raw and isinstance(raw, list):
        raise TypeError(f"the list of segments is empty: {NOTHING_RESERVED}")
    if isinstance(raw, list):
        if not all(isinstance(row, dict) and "blocks" in row for row in raw):
            raise TypeError("it is a list, but not of segments with blocks")
        raw = {"segments": raw}
    if not isinstance(raw, dict):
        raise TypeError(f"it contains a {type(raw).__name__} and not a dictionary")
    if not {"segments", "device_traces"} & raw.keys():
        raise TypeError("it has neither segments nor device_traces")
    if "device_traces" not in raw and not raw["segments"]:
        raise TypeError(f"it has no device_traces, and its segments are empty: {NOTHING_RESERVED}")
    content = {"segments": [], "device_traces": [], **raw}
    _check_form(content)
    return content


def _in_use(segments: list[Segment], stacks: Stacks, labels: Labels) -> dict[int, list[InUse]]:
    found: dict[int, list[InUse]] = {}
    for segment in segments:
        end = segment.address
        for block in segment.blocks:
            address = end if block.address is None else block.address
            end = address + block.size
            if block.state == "inactive":
                continue
            frames = block.frames or (block.history[-1].frames if block.history else None)
            found.setdefault(segment.device, []).append(
                InUse(
                    address=address,
                    size=block.size,
                    requested=block.size if block.requested_size is None else block.requested_size,
                    stack=stacks.number(frames),
                    is_allocated=block.state == ALLOCATED,
                    metadata=labels.number(block.user_metadata),
                )
            )
    return found


def _last_refusal(trace: list[dict[str, Any]], stacks: Stacks) -> _LastRefusal | None:
    places = [place for place, row in enumerate(trace) if row["action"] == OOM]
    if not places:
        return None
    event = msgspec.convert(trace[places[-1]], _RefusedEvent)
    before = sum(_is_change(row) for row in trace[: places[-1]])
    return _LastRefusal(event, before, stacks.number(event.frames), len(places))


def _is_change(row: dict[str, Any]) -> bool:
    return row["action"] in MOVES or row["action"] in RESERVING


def _events(trace: list[dict[str, Any]], stacks: Stacks, labels: Labels) -> SnapshotEvents:
    changes = [*filter(_is_change, trace)]
    events = msgspec.convert(changes, list[SnapshotEvent])

    def column(values: Iterable[int]) -> Integers:
        return np.fromiter(values, np.int64, len(events))

    moves = [MOVES.get(event.action, 0) for event in events]
    return SnapshotEvents(
        move=column(moves),
        reserve=column(RESERVING.get(event.action, 0) for event in events),
        address=column(event.addr for event in events),
        size=column(event.size for event in events),
        time_us=column(event.time_us for event in events),
        stack=column(
            stacks.number(event.frames) if move > 0 else -1
            for event, move in zip(events, moves, strict=True)
        ),
        metadata=column(labels.number(event.user_metadata) for event in events),
    )


def _check_form(raw: Any) -> None:
    """Refuse traces that are not lists, and lists too long, which can share elements in a small
    file."""
    if len(raw["device_traces"]) > MAX_DEVICES:
        raise TypeError(f"more than {MAX_DEVICES} devices")
    for trace in raw["device_traces"]:
        if not isinstance(trace, list):
            raise TypeError(f"a trace is a list, not {type(trace).__name__}")
    lengths = [len(trace) for trace in raw["device_traces"]]
    lengths += [len(segment["blocks"]) for segment in raw["segments"]]
    if sum(lengths) > MAX_EVENTS:
        raise TypeError(f"{sum(lengths)} events and blocks, more than {MAX_EVENTS}")


class _WatchedFile(FileIO):
    def __init__(self, path: Path, progress: Progress | None) -> None:
        super().__init__(path)
        self._progress = progress
        self._size = path.stat().st_size

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer)
        if self._progress:
            self._progress(self.tell(), self._size)
        return count


class _PlainUnpickler(pickle.Unpickler):
    """Refuses every global: a snapshot is plain containers, and any global in it is an attack."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which plain data never does")
