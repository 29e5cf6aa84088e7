"""Packets of a Perfetto trace, chunk by chunk, and the clocks that relate their times."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from io import BufferedIOBase

import numpy as np
from numpy.typing import NDArray

from sysbench.core.trace.protobuf_scan import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    WireError,
    WireField,
    scan,
    tag_of,
)
from sysbench.core.trace.trace_events import NONE

FEW_MESSAGES = 16
"""Below this, reading one by one is quicker than a round of numpy calls."""
PADDING = bytes(16)

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

_END = np.uint64(0x8080_8080_8080_8080)
_BITS = np.uint64(0x7F7F_7F7F_7F7F_7F7F)
_LENGTHS = np.uint64(0x0102_0304_0506_0708)
"""Multiplied by ``1 << 8 * k``, its highest byte is ``k + 1``."""
_STEPS = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F_007F_007F_007F, 0x7F00_7F00_7F00_7F00, 1),
        (0x0000_3FFF_0000_3FFF, 0x3FFF_0000_3FFF_0000, 2),
        (0x0000_0000_0FFF_FFFF, 0x0FFF_FFFF_0000_0000, 4),
    )
)
_ONE, _SEVEN, _TOP_BYTE = np.uint64(1), np.uint64(7), np.uint64(56)
_FIRST_7, _SECOND_7 = np.uint64(0x7F), np.uint64(0x3F80)
_LONG_TAG = np.uint64(0x8080)
_EIGHT = np.uint64(8)


class Fields:
    """Fields of messages, in the order of each message, which ``owner`` numbers."""

    def __init__(self, messages: int, rounds: list[tuple[Integers, ...]]) -> None:
        self.messages = messages
        columns: list[Integers] = [np.concatenate(parts) for parts in zip(*rounds, strict=True)]
        nothing: list[Integers] = [np.zeros(0, dtype=np.int64)] * 4
        self.owner, self.tag, self.value, self.length = columns or nothing

    def at(self, tag: int) -> Integers:
        return np.flatnonzero(self.tag == tag)

    def spans(self, fields: Integers) -> tuple[Integers, Integers]:
        """Return offset and length of fields of bytes."""
        return self.value[fields], self.length[fields]

    def numbers(self, tag: int, default: int | Integers) -> Integers:
        """Return the last value of each message, or the default."""
        values = np.full(self.messages, default, dtype=np.int64)
        chosen = self.at(tag)
        values[self.owner[chosen]] = self.value[chosen]
        return values


class Buffer:
    """Bytes that messages are in; ``offset`` is where they begin in the file."""

    def __init__(self, data: bytes, offset: int = 0, *, is_inner: bool = False) -> None:
        """Wrap bytes that begin at an offset; if they were compressed, a place in them has none."""
        padded = data + PADDING
        self.data, self.offset, self._is_inner = data, offset, is_inner
        self._bytes = np.frombuffer(padded, dtype=np.uint8)
        self._words: Words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))

    def error(self, reason: str, at: int) -> WireError:
        if self._is_inner:
            return WireError(f"in compressed packets, {reason}", self.offset)
        return WireError(reason, self.offset + at)

    def words(self, at: Integers) -> Words:
        return self._words[at]

    def fields(self, start: Integers, stop: Integers) -> Fields:
        """Read the fields of messages; raises WireError."""
        rounds: list[tuple[Integers, ...]] = []
        owner = np.flatnonzero(start < stop)
        at, end = start[owner], stop[owner]
        while len(owner) > FEW_MESSAGES:
            tag, value, length, following = self._next(at)
            over = following > end
            if over.any():
                raise self.error("a field exceeds its message", int(at[over][0]))
            rounds.append((owner, tag, value, length))
            going = following < end
            if going.all():
                at = following
            else:
                owner, at, end = owner[going], following[going], end[going]
        if len(owner):
            spans = zip(owner.tolist(), at.tolist(), end.tolist(), strict=True)
            rest = [(each, *field) for each, low, high in spans for field in self.scan(low, high)]
            rounds.append(tuple(np.array(rest, dtype=object).T.astype(np.uint64).view(np.int64)))
        return Fields(len(start), rounds)

    def _next(self, at: Integers) -> tuple[Integers, Integers, Integers, Integers]:
        """Return tag, value and length of the field at each offset, and where the next begins."""
        word = self._words[at]
        more = (word >> _SEVEN) & _ONE
        if (word & _LONG_TAG == _LONG_TAG).any():
            tags, sizes = self._varints(at)
            tag, at = tags.view(np.int64), at + sizes
            rest = self._words[at]
            room = 8
        else:
            tag = ((word & _FIRST_7) | ((word >> _ONE) & _SECOND_7) * more).view(np.int64)
            rest = word >> (_EIGHT + _EIGHT * more)
            at = at + more.view(np.int64) + 1
            room = 6
        value, size = _decoded(rest)
        wire = tag & 7
        is_long = (size > room) | (size == 0)
        is_long &= (wire == VARINT) | (wire == BYTES)
        if is_long.any():
            longer, sizes = self._varints(at[is_long])
            value[is_long], size[is_long] = longer, sizes
        signed = value.view(np.int64)
        following = at + size
        has_bytes = wire == BYTES
        length = np.where(has_bytes, signed, 0)
        signed = np.where(has_bytes, following, signed)
        odd = ~has_bytes & (wire != VARINT)
        if odd.any():
            self._fixed(wire, odd, at, signed, following)
        wrong = (length < 0) | (length > len(self.data))
        if wrong.any():
            raise self.error("a field exceeds its message", int(at[wrong][0]))
        return tag, signed, length, following + length

    def _fixed(
        self,
        wire: Integers,
        odd: NDArray[np.bool_],
        at: Integers,
        value: Integers,
        following: Integers,
    ) -> None:
        """Set value and end of the fields of fixed size; ``at`` is where their value begins."""
        is_64, is_32 = wire == FIXED64, wire == FIXED32
        unknown = odd & ~is_64 & ~is_32
        if unknown.any():
            raise self.error("a field has an unknown type", int(at[unknown][0]))
        inside = np.minimum(at, len(self._words) - 1)
        words = self._words[inside].view(np.int64)
        value[is_64] = words[is_64]
        value[is_32] = words[is_32] & 0xFFFF_FFFF
        following[is_64] = at[is_64] + 8
        following[is_32] = at[is_32] + 4

    def _varints(self, at: Integers) -> tuple[Words, Integers]:
        """Decode varints of any size; return also their sizes."""
        if len(at) and int(at.max()) > len(self.data):
            raise self.error("a number exceeds its message", int(at.max()))
        value, size = _decoded(self._words[at])
        long = np.flatnonzero(size == 0)
        if len(long):
            ninth, tenth = (self._bytes[at[long] + place].astype(np.uint64) for place in (8, 9))
            low = _squeezed(self._words[at[long]] & _BITS)
            has_tenth = ninth > 0x7F
            if (has_tenth & (tenth > 1)).any():
                raise self.error("a number has more than 64 bits", int(at[long][0]))
            value[long] = low | (ninth & _FIRST_7) << _TOP_BYTE
            value[long] |= np.where(has_tenth, tenth << np.uint64(63), np.uint64(0))
            size[long] = 9 + has_tenth
        return value, size

    def scan(self, at: int, stop: int) -> Iterator[WireField]:
        """Yield the fields of one message; raises as `fields`."""
        try:
            yield from scan(self.data, at, stop)
        except WireError as error:
            raise self.error(str(error), error.offset) from error


def _squeezed(word: Words) -> Words:
    """Join the groups of 7 bits."""
    for low, high, shift in _STEPS:
        word = (word & low) | ((word & high) >> shift)
    return word


def _decoded(word: Words) -> tuple[Words, Integers]:
    """Decode varints from words that begin with them; the size of longer ones is 0."""
    ends = ~word & _END
    last = ends & (~ends + _ONE)
    if (last == np.uint64(0x80)).all():
        return word & _FIRST_7, np.ones(len(word), dtype=np.int64)
    size = (((last >> _SEVEN) * _LENGTHS) >> _TOP_BYTE).view(np.int64)
    return _squeezed(word & (last | (last - _ONE)) & _BITS), size


CHUNK_BYTES = 2**21
MAX_PACKET_BYTES = 2**26
MAX_HEADER_BYTES = 6
MAX_TRACE_BYTES = 2**34
PACKET, DEFLATED = tag_of(1, BYTES), tag_of(50, BYTES)

Packets = tuple[Buffer, Fields]


def read_packets(file: BufferedIOBase, limit: int = MAX_TRACE_BYTES) -> Iterator[Packets]:
    """Yield packets to the end of the file, or of at least its first ``limit`` bytes."""
    offset, total, rest = 0, 0, b""
    while chunk := file.read(CHUNK_BYTES):
        data = rest + chunk
        buffer, start, stop = _split(data, offset)
        used = int(stop[-1]) if len(stop) else 0
        for packets in _unpacked(buffer, start, stop):
            total += len(packets[0].data)
            if total > MAX_TRACE_BYTES:
                raise ValueError(f"it has more than {MAX_TRACE_BYTES:,} bytes")
            yield packets
        rest, offset = data[used:], offset + used
        if offset >= limit:
            return
    if rest:
        raise WireError("it is truncated (copy or record it again)", offset)


def _unpacked(
    buffer: Buffer, start: Integers, stop: Integers, *, is_inner: bool = False
) -> Iterator[Packets]:
    """Yield the packets with those that compressed ones contain in their place."""
    if not len(start):
        return
    packets = buffer.fields(start, stop)
    packed = packets.at(DEFLATED)
    if not len(packed):
        yield buffer, packets
        return
    offset = buffer.offset + int(packets.value[packed[0]])
    if is_inner:
        raise WireError("packets are compressed twice", offset)
    parts, size, done, stops = list[bytes](), 0, 0, stop.tolist()
    for field in [*packed[np.argsort(packets.owner[packed], kind="stable")].tolist(), NONE]:
        if field == NONE:
            parts.append(buffer.data[done : stops[-1]])
        else:
            owner = int(packets.owner[field])
            parts.append(buffer.data[done : stops[owner - 1] if owner else 0])
            done, at = stops[owner], int(packets.value[field])
            packed_bytes = buffer.data[at : at + int(packets.length[field])]
            parts.append(_inflated(packed_bytes, buffer.offset + at))
        size = sum(map(len, parts))
        if size > CHUNK_BYTES or field == NONE:
            # Inside compressed packets, the offset is that of the first of them.
            inner, begin, end = _split(b"".join(parts), offset, is_inner=True)
            if (int(end[-1]) if len(end) else 0) != size:
                raise WireError("its compressed packets are truncated", offset)
            yield from _unpacked(inner, begin, end, is_inner=True)
            parts, size = [], 0


def _split(
    data: bytes, offset: int, *, is_inner: bool = False
) -> tuple[Buffer, Integers, Integers]:
    """Return begin and end of the fields of the whole packets."""
    buffer = Buffer(data, offset, is_inner=is_inner)
    begins: list[int] = []
    ends = [0]
    try:
        while ends[-1] < len(data) and (header := _header(data, ends[-1])) is not None:
            begin, length = header
            if begin + length > len(data):
                break
            begins.append(begin)
            ends.append(begin + length)
    except WireError as error:
        raise buffer.error(str(error), error.offset) from error
    return buffer, np.array(begins, dtype=np.int64), np.array(ends[1:], dtype=np.int64)


def _header(data: bytes, begin: int) -> tuple[int, int] | None:
    """Return where a packet's fields begin, and their length; None if the data ends before."""
    if data[begin] != PACKET:
        raise WireError("it has something else than a packet", begin)
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


REALTIME, BOOTTIME = 1, 6
OF_SEQUENCE = range(64, 128)
"""Ids of clocks that belong to a sequence of packets."""
ID_BITS = 31
MAX_ID = 2**ID_BITS - 1
MAX_SNAPSHOTS = 2**14
MAX_TIME_NS = 4 * 10**18
"""As for the times in JSON, so that differences fit 63 bits."""
MAX_UNIT_NS = 10**9

CLOCKS, PRIMARY = tag_of(1, BYTES), tag_of(2, VARINT)
ID, TIME, IS_DELTA, UNIT = (tag_of(n, VARINT) for n in (1, 2, 3, 4))

Key = tuple[int, int]
"""Sequence (0 for a clock of all) and id."""


class PerfettoClocks:
    """Relations between clocks, and the clock of the sequences that set one.

    ``realtime_ahead_ns`` is Unix time minus the trace's time; 0 if unknown.
    """

    def __init__(self) -> None:
        self.defaults: dict[int, int] = {}
        self.realtime_ahead_ns = 0
        self.main = BOOTTIME
        self._ahead: dict[Key, int] = {}
        self._unit: dict[Key, int] = {}
        self._last: dict[Key, int] = {}
        self._used: set[Key] = set()
        self._snapshots = 0

    def add_snapshot(self, buffer: Buffer, at: int, end: int, sequence: int) -> None:
        """Relate the clocks of a snapshot to the trace's main clock, that of `convert`."""
        readings: dict[Key, int] = {}
        for field in buffer.scan(at, end):
            if field.tag == PRIMARY and not self._snapshots:
                self.main = field.value
            if field.tag != CLOCKS:
                continue
            values = {
                inner.tag: inner.value
                for inner in buffer.scan(field.value, field.value + field.length)
            }
            key = self._key(sequence, values.get(ID, 0))
            unit = values.get(UNIT, 1)
            if not 0 < unit <= MAX_UNIT_NS:
                raise ValueError("the unit of a clock is out of range")
            readings[key] = values.get(TIME, 0) * unit
            self._unit[key] = unit
            if values.get(IS_DELTA):
                self._last[key] = values.get(TIME, 0)
        self._snapshots += 1
        if self._snapshots > MAX_SNAPSHOTS:
            raise ValueError(f"it has more than {MAX_SNAPSHOTS:,} snapshots of its clocks")
        now = readings.get((0, self.main))
        if now is None:
            known = [key for key in readings if key in self._ahead]
            now = readings[known[0]] + self._ahead[known[0]] if known else None
        if now is None:
            now = next(iter(readings.values()), 0)
        for key, reading in readings.items():
            self._ahead[key] = now - reading
        if self._snapshots == 1 and (0, REALTIME) in readings:
            self.realtime_ahead_ns = readings[(0, REALTIME)] - now

    def convert(self, sequence: Integers, clock: Integers, time: Integers) -> Integers:
        """Return nanoseconds of the main clock; ValueError for a time that is out of range."""
        if not len(time):
            return time
        if not clock.any() and not self.defaults:
            if time.any():
                self._used.add((0, self.main))
            return _checked(time)
        result = time.copy()
        ids = np.where(clock == 0, self.main, clock)
        if self.defaults:
            of_default = [self.defaults.get(key, self.main) for key in sequence.tolist()]
            ids = np.where(clock == 0, np.array(of_default, dtype=np.int64), clock)
        belongs = (ids >= OF_SEQUENCE.start) & (ids < OF_SEQUENCE.stop)
        both = np.where(belongs, sequence & MAX_ID, 0) << ID_BITS | ids & MAX_ID
        codes, index = np.unique(both, return_inverse=True)
        for number, code in enumerate(codes.tolist()):
            key = (code >> ID_BITS, code & MAX_ID)
            chosen = np.flatnonzero(index == number)
            values = time[chosen]
            if key in self._last:
                values = self._last[key] + np.cumsum(_checked(values))
                self._last[key] = int(values[-1])
            unit, ahead = self._unit.get(key, 1), self._ahead.get(key, 0)
            if float(np.abs(values).max()) * unit + abs(ahead) > MAX_TIME_NS * 2:
                raise ValueError("a time is out of range")
            result[chosen] = values * unit + ahead
            if time[chosen].any():
                self._used.add(key)
        return _checked(result)

    def check(self) -> None:
        """Raise ValueError if events have times of clocks that no snapshot relates."""
        unrelated = self._used - set(self._ahead) - {(0, self.main)}
        if unrelated and len(self._used) > 1:
            raise ValueError("no snapshot relates the clocks of its events")

    def _key(self, sequence: int, clock: int) -> Key:
        return (sequence & MAX_ID if clock in OF_SEQUENCE else 0, clock & MAX_ID)


def _checked(time: Integers) -> Integers:
    if int(time.min(initial=0)) < -MAX_TIME_NS or int(time.max(initial=0)) > MAX_TIME_NS:
        raise ValueError("a time is out of range")
    return time
