"""Reads chrome traces of torch.profiler, ours or anyone's, plain or gzip'd."""

from __future__ import annotations

import gc
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedFileError, NotFoundError
from .chrome_json import Args, JsonEvent, read_events
from .exact_time import nanoseconds
from .intervals import Times
from .trace_events import MODULE_PREFIX, DeviceEvents, HostEvents, Kind, Trace

Progress = Callable[[int, int], None]
"""Told the bytes of the file read so far, and all of them."""

KIND_OF = {
    "cpu_op": Kind.OPERATOR,
    "Operator": Kind.OPERATOR,
    "user_annotation": Kind.ANNOTATION,
    "python_function": Kind.MODULE,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "xpu_driver": Kind.RUNTIME,
    "Runtime": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "Memcpy": Kind.COPY,
    "gpu_memset": Kind.FILL,
    "Memset": Kind.FILL,
}
"""By the event's ``cat``; the capitalised ones are of torch before 2.0."""
KINDS = {category: int(kind) for category, kind in KIND_OF.items()}

AnyColumns = TypeVar("AnyColumns", HostEvents, DeviceEvents)
NO_ARGS = Args()
LONGEST_US = 1e12
NO_KIND = len(Kind)
KERNEL, MODULE = int(Kind.KERNEL), int(Kind.MODULE)


def read_trace(path: Path, progress: Progress | None = None) -> Trace:
    """Read a chrome trace, plain or gzip'd, as a list or as an object.

    Raises:
        NotFoundError: There is no such file, or it may not be read.
        DamagedFileError: Not a chrome trace of torch.profiler, or cut off.
    """
    collector = _Collector()
    try:
        with path.open("rb") as file, _without_garbage_collection():
            for events in read_events(_opened(file)):
                collector.add(events)
                if progress:
                    progress(file.tell(), path.stat().st_size)
        return collector.finished()
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        EOFError,
        gzip.BadGzipFile,
        zlib.error,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        # The decoder counts bytes and events from the last chunk's begin.
        reason = re.sub(r" \(byte \d+\)$", "", str(error))
        raise DamagedFileError(
            f"{path} is not a whole chrome trace: {reason}, after {collector.seen:,} events"
        ) from error


def _opened(file: BinaryIO) -> BinaryIO:
    is_gzip = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return cast(BinaryIO, gzip.open(file)) if is_gzip else file


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Decoding makes a million objects and no cycle: looking for garbage doubles its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Numbers(dict[Any, int]):
    """Numbers values in the order in which they appear."""

    def __missing__(self, value: object) -> int:
        number = self[value] = len(self)
        return number

    def of(self, values: list[Any]) -> NDArray[np.int64]:
        return np.fromiter(map(self.__getitem__, values), dtype=np.int64, count=len(values))


class _Collector:
    """Collects the columns of a `Trace`, chunk by chunk."""

    def __init__(self) -> None:
        self.names = _Numbers()
        self.threads = _Numbers()
        self.host: list[HostEvents] = []
        self.device: list[DeviceEvents] = []
        self.seen = 0

    def add(self, events: list[JsonEvent]) -> None:
        self.seen += len(events)
        kinds = [KINDS.get(event.cat, NO_KIND) for event in events]
        self._add_host(
            [
                event
                for event, kind in zip(events, kinds, strict=True)
                if kind < KERNEL
                and event.ph == "X"
                and (kind != MODULE or event.name.startswith(MODULE_PREFIX))
            ]
        )
        self._add_device(
            [
                event
                for event, kind in zip(events, kinds, strict=True)
                if KERNEL <= kind < NO_KIND and event.ph == "X"
            ]
        )

    def _add_host(self, events: list[JsonEvent]) -> None:
        args = [event.args or NO_ARGS for event in events]
        start = nanoseconds([event.ts for event in events])
        self.host.append(
            HostEvents(
                kind=_integers([KINDS[event.cat] for event in events]),
                name=self.names.of([event.name for event in events]),
                thread=self.threads.of([(event.pid, event.tid) for event in events]),
                start=start,
                end=start + _durations([event.dur for event in events]),
                correlation=_integers([arg.correlation for arg in args]),
                sequence=_integers([arg.sequence for arg in args]),
            )
        )

    def _add_device(self, events: list[JsonEvent]) -> None:
        args = [event.args or NO_ARGS for event in events]
        start = nanoseconds([event.ts for event in events])
        self.device.append(
            DeviceEvents(
                kind=_integers([KINDS[event.cat] for event in events]),
                name=self.names.of([event.name for event in events]),
                device=_integers([arg.device for arg in args]),
                start=start,
                end=start + _durations([event.dur for event in events]),
                correlation=_integers([arg.correlation for arg in args]),
            )
        )

    def finished(self) -> Trace:
        host, device = _joined(self.host), _joined(self.device)
        starts = [int(events.start.min()) for events in (host, device) if len(events)]
        base_ns = min(starts, default=0)
        for events in (host, device):
            events.start[:] -= base_ns
            events.end[:] -= base_ns
        return Trace(names=list(self.names), base_ns=base_ns, host=host, device=device)


def _joined(chunks: list[AnyColumns]) -> AnyColumns:
    kind = type(chunks[0])
    names = kind.__slots__
    return kind(**{name: np.concatenate([getattr(one, name) for one in chunks]) for name in names})


def _durations(values: list[float]) -> Times:
    """Microseconds to nanoseconds; a float holds them exactly.

    Raises:
        ValueError: Longer than eleven days.
    """
    # A profiler that was stopped inside an event may have written a negative duration.
    microseconds = np.maximum(np.array(values, dtype=np.float64), 0)
    if microseconds.max(initial=0) > LONGEST_US:
        raise ValueError("a duration is out of range")
    return np.asarray(np.rint(microseconds * 1000), dtype=np.int64)


def _integers(values: list[Any]) -> NDArray[np.int64]:
    """Integers as they are; anything else, which only a foreign trace has, as -1."""
    try:
        return np.fromiter(values, dtype=np.int64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        known = (value if isinstance(value, int) and abs(value) < 2**63 else -1 for value in values)
        return np.fromiter(known, dtype=np.int64, count=len(values))
