"""The events of a chrome trace's JSON, a megabyte of text at a time.

Two forms exist: an object whose ``traceEvents`` holds the events, and a bare list (whose
closing bracket may be missing). Memory grows with the longest event, not with the file.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

NONE = -1
CHUNK_BYTES = 2**20
"""Small enough for the decoded events to stay in a core's cache until they are columns."""
LONGEST_PENDING_BYTES = 64 * 2**20
TAIL_BYTES = 2**15
CUTS_TRIED = 3
MOST_DEVICES = 1024
LONGEST_DEVICE_NAME = 256
OPEN, CLOSE, COMMA = b"[],"

EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
BETWEEN_EVENTS = re.compile(rb"\}\s*(,)\s*\{")


class Readable(Protocol):
    """The one method of a binary file that is needed here."""

    def readinto(self, buffer: memoryview, /) -> int | None: ...


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that are used; any JSON value, as the file may be anyone's."""

    correlation: Any = -1
    cbid: Any = -1
    kernel: Any = ""
    device: Any = -1
    sequence: Any = msgspec.field(name="Sequence number", default=-1)
    dims: Any = msgspec.field(name="Input Dims", default=None)
    types: Any = msgspec.field(name="Input type", default=None)
    strides: Any = msgspec.field(name="Input Strides", default=None)
    values: Any = msgspec.field(name="Concrete Inputs", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)
    dtype: Any = ""
    in_elements: Any = msgspec.field(name="In msg nelems", default=NONE)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=NONE)
    group_size: Any = msgspec.field(name="Group size", default=NONE)
    group: Any = msgspec.field(name="Process Group Name", default="")
    ranks: Any = msgspec.field(name="Process Group Ranks", default="")
    position: Any = msgspec.field(name="Seq", default=NONE)
    bytes: Any = msgspec.field(name="Bytes", default=0)
    address: Any = msgspec.field(name="Addr", default=0)
    device_type: Any = msgspec.field(name="Device Type", default=NONE)
    device_id: Any = msgspec.field(name="Device Id", default=NONE)
    allocated: Any = msgspec.field(name="Total Allocated", default=0)
    reserved: Any = msgspec.field(name="Total Reserved", default=0)


class JsonEvent(msgspec.Struct, gc=False):
    """One event as written; a ``ts`` with a fraction stays text, so that no digit is lost."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: Any = 0
    tid: Any = 0
    ts: Any = 0
    dur: float = 0.0
    args: Args | None = None


class Document(msgspec.Struct, gc=False):
    """The object form."""

    events: list[JsonEvent] = msgspec.field(name="traceEvents", default_factory=list)
    devices: Any = msgspec.field(name="deviceProperties", default=None)
    base_ns: Any = msgspec.field(name="baseTimeNanoseconds", default=None)


# Called with the text of each number that has a fraction: str.strip returns it unchanged, at
# half the cost of calling a type like str.
_TEXT = str.strip
_LIST = msgspec.json.Decoder(list[JsonEvent], float_hook=_TEXT)
_OBJECT = msgspec.json.Decoder(Document, float_hook=_TEXT)


class Text:
    """The text that is read but not decoded yet, at the start of a reused buffer.

    Attributes:
        devices: Names of the devices by number, from the text decoded so far.
        base_ns: The time that ``ts`` counts from, where that text has it, else 0.
    """

    def __init__(self, file: Readable) -> None:
        self.devices: dict[int, str] = {}
        self.base_ns = 0
        self._file = file
        self._buffer = bytearray(CHUNK_BYTES)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def all(self) -> bytes:
        """The pending text."""
        return bytes(self._buffer[: self._length])

    def note(self, document: Document) -> None:
        """Keep what the object around the events says of them."""
        self.devices |= _device_names(document.devices)
        if isinstance(document.base_ns, int):
            self.base_ns = document.base_ns

    def read_more(self) -> bool:
        """Read on; false at the end of the file."""
        if self._length == len(self._buffer):
            self._buffer *= 2
        with memoryview(self._buffer) as view, view[self._length :] as free:
            count = self._file.readinto(free) or 0
        self._length += count
        return count > 0

    def drop(self, count: int) -> None:
        """Drop this many bytes and move the rest to the start."""
        self._buffer[: self._length - count] = self._buffer[count : self._length]
        self._length -= count

    def take_front(self) -> list[JsonEvent]:
        """Decode all but the last events and drop their text; none if that fails.

        A match of `BETWEEN_EVENTS` may lie deeper or in a string. If the text before it
        decodes as a list, it is a border of two events, since the text began with an event.
        The comma there becomes the bracket that closes this list, then the one that opens the
        next: nothing is copied.
        """
        for border in self._borders(self._length - TAIL_BYTES) or self._borders(0):
            self._buffer[border] = CLOSE
            try:
                with memoryview(self._buffer) as view, view[: border + 1] as front:
                    events = _LIST.decode(front)
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError:
                self._buffer[border] = COMMA
                continue
            self.drop(border)
            self._buffer[0] = OPEN
            return events
        return []

    def _borders(self, start: int) -> list[int]:
        """Offsets of the last commas after ``start`` that look like borders, the last first."""
        matches = BETWEEN_EVENTS.finditer(self._buffer, max(start, 0), self._length)
        return [match.start(1) for match in deque(matches, CUTS_TRIED)][::-1]


def read_events(text: Text) -> Iterator[list[JsonEvent]]:
    """Yield the events in order, in lists of some thousand.

    Raises:
        msgspec.DecodeError: Not a chrome trace, or cut off.
    """
    is_object = _find_list(text)
    while text.read_more():
        if events := text.take_front():
            yield events
        elif len(text) > LONGEST_PENDING_BYTES:
            break
    rest = text.all()
    if is_object:
        document = _OBJECT.decode(b'{"traceEvents":' + rest)
        text.note(document)
        yield document.events
    else:
        yield _decode_list(rest)


def _find_list(text: Text) -> bool:
    """Drop the text before the list's bracket; return whether an object holds the list.

    Raises:
        msgspec.DecodeError: There is no list of events.
    """
    while text.read_more():
        begin = text.all()
        plain = begin.removeprefix(b"\xef\xbb\xbf").lstrip()
        if plain.startswith(b"["):
            text.drop(len(begin) - len(plain))
            return False
        if key := EVENTS_KEY.search(plain):
            # Decodes only if the key is at the top, not nested.
            text.note(_OBJECT.decode(plain[: key.end()] + b"]}"))
            text.drop(len(begin) - len(plain) + key.end() - 1)
            return True
        if len(text) > LONGEST_PENDING_BYTES:
            break
    raise msgspec.DecodeError("there is no list of traceEvents in it")


def _device_names(properties: Any) -> dict[int, str]:
    """Names by number from ``deviceProperties``; any JSON value, as the file may be anyone's."""
    entries = properties[:MOST_DEVICES] if isinstance(properties, list) else []
    devices = ((entry.get("id"), entry.get("name")) for entry in entries if isinstance(entry, dict))
    return {
        number: name
        for number, name in devices
        if isinstance(number, int) and isinstance(name, str) and len(name) <= LONGEST_DEVICE_NAME
    }


def _decode_list(text: bytes) -> list[JsonEvent]:
    """The end of the list form, with or without its closing bracket."""
    try:
        return _LIST.decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return _LIST.decode(text.rstrip().removesuffix(b",") + b"]")
