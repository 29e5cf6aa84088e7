"""A Perfetto trace as the columns that the JSON of the same events gives."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from sysbench.core.errors import DamagedFileError, NotFoundError
from sysbench.core.trace.columns import (
    CUDA_SYNC,
    NAMELESS,
    NUMBERED,
    OF_WAITS,
    ON_DEVICE,
    ON_HOST,
    PROJECTED,
    PYTHON,
    TIMED,
    Collector,
    is_incomplete,
    is_own_function,
    launch_name,
)
from sysbench.core.trace.perfetto_annotations import INTEGERS, OF_REQUESTS
from sysbench.core.trace.perfetto_packets import MEMORY_CATEGORY, PerfettoReader
from sysbench.core.trace.perfetto_stream import MAX_TRACE_BYTES
from sysbench.core.trace.protobuf_fields import Integers
from sysbench.core.trace.protobuf_scan import WireError
from sysbench.core.trace.trace_events import (
    MODULE_PREFIX,
    NONE,
    PROCESS_SHIFT,
    DeviceEvents,
    HostEvents,
    Kind,
    NumberedCall,
    Ranges,
    Trace,
)
from sysbench.core.trace.trace_json import (
    UNREAD,
    Args,
    JsonEvent,
    TraceOrigin,
    device_names,
    origin_of,
    unpacked,
)

R = TypeVar("R")
Progress = Callable[[int, int], None]
CATEGORIES = frozenset((*TIMED, *UNREAD, PROJECTED, CUDA_SYNC, MEMORY_CATEGORY))
MAX_PARENTS = 16
ORIGIN_BYTES = 2**22
"""Facts about the origin are within these first bytes."""


def read_perfetto(path: Path, progress: Progress | None = None) -> Trace:
    """Read a trace, plain or gzipped; raises as `read_trace`."""
    return _read(path, CATEGORIES.__contains__, lambda reader: _Slices(reader).trace(), progress)


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
    try:
        with path.open("rb") as file, np.errstate(over="ignore"):
            size = path.stat().st_size

            def show() -> None:
                if progress:
                    progress(file.tell(), size)

            reader.read(unpacked(file), show, limit)
            reader.clocks.check()
            return finish(reader)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except MemoryError as error:
        raise DamagedFileError(f"out of memory after {reader.seen:,} packets of {path}") from error
    except WireError as error:
        raise DamagedFileError(
            f"{path} is not a valid Perfetto trace: {error}, at byte {error.offset:,}"
            f"{_after(reader)}"
        ) from error
    except (EOFError, OSError, zlib.error, ValueError) as error:
        reason = str(error)
        if isinstance(error, EOFError):
            reason = "it is truncated (copy or record it again)"
        raise DamagedFileError(
            f"{path} is not a valid Perfetto trace: {reason}{_after(reader)}"
        ) from error


def _after(reader: PerfettoReader) -> str:
    return f", after {reader.seen:,} packets" if reader.seen else ""


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
        collector.seen = reader.seen
        timed = self._whole & (self["is_instant"] != 1)
        collector.has_requests = bool(self._of((MEMORY_CATEGORY,)).any())
        unread = np.flatnonzero(self._of(UNREAD) & timed)
        categories = [reader.texts.names[number] for number in self["category"][unread].tolist()]
        for category, (process, _) in zip(categories, self._places(unread), strict=True):
            collector.unread.add([JsonEvent(ph="X", cat=category, pid=process)])
        is_module = self._fits(lambda name: name.startswith(MODULE_PREFIX))
        is_function = self._of((PYTHON,))
        host = np.flatnonzero(timed & self._of(ON_HOST) & (~is_function | is_module))
        device = np.flatnonzero(timed & self._of(ON_DEVICE))
        kind_of = {
            self._number_of[name]: kind for name, kind in TIMED.items() if name in self._number_of
        }
        kinds = np.full(max([*kind_of, 0]) + 1, NONE)
        kinds[list(kind_of)] = list(kind_of.values())
        collector.unread.host_processes.update(pid for pid, _ in self._place_of(host).values())
        if len(host) or len(device):
            collector.without_time = self.open_count
        names = self._launch_names(host)
        args = _ArgsColumns(collector, reader.annotations.args)
        collector.host.append(
            HostEvents(
                kind=kinds[self["category"][host]],
                name=self._names(collector, names[host]),
                thread=self._threads(collector, host),
                start=self["start"][host],
                end=self["end"][host],
                correlation=self["correlation"][host],
                sequence=self["sequence"][host],
                operands=args.operands(self["args"][host]),
            )
        )
        collector.device.append(
            DeviceEvents(
                kind=kinds[self["category"][device]],
                name=self._names(collector, names[device]),
                device=self["device"][device],
                stream=self["stream"][device],
                start=self["start"][device],
                end=self["end"][device],
                correlation=self["correlation"][device],
                collective=args.collectives(self["args"][device]),
                bytes=self["copied"][device],
            )
        )
        for part, on_device in ((host, False), (device, True)):
            unlinked = part[
                (self["correlation"][part] == NONE)
                & (kinds[self["category"][part]] >= Kind.RUNTIME)
            ]
            external, start = self["external"][unlinked].tolist(), self["start"][unlinked]
            collector.add_unlinked(external, start, on_device=on_device)
        waits = np.flatnonzero(timed & self._of((CUDA_SYNC,)))
        columns = (self[name][waits] for name in OF_WAITS)
        collector.add_waits(args.of(self["args"][waits]), self["start"][waits], *columns)
        kernels = args.kernels(self["args"][host])
        for event in np.flatnonzero(kernels != NONE).tolist():
            correlation = int(self["correlation"][host[event]])
            collector.kernel_names[correlation] = int(kernels[event])
        functions = np.flatnonzero(timed & is_function & self._fits(is_own_function))
        collector.functions.append(
            self._ranges(collector, functions, self._threads(collector, functions))
        )
        projected = np.flatnonzero(timed & self._of((PROJECTED,)))
        collector.projected.append(self._ranges(collector, projected, self["device"][projected]))
        calls = host[self._fits(NUMBERED.__eq__)[host]]
        collector.incomplete_calls = sum(map(is_incomplete, args.of(self["args"][calls])))
        numbered = calls[self["position"][calls] >= 0]
        collector.numbered += map(
            NumberedCall._make,
            zip(
                *(self[name][numbered].tolist() for name in ("start", "end", "position")),
                strict=True,
            ),
        )
        collector.devices = device_names(_parsed(reader.metadata.get("properties")))
        return collector.finish()

    def events(self, *, of_requests: bool = False) -> Iterator[JsonEvent]:
        """Yield events, ``of_requests`` in Unix time with the arguments of memory requests only."""
        names, rows = self._reader.texts.names, np.flatnonzero(self._whole)
        ahead_ns = self._reader.clocks.realtime_ahead_ns if of_requests else 0
        of_args = OF_REQUESTS if of_requests else INTEGERS
        columns = ("start", "end", "name", "category", "is_instant", "args", *of_args)
        parsed = [*self._reader.annotations.args, Args()]  # the last is for -1
        for start, end, name, category, is_instant, others, (pid, tid), *values in zip(
            *(self[column][rows].tolist() for column in columns[:6]),
            self._places(rows),
            *(self[column][rows].tolist() for column in of_args),
            strict=True,
        ):
            at = start + ahead_ns
            args = dict(zip(of_args, values, strict=True))
            yield JsonEvent(
                ph="i" if is_instant == 1 else "X",
                name=names[name] if name != NONE else "",
                cat=names[category],
                pid=pid,
                tid=tid,
                ts=f"{at // 1000}.{at % 1000:03d}",
                dur=(end - start) / 1000,
                args=Args(**args) if of_requests else replace(parsed[others], **args),
            )

    def _fits(self, fits: Callable[[str], object]) -> NDArray[np.bool_]:
        used = np.unique(self["name"])
        flags = np.zeros(len(self._reader.texts.names) + 1, dtype=np.bool_)  # the last is for -1
        for number in used[used != NONE].tolist():
            flags[number] = bool(fits(self._reader.texts.names[number]))
        return flags[self["name"]]

    def _launch_names(self, host: Integers) -> Integers:
        """Name the launches that kineto has no name for."""
        names, reader = self["name"], self._reader
        nameless = host[self._fits(NAMELESS.__eq__)[host]]
        if len(nameless):
            names = names.copy()
            for row in nameless.tolist():
                category = reader.texts.names[int(self["category"][row])]
                name = launch_name(NAMELESS, category, Args(cbid=int(self["cbid"][row])))
                names[row] = reader.texts.number(name)
        return names

    def _names(self, collector: Collector, names: Integers) -> Integers:
        used, first, index = np.unique(names, return_index=True, return_inverse=True)
        numbers = np.empty(len(used), dtype=np.int64)
        for place in np.argsort(first).tolist():  # as they appear
            number = int(used[place])
            numbers[place] = collector.names[
                "" if number == NONE else self._reader.texts.names[number]
            ]
        return numbers[index]

    def _ranges(self, collector: Collector, rows: Integers, thread: Integers) -> Ranges:
        return Ranges(
            name=self._names(collector, self["name"][rows]),
            thread=thread,
            start=self["start"][rows],
            end=self["end"][rows],
        )

    def _threads(self, collector: Collector, rows: Integers) -> Integers:
        places = {
            track: collector.processes[pid] << PROCESS_SHIFT | collector.threads[tid]
            for track, (pid, tid) in self._place_of(rows).items()
        }
        table = np.zeros(len(self._reader.tracks) + 1, dtype=np.int64)
        table[list(places)] = list(places.values())
        return table[self["track"][rows]]

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


class _ArgsColumns:
    """Columns of what distinct arguments say; each is parsed once."""

    def __init__(self, collector: Collector, args: list[Args]) -> None:
        self._collector, self._args = collector, args

    def _column(self, numbers: Integers, of: Callable[[list[Args]], Integers]) -> Integers:
        used, index = np.unique(numbers, return_inverse=True)
        return of(self.of(used))[index] if len(used) else np.zeros(0, dtype=np.int64)

    def of(self, numbers: Integers) -> list[Args]:
        return [self._args[number] if number != NONE else Args() for number in numbers.tolist()]

    def operands(self, numbers: Integers) -> Integers:
        return self._column(numbers, self._collector.operands_of)

    def collectives(self, numbers: Integers) -> Integers:
        return self._column(numbers, self._collector.collectives_of)

    def kernels(self, numbers: Integers) -> Integers:
        """Return the numbers of the kernels that launches name, or -1."""

        def named(args: list[Args]) -> Integers:
            names = [arg.kernel for arg in args]
            return np.array(
                [
                    self._collector.names[name] if name and isinstance(name, str) else NONE
                    for name in names
                ],
                dtype=np.int64,
            )

        return self._column(numbers, named)


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
