"""The events of a chrome trace's JSON, a few megabytes of text at a time.

Two forms exist: an object whose ``traceEvents`` holds the events, and a bare list (whose
closing bracket may be missing). Memory does not grow with the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

CHUNK_BYTES = 4 * 2**20
LONGEST_PENDING_BYTES = 64 * 2**20
TAIL_BYTES = 2**16
CUTS_TRIED = 3
OPEN, CLOSE, COMMA = b"[],"

EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
BETWEEN_EVENTS = re.compile(rb"\}\s*(,)\s*\{")


class Readable(Protocol):
    """A binary file, as far as it is needed here."""

    def read(self, size: int, /) -> bytes: ...


class Args(msgspec.Struct, gc=False):
    """What is read of an event's arguments; anyone's file, so any JSON value."""

    correlation: Any = -1
    device: Any = -1
    sequence: Any = msgspec.field(name="Sequence number", default=-1)


class JsonEvent(msgspec.Struct, gc=False):
    """One event as it stands; a ``ts`` with a fraction is kept as text, to lose no digit."""

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


_LIST: msgspec.json.Decoder[list[JsonEvent]] = msgspec.json.Decoder(list[JsonEvent], float_hook=str)
_OBJECT: msgspec.json.Decoder[Document] = msgspec.json.Decoder(Document, float_hook=str)


def read_events(file: Readable) -> Iterator[list[JsonEvent]]:
    """The events in order, in lists of some ten thousand.

    Raises:
        msgspec.DecodeError: Not a chrome trace, or cut off.
    """
    is_list, text = _find_events(file)
    while more := file.read(CHUNK_BYTES):
        text += more
        if events := _take_front(text):
            yield events
        elif len(text) > LONGEST_PENDING_BYTES:
            break
    yield _decode_list(text) if is_list else _OBJECT.decode(b'{"traceEvents":' + text).events


def _find_events(file: Readable) -> tuple[bool, bytearray]:
    """Whether it is the list form, and the text from the list's bracket on."""
    text = bytearray()
    while more := file.read(CHUNK_BYTES):
        text += more
        begin = text.removeprefix(b"\xef\xbb\xbf").lstrip()
        if begin.startswith(b"["):
            return True, begin
        if key := EVENTS_KEY.search(begin):
            _OBJECT.decode(begin[: key.end()] + b"]}")  # the key is at the top, not nested
            return False, begin[key.end() - 1 :]
        if len(text) > LONGEST_PENDING_BYTES:
            break
    raise msgspec.DecodeError("there is no list of traceEvents in it")


def _take_front(text: bytearray) -> list[JsonEvent]:
    """Decode all but the last events and take them off the text; none if that fails.

    What looks like the border of two events may lie deeper or in a string; but if the text
    before it decodes as a list, then it is the border, as the text began with an event.
    The comma there closes the one list and opens the next, so that nothing is copied.
    """
    borders = [match.start(1) for match in BETWEEN_EVENTS.finditer(text, len(text) - TAIL_BYTES)]
    for border in borders[: -CUTS_TRIED - 1 : -1]:
        text[border] = CLOSE
        try:
            with memoryview(text) as view, view[: border + 1] as front:
                events = _LIST.decode(front)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            text[border] = COMMA
            continue
        del text[:border]
        text[0] = OPEN
        return events
    return []


def _decode_list(text: bytearray) -> list[JsonEvent]:
    """The end of the list form, with or without its closing bracket."""
    try:
        return _LIST.decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return _LIST.decode(text.rstrip().removesuffix(b",") + b"]")
