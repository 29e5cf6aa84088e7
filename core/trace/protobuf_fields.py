"""Fields of protobuf messages, of many messages at once.

Messages are spans of a buffer. All of them advance together, one field a round, so that numpy
decodes a whole column; a few long messages are read one by one, which takes less time for them.
"""

from __future__ import annotations

from collections.abc import Iterator

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
)

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
