"""Events of a Perfetto trace (``.pftrace``) as columns.

The file is a stream of packets. A sequence of packets numbers its texts before it uses the numbers,
and forgets them where it clears its state: a scope is the time between. The numbers of fields are
those of the public ``protos/perfetto/trace``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from io import BufferedIOBase
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.core.trace.perfetto_clocks import Clocks
from sysbench.core.trace.protobuf_fields import Buffer, Fields, Integers
from sysbench.core.trace.protobuf_scan import BYTES, FIXED64, VARINT, WireError, tag_of
from sysbench.core.trace.trace_events import NONE, Numbers
from sysbench.core.trace.trace_json import Args

CHUNK_BYTES = 2**20
MAX_PACKET_BYTES = 2**26
MAX_HEADER_BYTES = 6
MAX_TRACE_BYTES = 2**34
MAX_CHARACTERS = 2**28
MAX_ROWS = 2**25
MAX_SCOPES = MAX_TRACKS = 2**20
MAX_DEPTH = 16
MAX_DENSE = 2**16
IID_BITS = 40
PACKET = tag_of(1, BYTES)
NO_PACKET = "it has something else than a packet"

TIMESTAMP, SEQUENCE, FLAGS, CLOCK, CLEARED = (tag_of(n, VARINT) for n in (8, 10, 13, 58, 41))
EVENT, DESCRIPTOR, INTERNED, DEFAULTS = (tag_of(n, BYTES) for n in (11, 60, 12, 59))
SNAPSHOT, STAGE, DEFLATED, ZSTD = (tag_of(n, BYTES) for n in (6, 53, 50, 133))
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

KEY_IID, KEY = tag_of(1, VARINT), tag_of(10, BYTES)
BOOL, UINT, INT, POINTER, TEXT_IID = (tag_of(n, VARINT) for n in (2, 3, 4, 7, 17))
DOUBLE = tag_of(5, FIXED64)
TEXT, NESTED, JSON, ENTRY, ELEMENT = (tag_of(n, BYTES) for n in (6, 8, 9, 11, 12))
WHOLE = (BOOL, UINT, INT, POINTER)

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

ATTRIBUTES = {field.encode_name: field.name for field in msgspec.structs.fields(Args)} | {
    "correlation_id": "correlation",
    "device id": "device",
    "stream id": "stream",
}
"""Attribute of `Args` by the key of an annotation."""
INTEGERS = (
    *("correlation", "cbid", "device", "stream", "sequence", "copied", "position"),
    *("bytes", "address", "device_type", "device_id", "allocated", "reserved"),
)
"""Attributes that are columns; the others are in ``args``."""
OF_REQUESTS = INTEGERS[7:]
"""Attributes that instant events of memory have."""
NO_ARGS = Args()
COUNTS = ("in_elements", "out_elements", "group_size")
METADATA = ("trace_metadata", "device_properties")
"""Names of instant events whose annotations describe the trace."""
MEMORY_CATEGORY = "cpu_instant_event"


def _hash(head: Any, tail: Any, length: Any) -> Any:
    mixed = (head ^ (tail * np.uint64(0x9E3779B97F4A7C15))) + length
    return mixed * np.uint64(0xC2B2AE3D27D4EB4F)


def _head_and_tail(key: bytes) -> tuple[np.uint64, np.uint64]:
    head = int.from_bytes(key[:8], "little")
    tail = int.from_bytes(key[-8:], "little")
    return np.uint64(head), np.uint64(tail)


SLOT_BITS = 12


class _Keys:
    """Numbers the keys of `ATTRIBUTES` by a hash of their first and last eight bytes."""

    def __init__(self) -> None:
        with np.errstate(over="ignore"):
            hashes = [
                _hash(*_head_and_tail(key.encode()), np.uint64(len(key))) for key in ATTRIBUTES
            ]
        self.attributes = list(dict.fromkeys(INTEGERS)) + sorted(
            set(ATTRIBUTES.values()) - set(INTEGERS)
        )
        number_of = {name: number for number, name in enumerate(self.attributes)}
        self.number_of = {key: number_of[name] for key, name in ATTRIBUTES.items()}
        size = 2**SLOT_BITS
        self._hashes = np.zeros(size, dtype=np.uint64)
        self._numbers = np.full(size, NONE)
        for key, value in zip(ATTRIBUTES, hashes, strict=True):
            slot = int(value) >> (64 - SLOT_BITS)
            assert self._numbers[slot] == NONE, key
            self._hashes[slot], self._numbers[slot] = value, self.number_of[key]

    def find(self, buffer: Buffer, at: Integers, length: Integers) -> Integers:
        """Return the number of the key at each offset, or -1."""
        short = np.minimum(length, 8)
        unused = ((8 - short) * 8).astype(np.uint64)
        head = buffer.words(at)
        # Shifts by 64 are undefined: an empty key has no bits to keep anyway.
        head = np.where(length > 0, (head << (unused % 64)) >> (unused % 64), np.uint64(0))
        tail = buffer.words(np.maximum(at + length - 8, at))
        tail = np.where(length >= 8, tail, head)
        value = _hash(head, tail, length.astype(np.uint64))
        slot = value >> np.uint64(64 - SLOT_BITS)
        return np.where(self._hashes[slot] == value, self._numbers[slot], NONE)


KEYS_OF_ARGS = _Keys()


class Interned:
    """Numbers of `Numbers` by scope and iid."""

    def __init__(self) -> None:
        self._scopes: dict[int, dict[int, int]] = {}
        self._dense: dict[int, Integers] = {}

    def add(self, scope: int, iid: int, number: int) -> None:
        self._scopes.setdefault(scope, {})[iid] = number
        self._dense.pop(scope, None)

    def get(self, scope: int, iid: int) -> int:
        return self._scopes.get(scope, {}).get(iid, NONE)

    def find(self, scope: Integers, iid: Integers) -> Integers:
        """Return the numbers, -1 for an unknown iid."""
        if not len(iid):
            return iid
        first, least, most = int(scope[0]), int(iid.min()), int(iid.max())
        if least >= 0 and most < MAX_DENSE and (scope == first).all():
            return self._table(first, most)[iid]
        pairs = zip(scope.tolist(), iid.tolist(), strict=True)
        return np.fromiter((self.get(*pair) for pair in pairs), np.int64, len(iid))

    def _table(self, scope: int, most: int) -> Integers:
        table = self._dense.get(scope)
        if table is None or len(table) <= most:
            entries = {
                iid: number
                for iid, number in self._scopes.get(scope, {}).items()
                if iid < MAX_DENSE
            }
            table = np.full(max([most, *entries]) + 1, NONE)
            table[list(entries)] = list(entries.values())
            self._dense = {scope: table}
        return table


class _Numbered(dict[bytes, int]):
    """Numbers of encoded texts."""

    def __init__(self, number: Callable[[str], int]) -> None:
        self._number = number

    def __missing__(self, text: bytes) -> int:
        number = self[text] = self._number(text.decode("utf-8", "replace"))
        return number


class PerfettoReader:
    """Reads packets into columns.

    Attributes:
        texts, names: Names and categories; the columns have their numbers.
        args: Distinct arguments that are no numbers, as the column ``args`` numbers them.
        rows: Columns of the events of a category, by name, in parts: ``start``, ``end`` (-1 of a
            slice whose end is a mark), ``name``, ``category``, ``track``, ``is_instant``, ``args``
            and those of `INTEGERS`.
        marks: Begins and ends of slices in parts: time, track, and the begin's row, `NO_ROW` if
            its category is empty, or `IS_END`.
        tracks: uuid of each track by number; ``descriptors`` parent, process and thread by uuid.
        metadata: Facts of the trace, by key.
    """

    NO_ROW, IS_END = -1, -2

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        """
        Args:
            wanted: Whether to keep the events of a category.
        """
        self.texts, self.names, self.args = Numbers(), list[str](), list[Args]()
        self.rows: list[dict[str, Integers]] = []
        self.marks: list[tuple[Integers, Integers, Integers]] = []
        self.tracks: dict[int, int] = {}
        self.descriptors: dict[int, tuple[int, int | None, int | None]] = {}
        self.metadata: dict[str, object] = {}
        self.clocks = Clocks()
        self.seen = self._row_count = self._bytes = 0
        self._wanted, self._is_wanted = wanted, bytearray()
        self._scope_of: dict[int, int] = {}
        self._scopes = 0
        self._default_tracks: dict[int, int] = {}
        self._names, self._categories, self._keys = Interned(), Interned(), Interned()
        self._values, self._stages, self._kernels = Interned(), Interned(), Interned()
        self._number_of = _Numbered(self.number)
        self._args_of: dict[tuple[int, bytes], int] = {}

    def read(
        self, file: BufferedIOBase, progress: Callable[[], None], limit: int = MAX_TRACE_BYTES
    ) -> None:
        """Read a stream of packets to its end, or at least its first ``limit`` bytes.

        Raises:
            WireError: It is damaged or truncated, or has a part that is not read.
            ValueError: It has more than a real trace.
        """
        offset, rest = 0, b""
        while chunk := file.read(CHUNK_BYTES):
            data = rest + chunk
            try:
                used = self._read_packets(data)
            except WireError as error:
                raise WireError(str(error), offset + error.offset) from error
            rest, offset = data[used:], offset + used
            if len(rest) > MAX_PACKET_BYTES:
                raise WireError(f"a packet exceeds {MAX_PACKET_BYTES:,} bytes", offset)
            progress()
            if offset >= limit:
                if offset > MAX_TRACE_BYTES:
                    raise ValueError(f"it has more than {MAX_TRACE_BYTES:,} bytes")
                return
        if rest:
            raise WireError("it is truncated (copy or record it again)", offset)

    def _read_packets(self, data: bytes, *, is_inner: bool = False) -> int:
        buffer, start, stop = _split(data)
        if not len(start):
            return 0
        packets = buffer.fields(start, stop)
        packed = packets.at(DEFLATED)
        if len(packed):
            self._unpack(buffer, packets, packed, stop.tolist(), is_inner=is_inner)
        else:
            self._add(buffer, packets, len(start))
        return int(stop[-1])

    def _unpack(
        self,
        buffer: Buffer,
        packets: Fields,
        packed: Integers,
        stops: list[int],
        *,
        is_inner: bool,
    ) -> None:
        """Read packets of which some contain packets."""
        offset = int(packets.value[packed[0]])
        if is_inner:
            raise WireError("packets are compressed twice", offset)
        parts, size, done = list[bytes](), 0, 0
        for field in [*packed[np.argsort(packets.owner[packed], kind="stable")].tolist(), NONE]:
            if field == NONE:
                parts.append(buffer.data[done : stops[-1]])
            else:
                owner = int(packets.owner[field])
                parts.append(buffer.data[done : stops[owner - 1] if owner else 0])
                done, at = stops[owner], int(packets.value[field])
                parts.append(_inflated(buffer.data[at : at + int(packets.length[field])], at))
            size += len(parts[-1])
            if size > CHUNK_BYTES or field == NONE:
                data = b"".join(parts)
                try:
                    is_whole = self._read_packets(data, is_inner=True) == len(data)
                except WireError as error:
                    raise WireError(f"in compressed packets, {error}", offset) from error
                if not is_whole:
                    raise WireError("its compressed packets are truncated", offset)
                parts, size = [], 0

    def _add(self, buffer: Buffer, packets: Fields, count: int) -> None:
        self.seen += count
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
                    raise WireError("packets compressed by zstd are not read", at)
        time = self._times(buffer, packets, sequence)
        events = packets.at(EVENT)
        if len(events):
            owner = packets.owner[events]
            spans = packets.value[events], packets.length[events]
            self._add_events(buffer, *spans, time[owner], scope[owner])
        stages = packets.at(STAGE)
        if len(stages):
            owner = packets.owner[stages]
            spans = packets.value[stages], packets.length[stages]
            self._add_stages(buffer, *spans, time[owner], scope[owner])
        if self.texts.characters > MAX_CHARACTERS:
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
            KEYS: self._keys,
            SPECIFICATIONS: self._stages,
            TEXTS: self._values,
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
            if table is self._keys:
                number = KEYS_OF_ARGS.number_of.get(text.decode("utf-8", "replace"), NONE)
            else:
                number = self._number_of[text]
            table.add(scope, iid, number)

    def _set_defaults(self, buffer: Buffer, at: int, end: int, scope: int, sequence: int) -> None:
        for field in buffer.scan(at, end):
            if field.tag == CLOCK:
                self.clocks.defaults[sequence] = field.value
            elif field.tag == EVENT:
                for inner in buffer.scan(field.value, field.value + field.length):
                    if inner.tag == TRACK:
                        self._default_tracks[scope] = inner.value

    def number(self, name: str) -> int:
        number = self.texts[name]
        if number == len(self.names):
            self.names.append(name)
            self._is_wanted.append(self._wanted(name))
        return number

    def _wants(self, categories: Integers) -> NDArray[np.bool_]:
        if not self._is_wanted:
            return np.zeros(len(categories), dtype=np.bool_)
        return np.frombuffer(self._is_wanted, np.bool_)[categories] & (categories != NONE)

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
        at = events.value[chosen]
        spans = map(slice, at.tolist(), (at + events.length[chosen]).tolist())
        numbers = map(self._number_of.__getitem__, map(buffer.data.__getitem__, spans))
        number[events.owner[chosen]] = np.fromiter(numbers, np.int64, len(chosen))
        return number

    def _add_events(
        self, buffer: Buffer, at: Integers, length: Integers, time: Integers, scope: Integers
    ) -> None:
        events = buffer.fields(at, at + length)
        kind = events.numbers(TYPE, 0)
        duration = self._legacy(buffer, events, kind)
        default = 0
        if self._default_tracks:
            known = self._default_tracks
            default = np.array([known.get(key, 0) for key in scope.tolist()], np.uint64).view(
                np.int64
            )
        track = self._track_numbers(events.numbers(TRACK, default))
        category = self._texts_of(buffer, events, (CATEGORY, CATEGORY_IID), self._categories, scope)
        name = self._texts_of(buffer, events, (NAME, NAME_IID), self._names, scope)
        is_slice = (kind == BEGIN) | (kind == COMPLETE)
        kept = np.flatnonzero((is_slice | (kind == INSTANT)) & self._wants(category))
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
        values = self._read_annotations(
            buffer, events.value[chosen], events.length[chosen], owner, scope[kept]
        )
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

    def _read_annotations(
        self,
        buffer: Buffer,
        at: Integers,
        length: Integers,
        owner: Integers,
        scope: Integers,
    ) -> dict[str, Integers]:
        """Return the columns of `INTEGERS`, and ``args``; ``owner`` is the row of each."""
        fields = buffer.fields(at, at + length)
        key = np.full(len(at), NONE)
        by_iid = fields.at(KEY_IID)
        if len(by_iid):
            of = fields.owner[by_iid]
            key[of] = self._keys.find(scope[owner[of]], fields.value[by_iid])
        inline = fields.at(KEY)
        key[fields.owner[inline]] = KEYS_OF_ARGS.find(
            buffer, fields.value[inline], fields.length[inline]
        )
        table = np.empty((len(INTEGERS), len(scope)), dtype=np.int64)
        table.T[:] = [getattr(NO_ARGS, name) for name in INTEGERS]
        is_number = (key != NONE) & (key < len(INTEGERS))
        whole = np.isin(fields.tag, WHOLE)
        whole &= is_number[fields.owner]
        of = fields.owner[whole]
        table[key[of], owner[of]] = fields.value[whole]
        is_number[of] = False
        for each in np.flatnonzero(is_number).tolist():  # text or a float
            begin = int(at[each])
            row = int(owner[each])
            value = self._value(buffer, begin, begin + int(length[each]), int(scope[row]))
            table[key[each], row] = _integer(value)
        values = dict(zip(INTEGERS, table, strict=True))
        others = np.flatnonzero(key >= len(INTEGERS))
        values["args"] = np.full(len(scope), NONE)
        raw: dict[int, list[tuple[int, int, int]]] = {}
        columns = (owner[others], key[others], at[others], length[others])
        for row, number, begin, size in zip(*map(np.ndarray.tolist, columns), strict=True):
            raw.setdefault(row, []).append((number, begin, begin + size))
        for row, parts in raw.items():
            values["args"][row] = self._args_number(buffer, parts, int(scope[row]))
        return values

    def _args_number(self, buffer: Buffer, parts: list[tuple[int, int, int]], scope: int) -> int:
        text = b"".join(buffer.data[at:end] for _, at, end in parts)
        number = self._args_of.get((scope, text))
        if number is None:
            values = {
                KEYS_OF_ARGS.attributes[key]: self._value(buffer, at, end, scope)
                for key, at, end in parts
            }
            number = self._args_of[(scope, text)] = len(self.args)
            self.args.append(Args(**values))
            self.texts.characters += len(text)
        return number

    def _value(self, buffer: Buffer, at: int, end: int, scope: int, depth: int = 0) -> Any:
        """Decode the value of one annotation; one without a value is an empty list."""
        if depth > MAX_DEPTH:
            raise WireError("annotations are nested too deep", at)
        result: Any = None
        for field in buffer.scan(at, end):
            inner = (buffer, field.value, field.value + field.length, scope, depth + 1)
            match field.tag:
                case tag if tag == BOOL:
                    result = bool(field.value)
                case tag if tag in (UINT, POINTER):
                    result = field.value
                case tag if tag == INT:
                    result = field.value - (field.value >> 63 << 64)
                case tag if tag == DOUBLE:
                    result = struct.unpack("<d", struct.pack("<Q", field.value))[0]
                case tag if tag == TEXT:
                    result = buffer.data[field.value : inner[2]].decode("utf-8", "replace")
                case tag if tag == TEXT_IID:
                    number = self._values.get(scope, field.value)
                    result = "" if number == NONE else self.names[number]
                case tag if tag == ELEMENT:
                    result = result if isinstance(result, list) else []
                    result.append(self._value(*inner))
                case tag if tag == ENTRY:
                    result = result if isinstance(result, dict) else {}
                    result[self._key(buffer, field.value, inner[2], scope)] = self._value(*inner)
                case tag if tag == NESTED:
                    result = _nested(*inner[:3], depth + 1)
                case tag if tag == JSON:
                    result = _json(buffer.data[field.value : inner[2]])
        return [] if result is None else result

    def _key(self, buffer: Buffer, at: int, end: int, scope: int) -> str:
        for field in buffer.scan(at, end):
            if field.tag == KEY:
                text = buffer.data[field.value : field.value + field.length]
                return text.decode("utf-8", "replace")
        return ""

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
        numbers = [self.texts[text] for text in METADATA if text in self.texts]
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
                key = self._key(buffer, at, end, int(scope[owner]))
                self.metadata[key] = self._value(buffer, at, end, int(scope[owner]))

    def _add_stages(
        self, buffer: Buffer, at: Integers, length: Integers, time: Integers, scope: Integers
    ) -> None:
        """Add the work of GPUs in the form of render stages, as torch writes it."""
        stages = buffer.fields(at, at + length)
        specified = self._stages.find(scope, stages.numbers(STAGE_IID, 0))
        number_of = {
            number: self.number(STAGE_CATEGORIES[name])
            for number in np.unique(specified[specified != NONE]).tolist()
            if (name := self.names[number].lower()) in STAGE_CATEGORIES
        }
        category = np.array([number_of.get(each, NONE) for each in specified.tolist()])
        kept = np.flatnonzero(self._wants(category.astype(np.int64)))
        if not len(kept):
            return
        kernel = self._kernels.find(scope, stages.numbers(KERNEL_IID, 0))
        name = self._texts_of(buffer, stages, (STAGE_NAME, STAGE_NAME_IID), self._names, scope)
        name = np.where(name != NONE, name, np.where(kernel != NONE, kernel, specified))
        place = np.full(len(scope), NONE)
        place[kept] = np.arange(len(kept))
        values = dict.fromkeys(INTEGERS, np.zeros(0, dtype=np.int64))
        values = {key: np.full(len(kept), NONE) for key in values}
        values["args"] = np.full(len(kept), NONE)
        values["device"] = stages.numbers(GPU, NONE)[kept]
        values["stream"] = stages.numbers(QUEUE_IID, NONE)[kept]
        texts: dict[int, dict[str, object]] = {}
        for field in stages.at(EXTRA).tolist():
            row = int(place[stages.owner[field]])
            if row == NONE:
                continue
            begin = int(stages.value[field])
            key, text = _pair(buffer, begin, begin + int(stages.length[field]))
            attribute = ATTRIBUTES.get(key)
            if attribute in INTEGERS:
                values[attribute][row] = _integer(text)
            elif attribute in COUNTS:
                texts.setdefault(row, {})[attribute] = _integer(text)
            elif attribute is not None:
                texts.setdefault(row, {})[attribute] = text
        for row, found in texts.items():
            raw = (NONE, repr(found).encode())
            if raw not in self._args_of:
                self._args_of[raw] = len(self.args)
                self.args.append(Args(**found))
                self.texts.characters += len(raw[1])
            values["args"][row] = self._args_of[raw]
        start = time[kept]
        columns = {
            "start": start,
            "end": start + np.clip(stages.numbers(DURATION, 0)[kept], 0, 2**60),
            "name": name[kept],
            "category": category[kept],
            "track": np.full(len(kept), NONE),
            "is_instant": np.zeros(len(kept), dtype=np.int64),
        }
        self._append(columns | values)


def _begins(data: bytes) -> tuple[list[int], int]:
    """Return where the whole packets begin, and where the last of them ends."""
    begins: list[int] = []
    add = begins.append
    at, size = 0, len(data)
    safe = size - MAX_HEADER_BYTES
    while at < safe:
        # That it is a packet is checked for all at once.
        length = data[at + 1]
        if length < 0x80:
            stop = at + 2 + length
        elif (high := data[at + 2]) < 0x80:
            stop = at + 3 - 0x80 + length + (high << 7)
        elif (third := data[at + 3]) > 0x7F and (top := data[at + 4]) < 0x80:
            # Writers that know a length only at its end reserve four bytes for it.
            length = length & 0x7F | (high & 0x7F) << 7 | (third & 0x7F) << 14 | top << 21
            stop = at + 5 + length
        else:
            body, length = _header(data, at) or (size, 1)
            stop = body + length
        if stop > size:
            _header(data, at)  # raises if it is no packet
            return begins, at
        add(at)
        at = stop
    while at < size:
        header = _header(data, at)
        if header is None or sum(header) > size:
            break
        add(at)
        at = sum(header)
    return begins, at


def _split(data: bytes) -> tuple[Buffer, Integers, Integers]:
    """Return begin and end of the fields of the whole packets."""
    begins, used = _begins(data)
    buffer, begin = Buffer(data), np.array(begins, dtype=np.int64)
    wrong = np.flatnonzero(buffer.words(begin) & np.uint64(0xFF) != PACKET)
    if len(wrong):
        raise WireError(NO_PACKET, begins[int(wrong[0])])
    stop = np.append(begin[1:], used)[: len(begin)]
    return buffer, begin + 1 + buffer.varint_sizes(begin + 1), stop


def _header(data: bytes, begin: int) -> tuple[int, int] | None:
    """Return where a packet's fields begin, and their length; None if the data ends before."""
    if data[begin] != PACKET:
        raise WireError(NO_PACKET, begin)
    length = shift = 0
    for at in range(begin + 1, min(len(data), begin + MAX_HEADER_BYTES)):
        length |= (data[at] & 0x7F) << shift
        shift += 7
        if data[at] < 0x80:
            if length > MAX_PACKET_BYTES:
                raise WireError(f"a packet exceeds {MAX_PACKET_BYTES:,} bytes", begin)
            return at + 1, length
    if len(data) - begin >= MAX_HEADER_BYTES:
        raise WireError("the length of a packet is out of range", begin)
    return None


def _inflated(packed: bytes, at: int) -> bytes:
    try:
        decoder = zlib.decompressobj()
        data = decoder.decompress(packed, MAX_PACKET_BYTES)
    except zlib.error as error:
        raise WireError(f"its compressed packets are damaged: {error}", at) from error
    if not decoder.eof:
        raise WireError("its compressed packets are truncated or too large", at)
    return data


def _integer(value: object) -> int:
    """Return a whole number of 64 bits, also from text; else -1."""
    if isinstance(value, str):
        text = value.removeprefix("-")
        value = int(value) if len(text) < 20 and text.isascii() and text.isdigit() else NONE
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and abs(value) < 2**63 else NONE


def _pair(buffer: Buffer, at: int, end: int) -> tuple[str, str]:
    texts = {
        field.tag: buffer.data[field.value : field.value + field.length]
        for field in buffer.scan(at, end)
    }
    name, value = (texts.get(tag_of(n, BYTES), b"").decode("utf-8", "replace") for n in (1, 2))
    return name, value


def _json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text.decode("utf-8", "replace")


def _nested(buffer: Buffer, at: int, end: int, depth: int) -> Any:
    """Decode a value in the older form of nesting."""
    if depth > MAX_DEPTH:
        raise WireError("annotations are nested too deep", at)
    keys: list[str] = []
    values: list[Any] = []
    result: Any = []
    for field in buffer.scan(at, end):
        stop = field.value + field.length
        match field.tag:
            case tag if tag == tag_of(2, BYTES):
                keys.append(buffer.data[field.value : stop].decode("utf-8", "replace"))
            case tag if tag in (tag_of(3, BYTES), tag_of(4, BYTES)):
                values.append(_nested(buffer, field.value, stop, depth + 1))
            case tag if tag == tag_of(5, VARINT):
                result = field.value - (field.value >> 63 << 64)
            case tag if tag == tag_of(6, FIXED64):
                result = struct.unpack("<d", struct.pack("<Q", field.value))[0]
            case tag if tag == tag_of(7, VARINT):
                result = bool(field.value)
            case tag if tag == tag_of(8, BYTES):
                result = buffer.data[field.value : stop].decode("utf-8", "replace")
    if keys:
        return dict(zip(keys, values, strict=False))
    return values or result
