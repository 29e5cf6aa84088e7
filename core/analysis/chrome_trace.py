"""Chrome traces of torch.profiler, ours or anyone's, as columns of integer nanoseconds."""

from __future__ import annotations

import gc
import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedFileError, NotFoundError
from .chrome_json import Args, JsonEvent, read_events
from .exact_time import LATEST_US, nanoseconds
from .intervals import Times

Progress = Callable[[int, int], None]
"""Told the bytes of the file read so far, and all of them."""


class Kind(IntEnum):
    """What an event of a trace is. Kinds from KERNEL on run on a device."""

    OPERATOR = 0
    ANNOTATION = 1
    MODULE = 2
    RUNTIME = 3
    KERNEL = 4
    COPY = 5
    FILL = 6


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

MODULE_PREFIX = "nn.Module: "
NO_ARGS = Args()
NO_KIND = len(Kind)
KERNEL, MODULE = int(Kind.KERNEL), int(Kind.MODULE)


class Columns:
    """Events as columns of equal length: what the dataclasses below have in common."""

    __slots__: tuple[str, ...] = ()
    kind: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, index: NDArray[np.integer] | NDArray[np.bool_]) -> Self:
        """Some of the events, in the order of the index."""
        return type(self)(**{name: getattr(self, name)[index] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvents(Columns):
    """Operators, annotations, modules and runtime calls.

    ``name`` is an index of `Trace.names`, threads are numbered as they appear, times are
    nanoseconds since `Trace.base_ns`. ``correlation`` is what a runtime call shares with
    the work that it launched, ``sequence`` the number of the autograd node that an operator
    makes, or that runs; -1 where there is none.
    """

    kind: NDArray[np.int64]
    name: NDArray[np.int64]
    thread: NDArray[np.int64]
    start: Times
    end: Times
    correlation: NDArray[np.int64]
    sequence: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvents(Columns):
    """Kernels, copies and fills; columns as in `HostEvents`."""

    kind: NDArray[np.int64]
    name: NDArray[np.int64]
    device: NDArray[np.int64]
    start: Times
    end: Times
    correlation: NDArray[np.int64]


AnyColumns = TypeVar("AnyColumns", HostEvents, DeviceEvents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The timed events of a trace that say where time goes; the others are left out."""

    names: list[str]
    base_ns: int
    host: HostEvents
    device: DeviceEvents


def read_trace(path: Path, progress: Progress | None = None) -> Trace:
    """Read a chrome trace, plain or gzip'd, as a list or as an object.

    Raises:
        NotFoundError: There is no such file, or it may not be read.
        DamagedFileError: Not a chrome trace of torch.profiler, or cut off.
    """
    columns = _Collector()
    try:
        with path.open("rb") as file, _collector_paused():
            for events in read_events(_opened(file)):
                columns.add(events)
                if progress:
                    progress(file.tell(), path.stat().st_size)
        return columns.finished()
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        EOFError,
        OSError,
        zlib.error,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise DamagedFileError(f"{path} is not a whole chrome trace: {error}") from error


def _opened(file: BinaryIO) -> BinaryIO:
    is_gzip = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return cast(BinaryIO, gzip.open(file)) if is_gzip else file


@contextmanager
def _collector_paused() -> Iterator[None]:
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

    def add(self, events: list[JsonEvent]) -> None:
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
    """Microseconds to nanoseconds. A float is exact enough for what is shorter than weeks.

    Raises:
        ValueError: Longer than 285 years.
    """
    # A profiler that was stopped inside an event may have written a negative duration.
    microseconds = np.maximum(np.array(values, dtype=np.float64), 0)
    if microseconds.max(initial=0) > LATEST_US:
        raise ValueError("a duration is out of range")
    return np.asarray(np.rint(microseconds * 1000), dtype=np.int64)


def _integers(values: list[Any]) -> NDArray[np.int64]:
    """Integers as they are; anything else, which only a foreign trace has, as -1."""
    try:
        return np.fromiter(values, dtype=np.int64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        known = (value if isinstance(value, int) and abs(value) < 2**63 else -1 for value in values)
        return np.fromiter(known, dtype=np.int64, count=len(values))
