"""Read a trace of torch.profiler, plain or gzipped: a chrome trace or a Perfetto trace."""

from __future__ import annotations

import gc
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from sysbench.core.errors import DamagedFileError, NotFoundError
from sysbench.core.trace.columns import (
    CUDA_SYNC,
    ON_DEVICE,
    PROJECTED,
    TIMED,
    Collector,
)
from sysbench.core.trace.perfetto_annotations import INTEGERS, OF_REQUESTS
from sysbench.core.trace.perfetto_packets import MEMORY_CATEGORY, PerfettoReader
from sysbench.core.trace.perfetto_stream import MAX_TRACE_BYTES, Integers
from sysbench.core.trace.protobuf_scan import WireError, is_perfetto
from sysbench.core.trace.trace_events import (
    NONE,
    Trace,
)
from sysbench.core.trace.trace_json import (
    UNREAD,
    Args,
    JsonEvent,
    Text,
    TraceOrigin,
    device_names,
    origin_of,
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
        return _read(
            path, CATEGORIES.__contains__, lambda reader: _Slices(reader).trace(), progress
        )
    collector = Collector()
    with (
        _readable(path, "chrome", lambda: (collector.seen, "events")),
        collector_off(),
        path.open("rb") as file,
    ):
        size = path.stat().st_size
        text = Text(unpacked(file), JsonEvent)
        for events in read_events(text):
            collector.add(events)
            if progress:
                progress(file.tell(), size)
        collector.devices, collector.repairs = text.devices, text.repairs
        return collector.finish()


@contextmanager
def _readable(path: Path, form: str, seen: Callable[[], tuple[int, str]]) -> Iterator[None]:
    """Raise NotFoundError or DamagedFileError, with what was ``seen`` before, for other errors."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except MemoryError as error:
        count, what = seen()
        raise DamagedFileError(f"out of memory after {count:,} {what} of {path}") from error
    except (
        *(msgspec.DecodeError, UnicodeDecodeError, EOFError, OSError, zlib.error),
        *(RecursionError, TypeError, ValueError),
    ) as error:
        count, what = seen()
        # The decoder counts bytes and events from the start of the last chunk, not of the file.
        reason = re.sub(r" \(byte \d+\)$", "", str(error))
        reason = re.sub(PLACE, lambda place: _event_words(place, count), reason)
        if isinstance(error, EOFError):
            reason = "it is truncated (copy or record it again)"
        if isinstance(error, WireError):
            reason += f", at byte {error.offset:,}"
        where = f", after {count:,} {what}" if count else ""
        raise DamagedFileError(f"{path} is not a valid {form} trace: {reason}{where}") from error


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


R = TypeVar("R")
CATEGORIES = frozenset((*TIMED, *UNREAD, PROJECTED, CUDA_SYNC, MEMORY_CATEGORY))
MAX_PARENTS = 16
EVENTS_AT_ONCE = 2**14
ORIGIN_BYTES = 2**22
"""Facts on the origin stand at the start."""


def read_perfetto_events(path: Path, categories: frozenset[str]) -> list[JsonEvent]:
    """Return the events of some categories as those of JSON, in Unix time if the trace has it."""
    return _read(
        path, categories.__contains__, lambda reader: [*_Slices(reader).events(of_requests=True)]
    )


def read_perfetto_dicts(path: Path, progress: Progress | None = None) -> Iterator[dict[str, Any]]:
    """Read all events, then yield each as the dictionary of its JSON, with arguments in `Args`."""
    events = _read(path, lambda _: True, lambda reader: _Slices(reader).events(), progress)
    fields = msgspec.structs.fields(Args)
    for event in events:
        values = ((each, getattr(event.args, each.name)) for each in fields)
        args = {each.encode_name: value for each, value in values if value != each.default}
        written = msgspec.structs.asdict(event)
        yield written | {"ts": Decimal(event.ts), "args": args}


def read_perfetto_origin(path: Path) -> TraceOrigin:
    """Return the facts of the trace's origin; without facts if there are none."""
    try:
        return _read(path, lambda _: False, _origin, limit=ORIGIN_BYTES)
    except DamagedFileError:
        return TraceOrigin()  # reading the events reports the error


def _origin(reader: PerfettoReader) -> TraceOrigin:
    facts = {key: _parsed(value) for key, value in reader.metadata.items()}
    return origin_of(facts.get("distributedInfo"), reader.clocks.realtime_ahead_ns)


def _parsed(value: object) -> Any:
    """Return the value of a text of JSON, else the value."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return value


def _read(
    path: Path,
    wanted: Callable[[str], bool],
    finish: Callable[[PerfettoReader], R],
    progress: Progress | None = None,
    limit: int = MAX_TRACE_BYTES,
) -> R:
    reader = PerfettoReader(wanted)
    with (
        _readable(path, "Perfetto", lambda: (reader.seen, "packets")),
        path.open("rb") as file,
        np.errstate(over="ignore"),
    ):
        size = path.stat().st_size

        def show() -> None:
            if progress:
                progress(file.tell(), size)

        reader.read(unpacked(file), show, limit)
        reader.clocks.check()
        return finish(reader)


class _Slices:
    """All rows of a reader in one piece, with their ends."""

    def __init__(self, reader: PerfettoReader) -> None:
        self._reader = reader
        self.columns = {name: self._joined(name) for name in ("start", "end", "name", "category")}
        end = self.columns["end"]
        open_ = np.flatnonzero(end == NONE)
        if len(open_) and reader.marks:
            time, track, row = map(np.concatenate, zip(*reader.marks, strict=True))
            ends = paired_ends(time, track, row, len(end))
            end[open_] = ends[open_]
        names = reader.texts.names
        used = np.unique(self.columns["category"]).tolist()
        self._number_of = {names[number]: number for number in used if number != NONE}
        # A slice without an end was open when the recording ended.
        self._whole = end != NONE
        self.open_count = int((~self._whole & self._of(TIMED)).sum())
        if (self._of(ON_DEVICE) & (self["track"] != NONE)).any():
            # Slices have the work of devices, which render stages then repeat.
            self._whole &= ~((self["track"] == NONE) & self._of(ON_DEVICE))

    def _joined(self, name: str) -> Integers:
        parts = self._reader.rows
        default = getattr(Args(), name, NONE)
        missing = default if isinstance(default, int) else NONE
        columns = [part.get(name, np.full(len(part["start"]), missing)) for part in parts]
        return np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)

    def __getitem__(self, name: str) -> Integers:
        if name not in self.columns:
            self.columns[name] = self._joined(name)
        return self.columns[name]

    def _of(self, categories: Any) -> NDArray[np.bool_]:
        numbers = [self._number_of[name] for name in categories if name in self._number_of]
        return np.isin(self["category"], numbers)

    def trace(self) -> Trace:
        """Return what `Collector` makes of the same events in JSON."""
        collector, reader = Collector(), self._reader
        events = self.events()
        collector.add([])  # a file may have none
        while part := list(islice(events, EVENTS_AT_ONCE)):
            collector.add(part)
        if any(map(len, (*collector.host, *collector.device))):
            collector.without_time = self.open_count
        collector.devices = device_names(_parsed(reader.metadata.get("properties")))
        return collector.finish()

    def events(self, *, of_requests: bool = False) -> Iterator[JsonEvent]:
        """Yield events, ``of_requests`` in Unix time with the arguments of memory requests only."""
        reader = self._reader
        names = [*reader.texts.names, ""]  # the last of each is for -1
        parsed = [Args()] if of_requests else [*reader.annotations.args, Args()]
        ahead_ns = reader.clocks.realtime_ahead_ns if of_requests else 0
        present = {name for part in reader.rows for name in part}
        of_args = [name for name in (OF_REQUESTS if of_requests else INTEGERS) if name in present]
        columns = ("start", "end", "name", "category", "is_instant", "args", *of_args)
        whole = np.flatnonzero(self._whole)
        for begin in range(0, len(whole), EVENTS_AT_ONCE):
            rows = whole[begin : begin + EVENTS_AT_ONCE]
            values = zip(*(self[column][rows].tolist() for column in columns), strict=True)
            for (pid, tid), (start, end, name, category, is_instant, others, *numbers) in zip(
                self._places(rows), values, strict=True
            ):
                at = start + ahead_ns
                args = parsed[-1 if of_requests else others]
                yield JsonEvent(
                    ph="i" if is_instant == 1 else "X",
                    name=names[name],
                    cat=names[category],
                    pid=pid,
                    tid=tid,
                    ts=f"{at // 1000}.{at % 1000:03d}",
                    dur=(end - start) / 1000,
                    args=replace(args, **dict(zip(of_args, numbers, strict=True))),
                )

    def _places(self, rows: Integers) -> list[tuple[int, object]]:
        place_of = self._place_of(rows)
        return [place_of[track] for track in self["track"][rows].tolist()]

    def _place_of(self, rows: Integers) -> dict[int, tuple[int, object]]:
        """Return process and thread of the rows' tracks, in order of appearance."""
        tracks = dict.fromkeys(self["track"][rows].tolist())
        uuids = [*self._reader.tracks]
        return {track: self._place(uuids[track] if track != NONE else 0) for track in tracks}

    def _place(self, uuid: int) -> tuple[int, object]:
        """Return the thread of a track, or of the track that it belongs to."""
        at, descriptors = uuid, self._reader.descriptors
        for _ in range(MAX_PARENTS):
            parent, process, thread = descriptors.get(at, (0, None, None))
            if thread is not None:
                return process or 0, thread
            if process is not None or not parent:
                return process or 0, f"track {uuid}"
            at = parent
        return 0, f"track {uuid}"


def paired_ends(time: Integers, track: Integers, row: Integers, rows: int) -> Integers:
    """Return the end of each row, or -1.

    The marks of a track are a stack if their times do not decrease. Torch writes all begins of a
    kind, then their ends in the same order: these are pairs by their order, which keeps slices
    that overlap. Other files are sorted by time.
    """
    is_end = row == PerfettoReader.IS_END
    small = track.astype(np.uint16) if int(track.max(initial=0)) < 2**16 else track
    by_track = np.argsort(small, kind="stable")  # of 16 bits, in linear time
    decreases = np.diff(time[by_track]) < 0
    if (decreases & (np.diff(track[by_track]) == 0)).any():
        ends = _block_ends(time, track, row, is_end, rows)
        if ends is not None:
            return ends
        order = np.argsort(time, kind="stable")
        time, track, row = time[order], track[order], row[order]
    ends = np.full(rows, NONE)
    opened: list[list[int]] = [[] for _ in range(int(track.max(initial=NONE)) + 1)]
    found_rows, found_times = [], []
    for at, on, mark in zip(time.tolist(), track.tolist(), row.tolist(), strict=True):
        if mark != PerfettoReader.IS_END:
            opened[on].append(mark)
        elif opened[on] and (begun := opened[on].pop()) != NONE:
            found_rows.append(begun)
            found_times.append(at)
    ends[found_rows] = found_times
    return ends


def _block_ends(
    time: Integers, track: Integers, row: Integers, is_end: NDArray[np.bool_], rows: int
) -> Integers | None:
    """Return the ends if every run of begins has a run of ends of the same tracks after it."""
    if not len(row) or is_end[0] or not is_end[-1]:
        return None
    changes = np.flatnonzero(np.diff(is_end)) + 1
    lengths = np.diff(np.r_[0, changes, len(row)])
    if (lengths[::2] != lengths[1::2]).any():
        return None
    begins, ends = np.flatnonzero(~is_end), np.flatnonzero(is_end)
    if (track[begins] != track[ends]).any() or (time[begins] > time[ends]).any():
        return None
    result = np.full(rows, NONE)
    kept = row[begins] != NONE
    result[row[begins][kept]] = time[ends][kept]
    return result
