"""Events of a Perfetto trace (``.pftrace``) as columns.

The file is a stream of packets. A sequence of packets numbers its texts before it uses the numbers,
and forgets them where it clears its state: a scope is the time between. The numbers of fields are
those of the public ``protos/perfetto/trace``.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BufferedIOBase

import numpy as np
from numpy.typing import NDArray

from sysbench.core.trace.perfetto_annotations import (
    ATTRIBUTES,
    COUNTS,
    INTEGERS,
    MAX_DEPTH,
    NUMBER_OF_KEY,
    OF_REQUESTS,
    Annotations,
    Interned,
    Texts,
    pair_of_texts,
    whole_number,
)
from sysbench.core.trace.perfetto_stream import (
    MAX_TRACE_BYTES,
    Buffer,
    Fields,
    Integers,
    PerfettoClocks,
    read_packets,
)
from sysbench.core.trace.protobuf_scan import BYTES, FIXED64, VARINT, tag_of
from sysbench.core.trace.trace_events import NONE

MAX_CHARACTERS = 2**28
MAX_ROWS, MAX_PACKETS = 2**25, 2**26
MAX_SCOPES = MAX_TRACKS = 2**20

TIMESTAMP, SEQUENCE, FLAGS, CLOCK, CLEARED = (tag_of(n, VARINT) for n in (8, 10, 13, 58, 41))
EVENT, DESCRIPTOR, INTERNED, DEFAULTS = (tag_of(n, BYTES) for n in (11, 60, 12, 59))
SNAPSHOT, STAGE, ZSTD = (tag_of(n, BYTES) for n in (6, 53, 133))
STATE = (DESCRIPTOR, INTERNED, DEFAULTS, ZSTD)

TYPE, TRACK, NAME_IID, CATEGORY_IID = (tag_of(n, VARINT) for n in (9, 11, 10, 3))
NAME, CATEGORY, ANNOTATION, LEGACY = (tag_of(n, BYTES) for n in (23, 22, 4, 6))
LINKS = (
    *(tag_of(36, VARINT), tag_of(47, FIXED64), tag_of(42, VARINT), tag_of(48, FIXED64)),
    tag_of(52, VARINT),
)
"""Flows, flows that end here, and the correlation id: what links a launch to its work, if no
annotation does. The last one counts."""
BEGIN, END, INSTANT = 1, 2, 3
COMPLETE = 5
"""Our number for a slice with its length, which Perfetto has in ``LegacyEvent`` only."""
LEGACY_PHASE, LEGACY_US = tag_of(2, VARINT), tag_of(3, VARINT)
LEGACY_TYPES = {"B": BEGIN, "E": END, "X": COMPLETE, "i": INSTANT, "I": INSTANT, "n": INSTANT}

EVENT_CATEGORIES, EVENT_NAMES, KEYS = (tag_of(n, BYTES) for n in (1, 2, 3))
SPECIFICATIONS, TEXTS, KERNELS = (tag_of(n, BYTES) for n in (24, 29, 1000))
DEMANGLED = tag_of(3, BYTES)

DURATION, STAGE_IID, QUEUE_IID, GPU = (tag_of(n, VARINT) for n in (2, 14, 13, 11))
KERNEL_IID, STAGE_NAME_IID = tag_of(19, VARINT), tag_of(20, VARINT)
STAGE_NAME, EXTRA = tag_of(17, BYTES), tag_of(6, BYTES)
STAGE_CATEGORIES = {
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "annotation": "gpu_user_annotation",
}
"""By the lower-case name of the stage, as torch writes it; other stages are no events of torch."""

METADATA = ("trace_metadata", "device_properties")
"""Names of instant events whose annotations describe the trace."""
MEMORY_CATEGORY = "cpu_instant_event"


class PerfettoReader:
    """Reads packets into columns of events, whose names and arguments are numbers.

    ``rows`` has parts of columns: ``start``, ``end`` (-1 of a slice whose end is a mark), ``name``,
    ``category``, ``track``, ``is_instant``, ``args`` and those of `INTEGERS`. ``marks`` are begins
    and ends of slices: time, track, and the begin's row, `NO_ROW` if its category is empty, or
    `IS_END`. ``tracks`` numbers uuids, ``descriptors`` has parent, process and thread of each.
    """

    NO_ROW, IS_END = -1, -2

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self.texts = Texts(wanted)
        self.annotations = Annotations(self.texts)
        self.rows: list[dict[str, Integers]] = []
        self.marks: list[tuple[Integers, Integers, Integers]] = []
        self.tracks: dict[int, int] = {}
        self.descriptors: dict[int, tuple[int, int | None, int | None]] = {}
        self.metadata: dict[str, object] = {}
        self.clocks = PerfettoClocks()
        self.seen = self._row_count = 0
        self._scope_of: dict[int, int] = {}
        self._scopes = 0
        self._default_tracks: dict[int, int] = {}
        self._names, self._categories = Interned(), Interned()
        self._stages, self._kernels = Interned(), Interned()

    def read(
        self, file: BufferedIOBase, progress: Callable[[], None], limit: int = MAX_TRACE_BYTES
    ) -> None:
        """Read packets to the end of the file, or of at least its first ``limit`` bytes.

        Raises WireError if it is damaged or truncated, ValueError if it has more than a real trace.
        """
        for buffer, packets in read_packets(file, limit):
            self._add(buffer, packets)
            if self.seen > MAX_PACKETS:
                raise ValueError(f"it has more than {MAX_PACKETS:,} packets")
            progress()

    def _add(self, buffer: Buffer, packets: Fields) -> None:
        self.seen += packets.messages
        sequence = packets.numbers(SEQUENCE, 0)
        cleared = (packets.numbers(FLAGS, 0) & 1 == 1) | (packets.numbers(CLEARED, 0) != 0)
        scope = self._scopes_of(sequence, cleared)
        order = np.flatnonzero(np.isin(packets.tag, STATE))
        for field in order[np.argsort(packets.owner[order], kind="stable")].tolist():
            owner = int(packets.owner[field])
            at = int(packets.value[field])
            end = at + int(packets.length[field])
            match int(packets.tag[field]):
                case tag if tag == DESCRIPTOR:
                    self._describe_track(buffer, at, end)
                case tag if tag == INTERNED:
                    self._intern(buffer, at, end, int(scope[owner]))
                case tag if tag == DEFAULTS:
                    self._set_defaults(buffer, at, end, int(scope[owner]), int(sequence[owner]))
                case _:
                    raise buffer.error("packets compressed by zstd are not read", at)
        time = self._times(buffer, packets, sequence)
        for tag, add in ((EVENT, self._add_events), (STAGE, self._add_stages)):
            chosen = packets.at(tag)
            if len(chosen):
                of = packets.owner[chosen]
                add(buffer, *packets.spans(chosen), time[of], scope[of])
        if self.texts.numbers.characters > MAX_CHARACTERS:
            raise ValueError(f"its names have more than {MAX_CHARACTERS:,} characters")

    def _scopes_of(self, sequence: Integers, cleared: NDArray[np.bool_]) -> Integers:
        """Return the scope of each packet; a cleared one begins a scope."""
        scope = np.empty(len(sequence), dtype=np.int64)
        by_sequence = np.arange(len(sequence))
        if (sequence != sequence[0]).any():
            by_sequence = np.argsort(sequence, kind="stable")
        borders = np.flatnonzero(np.diff(sequence[by_sequence])) + 1
        for packets in np.split(by_sequence, borders):
            key = int(sequence[packets[0]])
            current = self._scope_of.setdefault(key, self._scopes)
            self._scopes += current == self._scopes
            clears = np.cumsum(cleared[packets])
            fresh = int(clears[-1])
            scope[packets] = np.where(clears == 0, current, self._scopes + clears - 1)
            if fresh:
                self._scopes += fresh
                self._scope_of[key] = self._scopes - 1
        if self._scopes > MAX_SCOPES:
            raise ValueError(f"it has more than {MAX_SCOPES:,} sequences of packets")
        return scope

    def _times(self, buffer: Buffer, packets: Fields, sequence: Integers) -> Integers:
        """Return the packets' nanoseconds on the trace's clock."""
        time, clock = packets.numbers(TIMESTAMP, 0), packets.numbers(CLOCK, 0)
        snapshots = packets.at(SNAPSHOT)
        first = 0
        for field in snapshots[np.argsort(packets.owner[snapshots], kind="stable")].tolist():
            owner, at = int(packets.owner[field]), int(packets.value[field])
            part = slice(first, owner)
            time[part] = self.clocks.convert(sequence[part], clock[part], time[part])
            end = at + int(packets.length[field])
            self.clocks.add_snapshot(buffer, at, end, int(sequence[owner]))
            first = owner
        part = slice(first, None)
        time[part] = self.clocks.convert(sequence[part], clock[part], time[part])
        return time

    def _describe_track(self, buffer: Buffer, at: int, end: int) -> None:
        uuid = parent = 0
        process: int | None = None
        thread: int | None = None
        for field in buffer.scan(at, end):
            if field.tag == tag_of(1, VARINT):
                uuid = field.value
            elif field.tag == tag_of(5, VARINT):
                parent = field.value
            elif field.tag in (tag_of(3, BYTES), tag_of(4, BYTES)):
                inner = buffer.scan(field.value, field.value + field.length)
                numbers = {number.tag: number.value for number in inner}
                process = numbers.get(tag_of(1, VARINT), process)
                if field.tag == tag_of(4, BYTES):
                    thread = numbers.get(tag_of(2, VARINT), 0)
        self.descriptors[uuid] = (parent, process, thread)
        if len(self.descriptors) > MAX_TRACKS:
            raise ValueError(f"it has more than {MAX_TRACKS:,} tracks")

    def _intern(self, buffer: Buffer, at: int, end: int, scope: int) -> None:
        tables = {
            EVENT_CATEGORIES: self._categories,
            EVENT_NAMES: self._names,
            KEYS: self.annotations.keys,
            SPECIFICATIONS: self._stages,
            TEXTS: self.annotations.values,
            KERNELS: self._kernels,
        }
        for field in buffer.scan(at, end):
            table = tables.get(field.tag)
            if table is None:
                continue
            iid, texts = 0, {DEMANGLED: b"", tag_of(2, BYTES): b""}
            for part in buffer.scan(field.value, field.value + field.length):
                if part.tag == tag_of(1, VARINT):
                    iid = part.value
                elif part.tag in texts:
                    texts[part.tag] = buffer.data[part.value : part.value + part.length]
            text = texts[tag_of(2, BYTES)]
            if table is self._kernels:
                text = texts[DEMANGLED] or text
            if table is self.annotations.keys:
                number = NUMBER_OF_KEY.get(text.decode("utf-8", "replace"), NONE)
            else:
                number = self.texts.of_bytes[text]
            table.add(scope, iid, number)

    def _set_defaults(self, buffer: Buffer, at: int, end: int, scope: int, sequence: int) -> None:
        for field in buffer.scan(at, end):
            if field.tag == CLOCK:
                self.clocks.defaults[sequence] = field.value
            elif field.tag == EVENT:
                for inner in buffer.scan(field.value, field.value + field.length):
                    if inner.tag == TRACK:
                        self._default_tracks[scope] = inner.value

    def _texts_of(
        self,
        buffer: Buffer,
        events: Fields,
        tags: tuple[int, int],
        interned: Interned,
        scope: Integers,
    ) -> Integers:
        """Return the number of each event's text, inline or interned; the first one counts."""
        inline, by_iid = tags
        number = np.full(len(scope), NONE)
        chosen = events.at(by_iid)[::-1]
        owner = events.owner[chosen]
        number[owner] = interned.find(scope[owner], events.value[chosen])
        chosen = events.at(inline)[::-1]
        number[events.owner[chosen]] = self.texts.find(buffer, *events.spans(chosen))
        return number

    def _add_events(
        self, buffer: Buffer, at: Integers, length: Integers, time: Integers, scope: Integers
    ) -> None:
        events = buffer.fields(at, at + length)
        kind = events.numbers(TYPE, 0)
        duration = self._legacy(buffer, events, kind)
        uuid = events.numbers(TRACK, 0)
        if self._default_tracks:
            known = self._default_tracks
            default = np.array([known.get(key, 0) for key in scope.tolist()], dtype=np.uint64)
            uuid = events.numbers(TRACK, default.view(np.int64))
        track = self._track_numbers(uuid)
        category = self._texts_of(buffer, events, (CATEGORY, CATEGORY_IID), self._categories, scope)
        name = self._texts_of(buffer, events, (NAME, NAME_IID), self._names, scope)
        is_slice = (kind == BEGIN) | (kind == COMPLETE)
        kept = np.flatnonzero((is_slice | (kind == INSTANT)) & self.texts.are_wanted(category))
        row = np.full(len(kind), self.NO_ROW)
        row[kept] = np.arange(self._row_count, self._row_count + len(kept))
        row[kind == END] = self.IS_END
        marked = np.flatnonzero((kind == BEGIN) | (kind == END))
        self.marks.append((time[marked], track[marked], row[marked]))
        self._read_metadata(buffer, events, name, category, kind, scope)
        if not len(kept):
            return
        ends = np.where(kind == INSTANT, time, np.where(kind == COMPLETE, time + duration, NONE))
        columns = {
            "start": time[kept],
            "end": ends[kept],
            "name": name[kept],
            "category": category[kept],
            "track": track[kept],
            "is_instant": (kind == INSTANT)[kept].astype(np.int64),
        }
        place = np.full(len(kind), NONE)
        place[kept] = np.arange(len(kept))
        chosen = events.at(ANNOTATION)
        chosen = chosen[place[events.owner[chosen]] != NONE]
        owner = place[events.owner[chosen]]
        values = self.annotations.read(buffer, *events.spans(chosen), owner, scope[kept])
        self._link(events, place, values["correlation"])
        self._append(columns | values)

    def _append(self, columns: dict[str, Integers]) -> None:
        if not columns["is_instant"].any():
            for name in OF_REQUESTS:
                del columns[name]
        # Most columns of most parts have no value.
        self.rows.append({key: part for key, part in columns.items() if (part != NONE).any()})
        self._row_count += len(columns["start"])
        if self._row_count > MAX_ROWS:
            raise ValueError(f"more than {MAX_ROWS:,} events")

    def _legacy(self, buffer: Buffer, events: Fields, kind: Integers) -> Integers:
        """Set the kinds of events in the older form; return durations in nanoseconds."""
        duration = np.zeros(len(kind), dtype=np.int64)
        for field in events.at(LEGACY).tolist():
            owner, at = events.owner[field], int(events.value[field])
            inner = buffer.scan(at, at + int(events.length[field]))
            numbers = {number.tag: number.value for number in inner}
            phase = numbers.get(LEGACY_PHASE, 0)
            if phase < 128 and (known := LEGACY_TYPES.get(chr(phase))) and not kind[owner]:
                kind[owner] = known
                duration[owner] = min(numbers.get(LEGACY_US, 0), 2**50) * 1000
        return duration

    def _track_numbers(self, uuids: Integers) -> Integers:
        unique, index = np.unique(uuids, return_inverse=True)
        numbers = [
            self.tracks.setdefault(uuid, len(self.tracks))
            for uuid in unique.view(np.uint64).tolist()
        ]
        if len(self.tracks) > MAX_TRACKS:
            raise ValueError(f"it has more than {MAX_TRACKS:,} tracks")
        return np.array(numbers, dtype=np.int64)[index]

    def _link(self, events: Fields, place: Integers, correlation: Integers) -> None:
        """Fill in the correlation of events without one from their flows."""
        found = np.full(len(correlation), NONE)
        for tag in LINKS:
            chosen = events.at(tag)
            rows = place[events.owner[chosen]]
            found[rows[rows != NONE]] = events.value[chosen][rows != NONE]
        without = correlation == NONE
        correlation[without] = found[without]

    def _read_metadata(
        self,
        buffer: Buffer,
        events: Fields,
        name: Integers,
        category: Integers,
        kind: Integers,
        scope: Integers,
    ) -> None:
        """Read the facts that kineto writes as instant events without a category."""
        numbers = [self.texts.numbers[text] for text in METADATA if text in self.texts.numbers]
        if not numbers:
            return
        instants = np.flatnonzero((kind == INSTANT) & (category == NONE))
        plain = np.zeros(len(kind), dtype=np.bool_)
        plain[instants[np.isin(name[instants], numbers)]] = True
        if not plain.any():
            return
        for field in events.at(ANNOTATION).tolist():
            owner = int(events.owner[field])
            if plain[owner] and len(self.metadata) < MAX_DEPTH:
                at = int(events.value[field])
                end = at + int(events.length[field])
                key = self.annotations.key(buffer, at, end)
                self.metadata[key] = self.annotations.value(buffer, at, end, int(scope[owner]))

    def _add_stages(
        self, buffer: Buffer, at: Integers, length: Integers, time: Integers, scope: Integers
    ) -> None:
        """Add the work of GPUs in the form of render stages, as torch writes it."""
        stages = buffer.fields(at, at + length)
        specified = self._stages.find(scope, stages.numbers(STAGE_IID, 0))
        number_of = {
            number: self.texts.number(STAGE_CATEGORIES[name])
            for number in np.unique(specified[specified != NONE]).tolist()
            if (name := self.texts.names[number].lower()) in STAGE_CATEGORIES
        }
        category = np.array([number_of.get(each, NONE) for each in specified.tolist()])
        kept = np.flatnonzero(self.texts.are_wanted(category.astype(np.int64)))
        if not len(kept):
            return
        kernel = self._kernels.find(scope, stages.numbers(KERNEL_IID, 0))
        name = self._texts_of(buffer, stages, (STAGE_NAME, STAGE_NAME_IID), self._names, scope)
        name = np.where(name != NONE, name, np.where(kernel != NONE, kernel, specified))
        place = np.full(len(scope), NONE)
        place[kept] = np.arange(len(kept))
        values = {key: np.full(len(kept), NONE) for key in (*INTEGERS, "args")}
        values["device"] = stages.numbers(GPU, NONE)[kept]
        values["stream"] = stages.numbers(QUEUE_IID, NONE)[kept]
        texts: dict[int, dict[str, object]] = {}
        for field in stages.at(EXTRA).tolist():
            row = int(place[stages.owner[field]])
            if row == NONE:
                continue
            begin = int(stages.value[field])
            key, text = pair_of_texts(buffer, begin, begin + int(stages.length[field]))
            attribute = ATTRIBUTES.get(key)
            if attribute in INTEGERS:
                values[attribute][row] = whole_number(text)
            elif attribute in COUNTS:
                texts.setdefault(row, {})[attribute] = whole_number(text)
            elif attribute is not None:
                texts.setdefault(row, {})[attribute] = text
        for row, found in texts.items():
            values["args"][row] = self.annotations.add(found)
        start, duration = time[kept], stages.numbers(DURATION, NONE)[kept]
        columns = {
            "start": start,
            "end": np.where(duration == NONE, NONE, start + np.clip(duration, 0, 2**60)),
            "name": name[kept],
            "category": category[kept],
            "track": np.full(len(kept), NONE),
            "is_instant": np.zeros(len(kept), dtype=np.int64),
        }
        self._append(columns | values)
