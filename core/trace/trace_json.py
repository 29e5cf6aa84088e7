"""Read the events of a chrome trace's JSON in chunks of a megabyte.

The file is an object with the events in ``traceEvents``, or a bare list (whose closing bracket may
be missing). Memory grows with the longest event, not with the file.
"""

from __future__ import annotations

import gzip
import re
from collections import deque
from collections.abc import Callable, Iterator
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

NONE = -1
CHUNK_BYTES = 2**20
"""Decoded events fit in a core's cache until they are columns."""
MAX_PENDING_BYTES = 64 * 2**20
TAIL_BYTES = 2**15
CUTS_TRIED = 3
MAX_DEVICES = 1024
MAX_DEVICE_NAME_LENGTH = 256
OPEN, CLOSE, COMMA = b"[],"

EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
BETWEEN_EVENTS = re.compile(rb"\}\s*(,)\s*\{")


GZIP_MAGIC = b"\x1f\x8b"

E = TypeVar("E")


def unpacked(file: BufferedReader) -> BufferedIOBase:
    return gzip.GzipFile(fileobj=file) if file.peek()[:2] == GZIP_MAGIC else file


class Args(msgspec.Struct, gc=False):
    """Arguments of an event; any JSON value, as the source is untrusted."""

    correlation: Any = -1
    cbid: Any = -1
    kernel: Any = ""
    device: Any = -1
    stream: Any = -1
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
    copied: Any = msgspec.field(name="bytes", default=NONE)
    address: Any = msgspec.field(name="Addr", default=0)
    device_type: Any = msgspec.field(name="Device Type", default=NONE)
    device_id: Any = msgspec.field(name="Device Id", default=NONE)
    allocated: Any = msgspec.field(name="Total Allocated", default=0)
    reserved: Any = msgspec.field(name="Total Reserved", default=0)


class JsonEvent(msgspec.Struct, gc=False):
    """One event; a ``ts`` with a fraction stays text, to be exact."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: Any = 0
    tid: Any = 0
    ts: Any = 0
    dur: float = 0.0
    args: Args | None = None


class Document(msgspec.Struct, Generic[E], gc=False):
    events: list[E] = msgspec.field(name="traceEvents", default_factory=list)
    devices: Any = msgspec.field(name="deviceProperties", default=None)
    base_ns: Any = msgspec.field(name="baseTimeNanoseconds", default=None)


# Called with the text of each number that has a fraction: str.strip returns it unchanged, at
# half the cost of calling a type like str.
_TEXT = str.strip


class Text(Generic[E]):
    """Text that is read but not decoded, at the start of a reused buffer.

    Attributes:
        devices: Names of devices by number, from the text decoded so far.
        base_ns: The time that ``ts`` counts from, or 0.
    """

    def __init__(
        self, file: BufferedIOBase, event: type[E], float_hook: Callable[[str], Any] = _TEXT
    ) -> None:
        self.list = msgspec.json.Decoder(list[event], float_hook=float_hook)  # type: ignore[valid-type]
        self.object = msgspec.json.Decoder(Document[event], float_hook=float_hook)  # type: ignore[valid-type]
        self.devices: dict[int, str] = {}
        self.base_ns = 0
        self._file = file
        self._buffer = bytearray(CHUNK_BYTES)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def all(self) -> bytes:
        return bytes(self._buffer[: self._length])

    def note(self, document: Document[E]) -> None:
        """Store the device names and base time of the object around the events."""
        self.devices |= device_names(document.devices)
        if isinstance(document.base_ns, int):
            self.base_ns = document.base_ns

    def read_more(self) -> bool:
        """Read a chunk; return False at the end of the file."""
        if self._length == len(self._buffer):
            self._buffer *= 2
        with memoryview(self._buffer) as view, view[self._length :] as free:
            count = self._file.readinto(free)
        self._length += count
        return count > 0

    def drop(self, count: int) -> None:
        self._buffer[: self._length - count] = self._buffer[count : self._length]
        self._length -= count

    def take_front(self) -> list[E]:
        """Decode all but the last events and drop their text; return none if that fails.

        A match of `BETWEEN_EVENTS` may be nested or in a string. If the text before it decodes as a
        list, it is a border between events. The comma becomes the closing bracket of this list,
        then the opening one of the next: nothing is copied.
        """
        for border in self._borders(self._length - TAIL_BYTES) or self._borders(0):
            self._buffer[border] = CLOSE
            try:
                with memoryview(self._buffer) as view, view[: border + 1] as front:
                    events = self.list.decode(front)
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
        matches = BETWEEN_EVENTS.finditer(self._buffer, max(start, 0), self._length)
        return [match.start(1) for match in deque(matches, CUTS_TRIED)][::-1]


def read_events(text: Text[E]) -> Iterator[list[E]]:
    """Yield the events in order, in lists of some thousand.

    Raises:
        msgspec.DecodeError: Not a chrome trace, or truncated.
    """
    is_object = _find_list(text)
    while text.read_more():
        if events := text.take_front():
            yield events
        elif len(text) > MAX_PENDING_BYTES:
            break
    rest = text.all()
    if is_object:
        document = text.object.decode(b'{"traceEvents":' + rest)
        text.note(document)
        yield document.events
    else:
        yield _decode_list(text, rest)


def _find_list(text: Text[E]) -> bool:
    """Drop the text before the list's bracket; return whether an object contains the list.

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
            text.note(text.object.decode(plain[: key.end()] + b"]}"))
            text.drop(len(begin) - len(plain) + key.end() - 1)
            return True
        if len(text) > MAX_PENDING_BYTES:
            break
    raise msgspec.DecodeError("it has no list of traceEvents")


def device_names(properties: Any) -> dict[int, str]:
    entries = properties[:MAX_DEVICES] if isinstance(properties, list) else []
    devices = ((entry.get("id"), entry.get("name")) for entry in entries if isinstance(entry, dict))
    return {
        number: name
        for number, name in devices
        if isinstance(number, int) and isinstance(name, str) and len(name) <= MAX_DEVICE_NAME_LENGTH
    }


def _decode_list(text: Text[E], rest: bytes) -> list[E]:
    try:
        return text.list.decode(rest)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return text.list.decode(rest.rstrip().removesuffix(b",") + b"]")


MAX_HEAD_BYTES = 2**22
"""Kineto writes all process groups with their ranks before the events."""
MAX_RANKS = 2**20


class TraceOrigin(NamedTuple):
    """Rank and size of the job, if known; ``group`` is the name of the only process group, else
    empty; ``clock_base_ns`` is the Unix time at which the file's times begin."""

    rank: int | None = None
    world_size: int | None = None
    group: str = ""
    clock_base_ns: int = 0


class _Head(msgspec.Struct):
    distributed: Any = msgspec.field(name="distributedInfo", default=None)
    base: Any = msgspec.field(name="baseTimeNanoseconds", default=0)


def read_origin(path: Path) -> TraceOrigin:
    """Read the origin from the text before the events; without facts if there are none."""
    with path.open("rb") as file:
        head = unpacked(file).read(MAX_HEAD_BYTES)
    key = EVENTS_KEY.search(head)
    if key is None:
        return TraceOrigin()
    try:
        document = msgspec.json.decode(head[: key.end()] + b"]}", type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return TraceOrigin()  # reading the events reports the error
    return origin_of(document.distributed, document.base)


def origin_of(distributed: object, base: object) -> TraceOrigin:
    """Return the origin from kineto's ``distributedInfo`` and the Unix time of time 0."""
    facts = distributed if isinstance(distributed, dict) else {}
    groups = facts.get("pg_config")
    only = groups[0] if isinstance(groups, list) and len(groups) == 1 else {}
    name = only.get("pg_name") if isinstance(only, dict) else ""
    return TraceOrigin(
        rank=_count(facts.get("rank")),
        world_size=_count(facts.get("world_size")),
        group=name[:256] if isinstance(name, str) else "",
        clock_base_ns=base if type(base) is int and 0 <= base < 2**62 else 0,
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_RANKS else None
