"""Chrome traces of torch.profiler, ours or anyone's, as columns of integer nanoseconds."""

from __future__ import annotations

import gc
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedFileError, NotFoundError
from .chrome_json import Args, JsonEvent, read_events
from .exact_time import nanoseconds
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


KINDS = {
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

MODULE_PREFIX = "nn.Module: "
NO_ARGS = Args()


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Events as columns of equal length.

    ``name`` and ``thread`` are indices (of `Trace.names`; threads are numbered as they
    appear), times are nanoseconds since `Trace.base_ns`, and -1 stands for "not given".
    """

    kind: NDArray[np.uint8]
    name: NDArray[np.int64]
    thread: NDArray[np.int64]
    start: Times
    end: Times
    correlation: NDArray[np.int64]
    stream: NDArray[np.int64]
    device: NDArray[np.int64]
    sequence: NDArray[np.int64]
    forward_thread: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, index: NDArray[np.integer] | NDArray[np.bool_]) -> Events:
        """Some of the events, in the order of the index."""
        return Events(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The timed events of a trace that say where time goes; the others are left out."""

    names: list[str]
    base_ns: int
    events: Events

    def host(self) -> Events:
        """Operators, annotations, modules and runtime calls."""
        return self.events.take(self.events.kind < Kind.KERNEL)

    def device(self) -> Events:
        """Kernels, copies and fills."""
        return self.events.take(self.events.kind >= Kind.KERNEL)


def read_trace(path: Path, progress: Progress | None = None) -> Trace:
    """Read a chrome trace, plain or gzip'd, as a list or as an object.

    Raises:
        NotFoundError: There is no such file, or it may not be read.
        DamagedFileError: Not a chrome trace of torch.profiler, or cut off.
    """
    columns = _Columns()
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


class _Columns:
    """Collects the columns of `Events`, chunk by chunk."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.threads: dict[object, int] = {}
        self.chunks: list[Events] = []

    def add(self, events: list[JsonEvent]) -> None:
        kept = [
            event
            for event in events
            if event.ph == "X"
            and (kind := KINDS.get(event.cat)) is not None
            and (kind != Kind.MODULE or event.name.startswith(MODULE_PREFIX))
        ]
        args = [event.args or NO_ARGS for event in kept]
        start = nanoseconds([event.ts for event in kept])
        # A profiler that was stopped inside an event may have written a negative duration.
        duration = np.maximum(nanoseconds([event.dur for event in kept]), 0)
        names, threads = self.names, self.threads
        self.chunks.append(
            Events(
                kind=np.array([KINDS[event.cat] for event in kept], dtype=np.uint8),
                name=_integers(names.setdefault(event.name, len(names)) for event in kept),
                thread=_integers(
                    threads.setdefault((event.pid, event.tid), len(threads)) for event in kept
                ),
                start=start,
                end=start + duration,
                correlation=_integers(arg.correlation for arg in args),
                stream=_integers(arg.stream for arg in args),
                device=_integers(arg.device for arg in args),
                sequence=_integers(arg.sequence for arg in args),
                forward_thread=_integers(arg.forward_thread for arg in args),
            )
        )

    def finished(self) -> Trace:
        columns = {
            field.name: np.concatenate([getattr(chunk, field.name) for chunk in self.chunks])
            for field in fields(Events)
        }
        base_ns = int(columns["start"].min(initial=2**62))
        columns["start"] -= base_ns
        columns["end"] -= base_ns
        return Trace(names=list(self.names), base_ns=base_ns, events=Events(**columns))


def _integers(values: Iterable[object]) -> NDArray[np.int64]:
    """Integers as they are; anything else, which only a foreign trace has, as -1."""
    kept = list(values)
    try:
        return np.fromiter(cast("list[int]", kept), dtype=np.int64, count=len(kept))
    except (TypeError, ValueError, OverflowError):
        return np.array(
            [value if isinstance(value, int) and abs(value) < 2**63 else -1 for value in kept],
            dtype=np.int64,
        )
