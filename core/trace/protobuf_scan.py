"""Fields of one protobuf message, one by one, and what marks a Perfetto trace. Import-light."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10
PACKETS_TRIED = 2
"""Packets at the start of a file that must be valid, so that it is a Perfetto trace."""
MAX_PACKET_FIELD = 2000
MIN_CUT_BYTES = 2**12


class WireError(ValueError):
    """Bytes that are no protobuf message; ``offset`` counts from the start of the data."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.offset = offset


class WireField(NamedTuple):
    """``value`` is a number, or the offset of a field of ``length`` bytes."""

    tag: int
    value: int
    length: int


def tag_of(number: int, wire: int) -> int:
    return number << 3 | wire


def scan(data: bytes, at: int, stop: int) -> Iterator[WireField]:
    """Yield the fields of a message; WireError if one exceeds it, or has an unknown type."""
    while at < stop:
        begin = at
        tag, at = read_varint(data, at, stop)
        wire = tag & 7
        if wire == VARINT:
            value, at = read_varint(data, at, stop)
            yield WireField(tag, value, 0)
        elif wire == BYTES:
            length, at = read_varint(data, at, stop)
            if length > stop - at:
                raise WireError("a field exceeds its message", begin)
            yield WireField(tag, at, length)
            at += length
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
            if size > stop - at:
                raise WireError("a field exceeds its message", begin)
            yield WireField(tag, int.from_bytes(data[at : at + size], "little"), 0)
            at += size
        else:
            raise WireError("a field has an unknown type", begin)


def read_varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return a number and where it ends; raises as `scan`."""
    value = shift = 0
    for place in range(at, min(stop, at + MAX_VARINT_BYTES)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 2**64:
                break
            return value, place + 1
        shift += 7
    else:
        if stop - at < MAX_VARINT_BYTES:
            raise WireError("a number exceeds its message", at)
    raise WireError("a number has more than 64 bits", at)


def is_perfetto(head: bytes) -> bool:
    """Return whether the first bytes are packets of a Perfetto trace; the last may be cut."""
    at = 0
    for _ in range(PACKETS_TRIED):
        if at == len(head):
            break
        try:
            tag, begin = read_varint(head, at, len(head))
            length, begin = read_varint(head, begin, len(head))
        except WireError:
            return at > 0
        end = begin + length
        if tag != tag_of(1, BYTES) or not length or not _is_packet(head, begin, end):
            return False
        if end > len(head):
            # Of a short text almost nothing speaks against a long packet.
            return at > 0 or len(head) >= MIN_CUT_BYTES
        at = end
    return at > 0


def _is_packet(head: bytes, at: int, end: int) -> bool:
    fields = 0
    try:
        for field in scan(head, at, min(end, len(head))):
            fields += 1
            if not 0 < field.tag >> 3 < MAX_PACKET_FIELD:
                return False
    except WireError:
        return end > len(head) > at
    return fields > 0
