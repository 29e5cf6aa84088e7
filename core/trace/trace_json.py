"""Read the events of a chrome trace's JSON in chunks, and count the work that is not read.

The file is an object with the events in ``traceEvents``, or a bare list (whose closing bracket may
be missing). Memory grows with the longest event, not with the file.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from io import BufferedIOBase, BufferedReader
from math import inf, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from sysbench.core.trace.json_repair import (
    AFTER_EVENTS,
    BEFORE_EVENTS,
    TEXT_NUMBERS,
    JsonFault,
    RepairedList,
    decode_list,
)

NONE = -1
CHUNK_BYTES = 2**20
"""Decoded events fit in a core's cache until they are columns."""
MAX_PENDING_BYTES = 64 * 2**20
MAX_REPAIRED_BYTES = 16 * 2**20
"""Text without an event that can be read, up to which repairs are tried."""
TAIL_BYTES = 2**15
CUTS_TRIED = 3
MAX_DEVICES = 1024
MAX_DEVICE_NAME_LENGTH = 256
OPEN, CLOSE, COMMA = b"[],"

EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
TEXT_TIME = re.compile(rb'"(?:ts|dur)"\s*+:\s*+"')
BETWEEN_EVENTS = re.compile(rb"\}\s*(,)\s*\{")


GZIP_MAGIC = b"\x1f\x8b"

E = TypeVar("E")
D = TypeVar("D")


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
    purpose: Any = msgspec.field(name="Process Group Description", default="")
    source: Any = msgspec.field(name="Src Rank", default=NONE)
    target: Any = msgspec.field(name="Dst Rank", default=NONE)
    position: Any = msgspec.field(name="Seq", default=NONE)
    bytes: Any = msgspec.field(name="Bytes", default=0)
    copied: Any = msgspec.field(name="bytes", default=NONE)
    address: Any = msgspec.field(name="Addr", default=0)
    device_type: Any = msgspec.field(name="Device Type", default=NONE)
    device_id: Any = msgspec.field(name="Device Id", default=NONE)
    allocated: Any = msgspec.field(name="Total Allocated", default=0)
    reserved: Any = msgspec.field(name="Total Reserved", default=0)
    process_name: Any = msgspec.field(name="name", default="")
    labels: Any = ""
    external: Any = msgspec.field(name="External id", default=NONE)
    sync: Any = msgspec.field(name="cuda_sync_kind", default="")
    waits_for: Any = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=NONE)


class JsonEvent(msgspec.Struct, gc=False):
    """One event; a ``ts`` with a fraction stays text, to be exact. ``dur`` is NaN if absent."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: Any = 0
    tid: Any = 0
    ts: Any = None
    dur: float | None = nan
    args: Args | None = None


class Document(msgspec.Struct, Generic[E], gc=False):
    events: list[E] = msgspec.field(name="traceEvents", default_factory=list)
    devices: Any = msgspec.field(name="deviceProperties", default=None)
    base_ns: Any = msgspec.field(name="baseTimeNanoseconds", default=None)


# Called with the text of each number that has a fraction: str.strip returns it unchanged, at
# half the cost of calling a type like str.
_TEXT = str.strip


class MalformedTraceError(ValueError):
    """The text is not the JSON of a trace; the message has line, column and cause."""


class Text(Generic[E]):
    """Text that is read but not decoded, at the start of a reused buffer.

    ``devices`` are names by number, ``base_ns`` the time that ``ts`` counts from, or 0, and
    ``repairs`` what was repaired, with counts: of the text decoded so far.
    """

    def __init__(
        self, file: BufferedIOBase, event: type[E], float_hook: Callable[[str], Any] = _TEXT
    ) -> None:
        self.list = msgspec.json.Decoder(list[event], float_hook=float_hook)  # type: ignore[valid-type]
        self.object = msgspec.json.Decoder(Document[event], float_hook=float_hook)  # type: ignore[valid-type]
        # Reads numbers that are written as text.
        self._lax = msgspec.json.Decoder(list[event], float_hook=float_hook, strict=False)  # type: ignore[valid-type]
        self._event, self._float_hook = event, float_hook
        self.devices: dict[int, str] = {}
        self.base_ns = 0
        self.repairs: Counter[str] = Counter()
        self._file = file
        self._buffer = bytearray(CHUNK_BYTES)
        self._length = 0
        self._lines = 0  # in the text that was dropped
        self._columns = 0  # bytes of its last line
        self._repair_at = 0  # length from which the next repair is tried

    def __len__(self) -> int:
        return self._length

    def all(self) -> bytes:
        return bytes(self._buffer[: self._length])

    def note(self, document: Document[Any]) -> None:
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
        if lines := self._buffer.count(b"\n", 0, count):
            self._lines += lines
            self._columns = count - 1 - self._buffer.rfind(b"\n", 0, count)
        else:
            self._columns += count
        self._buffer[: self._length - count] = self._buffer[count : self._length]
        self._length -= count

    def take_front(self) -> list[E]:
        """Decode all but the last events and drop their text; return none if that fails.

        A match of `BETWEEN_EVENTS` may be nested or in a string. If the text before it decodes as a
        list, it is a border between events. The comma becomes the closing bracket of this list,
        then the opening one of the next: nothing is copied.
        """
        borders = self._borders(self._length - TAIL_BYTES) or self._borders(0)
        for decode in (self._decode, self._decode_repaired):
            for border in borders:
                self._buffer[border] = CLOSE
                try:
                    with memoryview(self._buffer) as view, view[: border + 1] as front:
                        events = decode(front)
                except msgspec.ValidationError:
                    raise
                except (msgspec.DecodeError, UnicodeDecodeError, JsonFault):
                    self._buffer[border] = COMMA
                    continue
                self._buffer[border] = COMMA
                self.drop(border)
                self._buffer[0] = OPEN
                self._repair_at = 0
                return events
            if not self._repair_at <= self._length <= MAX_REPAIRED_BYTES:
                break
        # Twice the text before the next try, so that all tries together take linear time.
        self._repair_at = 2 * self._length
        return []

    def decode_rest(self, *, is_object: bool) -> list[E]:
        """Decode the last events, and what the object around them has after them."""
        rest = self.all()
        try:
            if not is_object:
                return _decode_open_list(self._decode, rest)
            document = self.object.decode(b'{"traceEvents":' + rest)
            self.note(document)
            return document.events
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # repaired below
        try:
            if is_object:
                found = self._decode_list(rest)
                self._note_around(b'{"traceEvents":[]' + found.rest, AFTER_EVENTS)
            else:
                found = _decode_open_list(self._decode_list, rest)
                self.repairs[AFTER_EVENTS] += bool(found.rest.strip())
        except JsonFault as fault:
            raise self._malformed(fault) from None
        return self._converted(found)

    def note_head(self, head: bytes) -> None:
        """Store what the object around the events has before them, up to their key."""
        self._note_around(head + b"[]}", BEFORE_EVENTS, len(head.decode("utf-8", "replace")))

    def _note_around(self, text: bytes, place: str, length: float = inf) -> None:
        try:
            self.note(self.object.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError):
            try:
                found = decode_list(b"[" + text + b"]")
                # A text that begins with a bracket ends the list at once.
                document = found.values[0] if found.values else None
                self.note(msgspec.convert(document, Document[Any]))
                self.repairs += found.repairs
            except JsonFault as fault:
                # Behind the key, brackets are missing: it lies deeper. Before it, the text is
                # broken, and the events may be whole.
                if fault.position > length:
                    raise self._malformed(fault) from None
                self.repairs[place] += 1
            except msgspec.ValidationError:
                self.repairs[place] += 1

    def _decode(self, data: memoryview | bytes) -> list[E]:
        try:
            return self.list.decode(data)
        except msgspec.ValidationError:
            events = self._lax.decode(data)
        self.repairs[TEXT_NUMBERS] += 1
        return events

    def _decode_repaired(self, data: memoryview) -> list[E]:
        found = self._decode_list(bytes(data))
        if found.rest.strip():  # the border lies behind the list
            raise JsonFault("the list ends earlier", 0, 1, 1, is_end=False)
        return self._converted(found)

    def _decode_list(self, data: bytes) -> RepairedList:
        return decode_list(data, self._float_hook)

    def _converted(self, found: RepairedList) -> list[E]:
        events = msgspec.convert(found.values, list[self._event], strict=False)  # type: ignore[name-defined]
        self.repairs += found.repairs
        return events

    def _malformed(self, fault: JsonFault) -> MalformedTraceError:
        if fault.is_end:
            return MalformedTraceError("it is truncated (copy or record it again)")
        line = self._lines + fault.line
        column = fault.column + (self._columns if fault.line == 1 else 0)
        return MalformedTraceError(f"{fault.cause} in line {line:,}, column {column:,}")

    def _borders(self, start: int) -> list[int]:
        matches = BETWEEN_EVENTS.finditer(self._buffer, max(start, 0), self._length)
        return [match.start(1) for match in deque(matches, CUTS_TRIED)][::-1]


def read_events(text: Text[E]) -> Iterator[list[E]]:
    """Yield the events in order, in lists of some thousand.

    Raises msgspec.DecodeError for no chrome trace, MalformedTraceError if it is truncated or
    broken.
    """
    is_object = _find_list(text)
    while text.read_more():
        if events := text.take_front():
            yield events
        elif len(text) > MAX_PENDING_BYTES:
            break
    yield text.decode_rest(is_object=is_object)


def _find_list(text: Text[E]) -> bool:
    """Drop the text before the list's bracket; return whether an object contains the list."""
    while text.read_more():
        begin = text.all()
        plain = begin.removeprefix(b"\xef\xbb\xbf").lstrip()
        if plain.startswith(b"["):
            text.drop(len(begin) - len(plain))
            text.repairs[TEXT_NUMBERS] += bool(TEXT_TIME.search(plain))
            return False
        if key := EVENTS_KEY.search(plain):
            text.note_head(plain[: key.end() - 1])
            text.repairs[TEXT_NUMBERS] += bool(TEXT_TIME.search(plain, key.end()))
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


def _decode_open_list(decode: Callable[[bytes], D], rest: bytes) -> D:
    """Decode a list whose closing bracket may be missing."""
    try:
        return decode(rest)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, JsonFault) as error:
        try:
            return decode(rest.rstrip().removesuffix(b",") + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError, JsonFault):
            raise error from None


MAX_HEAD_BYTES = 2**22
"""Kineto writes all process groups with their ranks before the events."""
MAX_RANKS = 2**20
UNNAMED = "undefined"
"""Description of a process group that the program gave none, as torch writes it."""


class TraceOrigin(NamedTuple):
    """Rank and size of the job, if known; ``group`` is the name of the only process group, else
    empty; ``clock_base_ns`` is the Unix time at which the file's times begin. ``purposes`` are the
    names that the program gave its process groups, by torch's names."""

    rank: int | None = None
    world_size: int | None = None
    group: str = ""
    clock_base_ns: int = 0
    purposes: Mapping[str, str] = MappingProxyType({})


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
    config = facts.get("pg_config")
    groups = [group for group in config if isinstance(group, dict)] if type(config) is list else []
    names = [(_text(group.get("pg_name")), _text(group.get("pg_desc"))) for group in groups]
    return TraceOrigin(
        rank=_count(facts.get("rank")),
        world_size=_count(facts.get("world_size")),
        group=names[0][0] if len(names) == 1 else "",
        purposes={name: purpose for name, purpose in names if purpose not in ("", UNNAMED)},
        clock_base_ns=base if type(base) is int and 0 <= base < 2**62 else 0,
    )


def _text(value: object) -> str:
    return value[:256] if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_RANKS else None


UNREAD = frozenset(
    ("cuda_profiler_range", "glow_runtime", "hpu_op", "mtia_ccp_events", "mtia_insight")
)
"""Kineto's categories (``ActivityType.cpp``) of other devices, and of times that CUPTI's range
profiler reports in place of kernels."""
NO_WORK = frozenset(
    (
        *("overhead", "cuda_event", "Trace", "collective_comm", "ac2g", "fwdbwd"),
        *("cpu_instant_event", "python_function", "external_correlation"),
        *("mtia_runtime", "privateuse1_runtime", "privateuse1_driver", "gpu_pm_counter"),
    )
)
"""Kineto's categories of ranges, calls and arrows that are no work of a device."""
DEVICE_PROCESS = re.compile(
    r"ascend|\bnpu|/device:|\btpu|\bxla|\bhpu|gaudi|neuron|\bmlu|musa|\bipu|\bgpu|\bxpu|hccl"
    r"|communication|hardware|accelerator",
    re.IGNORECASE,
)
"""Names and labels of processes whose events are those of a device."""
DEVICE_CATEGORY = re.compile(r"kernel|memcpy|memset|npu|hpu|tpu|xla|mlu|musa", re.IGNORECASE)
"""Categories of other profilers for the work of a device."""
MAX_PROCESSES = 4096
WITHOUT_CATEGORY = "events without a category, in processes that run no operator"
PROCESS_FACTS = ("process_name", "process_labels")
MAX_NAME_LENGTH = 256


class UnreadWork:
    """Timed events of categories that are not read, by process and category."""

    def __init__(self) -> None:
        self.host_processes: set[Any] = set()
        self._names: dict[Any, str] = {}
        self._counts: Counter[tuple[Any, str]] = Counter()

    def name_processes(self, facts: list[JsonEvent]) -> None:
        """Store the names and labels of processes from metadata events."""
        for event in facts:
            if event.name in PROCESS_FACTS and event.args is not None:
                known = self._names.get(event.pid, "")
                words = f"{event.args.process_name} {event.args.labels}".strip()
                if words not in known and len(self._names) < MAX_PROCESSES:
                    self._names[event.pid] = f"{known} {words}".strip()[:MAX_NAME_LENGTH]

    def add(self, events: list[JsonEvent]) -> None:
        """Count timed events whose categories are not read."""
        if len(self._counts) < MAX_PROCESSES:
            unknown = (event for event in events if event.cat not in NO_WORK)
            self._counts.update((event.pid, event.cat[:MAX_NAME_LENGTH]) for event in unknown)

    def counts(self) -> dict[str, int]:
        """Return counts of events that are the work of devices, by the process or the category.

        A process without a name counts as a device if its events have no category and the host's
        operators are in another process.
        """
        unread: Counter[str] = Counter()
        for (process, category), count in self._counts.items():
            known = self._names.get(process, "")
            is_device = category in UNREAD or DEVICE_CATEGORY.search(category)
            if process not in self.host_processes and DEVICE_PROCESS.search(known):
                unread[category if category in UNREAD else f"events of {known}"] += count
            elif is_device:
                unread[category] += count
            elif self.host_processes and process not in self.host_processes:
                unread[WITHOUT_CATEGORY] += 0 if known or category else count
        return dict(+unread)
