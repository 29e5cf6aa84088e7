"""Read a trace of torch.profiler, plain or gzipped: a chrome trace or a Perfetto trace."""

from __future__ import annotations

import gc
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sysbench.core.errors import DamagedFileError, NotFoundError
from sysbench.core.trace.columns import Collector
from sysbench.core.trace.perfetto_trace import read_perfetto, read_perfetto_origin
from sysbench.core.trace.protobuf_scan import is_perfetto
from sysbench.core.trace.trace_events import Trace
from sysbench.core.trace.trace_json import (
    JsonEvent,
    Text,
    TraceOrigin,
    read_events,
    read_origin,
    unpacked,
)

HEAD_BYTES = 2**16

PLACE = re.compile(r" - at `\$(\.traceEvents)?\[(?P<index>\d+)\]\.?(?P<key>.*)`$")
"""The decoder's words for the place of a value with an unexpected type."""
Progress = Callable[[int, int], None]
"""Called with the bytes of the file read so far and its size."""


def read_trace(path: Path, progress: Progress | None = None) -> Trace:
    """Read a chrome trace, as a list or as an object, or a Perfetto trace.

    Raises NotFoundError, or DamagedFileError: no trace, truncated, or too large for memory.
    """
    if is_perfetto_file(path):
        return read_perfetto(path, progress)
    collector = Collector()
    try:
        with path.open("rb") as file, collector_off():
            size = path.stat().st_size
            text = Text(unpacked(file), JsonEvent)
            for events in read_events(text):
                collector.add(events)
                if progress:
                    progress(file.tell(), size)
            collector.devices, collector.repairs = text.devices, text.repairs
            return collector.finish()
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except MemoryError as error:
        raise DamagedFileError(
            f"out of memory after {collector.seen:,} events of {path}"
        ) from error
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
        # The decoder counts bytes and events from the start of the last chunk, not of the file.
        reason = re.sub(r" \(byte \d+\)$", "", str(error))
        reason = re.sub(PLACE, lambda place: _event_words(place, collector.seen), reason)
        if isinstance(error, EOFError):
            reason = "it is truncated (copy or record it again)"
        where = f", after {collector.seen:,} events" if collector.seen else ""
        raise DamagedFileError(f"{path} is not a valid chrome trace: {reason}{where}") from error


def _event_words(place: re.Match[str], seen: int) -> str:
    key = f" (key {place['key']})" if place["key"] else ""
    return f" in event {seen + int(place['index']) + 1:,}{key}"


def is_perfetto_file(path: Path) -> bool:
    """Return whether a file begins as a Perfetto trace; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return is_perfetto(unpacked(file).read(HEAD_BYTES))
    except (OSError, EOFError, zlib.error):
        return False


def trace_origin(path: Path) -> TraceOrigin:
    """Read the origin of a trace; without facts if there are none."""
    return read_perfetto_origin(path) if is_perfetto_file(path) else read_origin(path)


@contextmanager
def collector_off() -> Iterator[None]:
    """Turn off garbage collection, which doubles the time of decoding a million objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
