"""The events of a chrome trace's JSON, a few megabytes of text at a time.

Two forms exist: an object whose ``traceEvents`` holds the events, and a bare list (whose
closing bracket may be missing). Memory does not grow with the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

CHUNK_BYTES = 8 * 2**20
LONGEST_PENDING_BYTES = 64 * 2**20
TAIL_BYTES = 2**16
CUTS_TRIED = 3

EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
BETWEEN_EVENTS = re.compile(rb"\}\s*(,)\s*\{")


class Readable(Protocol):
    """A binary file, as far as it is needed here."""

    def read(self, size: int, /) -> bytes: ...


class Args(msgspec.Struct, gc=False):
    """What is read of an event's arguments; anyone's file, so any JSON value."""

    correlation: Any = -1
    stream: Any = -1
    device: Any = -1
    sequence: Any = msgspec.field(name="Sequence number", default=-1)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=-1)


class JsonEvent(msgspec.Struct, gc=False):
    """One event as it stands. Numbers with a fraction are kept as text, to lose no digit."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: Any = 0
    tid: Any = 0
    ts: Any = 0
    dur: Any = 0
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
        cut, events = _decode_front(text)
        if events:
            yield events
            text = text[cut:]
        elif len(text) > LONGEST_PENDING_BYTES:
            break
    yield _decode_list(text) if is_list else _OBJECT.decode(b'{"traceEvents":[' + text).events


def _find_events(file: Readable) -> tuple[bool, bytes]:
    """Whether it is the list form, and the text from the first event on."""
    text = b""
    while more := file.read(CHUNK_BYTES):
        text = (text + more).removeprefix(b"\xef\xbb\xbf")
        if text.lstrip().startswith(b"["):
            return True, text.lstrip()[1:]
        if key := EVENTS_KEY.search(text):
            _OBJECT.decode(text[: key.end()] + b"]}")  # the key is at the top, not nested
            return False, text[key.end() :]
        if len(text) > LONGEST_PENDING_BYTES:
            break
    raise msgspec.DecodeError("there is no list of traceEvents in it")


def _decode_front(text: bytes) -> tuple[int, list[JsonEvent]]:
    """All but the last events of the text, and where the rest begins.

    What looks like the border of two events may lie deeper or in a string; but if the text
    before it decodes as a list, then it is the border, as the text began with an event.
    """
    start = max(0, len(text) - TAIL_BYTES)
    borders = [match.start(1) for match in BETWEEN_EVENTS.finditer(text, start)]
    for border in borders[: -CUTS_TRIED - 1 : -1]:
        try:
            return border + 1, _LIST.decode(b"[" + text[:border] + b"]")
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            continue
    return 0, []


def _decode_list(text: bytes) -> list[JsonEvent]:
    """The end of the list form, with or without its closing bracket."""
    try:
        return _LIST.decode(b"[" + text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return _LIST.decode(b"[" + text.rstrip().removesuffix(b",") + b"]")
