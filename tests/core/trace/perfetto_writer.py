"""Encodes a chrome trace as a Perfetto trace, by the public ``protos/perfetto/trace``.

``layout`` is the order of a file: ``blocks`` as torch writes it, all begins and then all ends;
``pairs`` each begin with its end; ``sorted`` by time on every track, where slices that overlap
without nesting get a track of their own.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

BEGIN, END, INSTANT = 1, 2, 3
SEQUENCE = 7
DELTA_CLOCK = 64
CLEARED, NEEDED = 1, 2
BOOT_NS = 5_000
PACKETS_AT_ONCE = 100


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number(field_number: int, value: int) -> bytes:
    return varint(field_number << 3) + varint(value)


def fixed64(field_number: int, value: int) -> bytes:
    return varint(field_number << 3 | 1) + struct.pack("<Q", value)


def message(field_number: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return varint(field_number << 3 | 2) + varint(len(body)) + body


def text(field_number: int, value: str) -> bytes:
    return message(field_number, value.encode("utf-8", "replace"))


def value_of(value: object) -> bytes:
    """The value of a DebugAnnotation."""
    match value:
        case bool():
            return number(2, value)
        case int():
            return number(4, value) if -(2**63) <= value < 2**63 else text(6, str(value))
        case float():
            return varint(5 << 3 | 1) + struct.pack("<d", value)
        case str():
            return text(6, value)
        case dict():
            return b"".join(message(11, text(10, key), value_of(v)) for key, v in value.items())
        case list():
            return b"".join(message(12, value_of(v)) for v in value)
        case _:
            return text(6, "null")


def nanoseconds(microseconds: object) -> int:
    return int(Decimal(str(microseconds)) * 1000)


@dataclass
class PerfettoWriter:
    layout: str = "blocks"
    interned: bool = True
    delta_clock: bool = False
    packed: bool = False
    packets: list[bytes] = field(default_factory=list)
    texts: dict[tuple[int, str], int] = field(default_factory=dict)
    uuids: dict[object, int] = field(default_factory=dict)
    now: int = BOOT_NS

    def write(self, chrome: Path, path: Path) -> Path:
        data = chrome.read_bytes()
        plain = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        document = json.loads(plain.decode("utf-8", "replace"), parse_float=Decimal)
        facts = document if isinstance(document, dict) else {}
        self.start(facts)
        self.add_events(facts.get("traceEvents", document))
        path.write_bytes(self.encoded())
        return path

    def encoded(self) -> bytes:
        packets = self.packets
        if self.packed:
            parts = [
                b"".join(packets[at : at + PACKETS_AT_ONCE])
                for at in range(0, len(packets), PACKETS_AT_ONCE)
            ]
            packets = [message(1, message(50, zlib.compress(part))) for part in parts]
        return b"".join(packets)

    def packet(self, *parts: bytes) -> None:
        self.packets.append(message(1, *parts, number(10, SEQUENCE)))

    def start(self, facts: dict[str, Any]) -> None:
        base = facts.get("baseTimeNanoseconds", 0)
        clocks = [(6, BOOT_NS), (1, base), (DELTA_CLOCK, 0)]
        self.packet(
            message(
                6,
                *(
                    message(1, number(1, clock), number(2, at), number(3, clock == DELTA_CLOCK))
                    for clock, at in clocks
                ),
            ),
            number(13, CLEARED),
        )
        for key in ("distributedInfo", "deviceProperties"):
            if key in facts:
                name = "trace_metadata" if key == "distributedInfo" else "device_properties"
                label = key if key == "distributedInfo" else "properties"
                said = json.dumps(facts[key], default=float)
                annotation = message(4, text(10, label), text(6, said))
                self.event(INSTANT, BOOT_NS, 0, text(23, name), annotation)

    def event(self, kind: int, at: int, track: int, *parts: bytes) -> None:
        time = [number(8, at)]
        if self.delta_clock:
            time = [number(8, at - self.now), number(58, DELTA_CLOCK)]
            self.now = at
        self.packet(*time, message(11, number(9, kind), number(11, track), *parts))

    def track(self, pid: object, tid: object, lane: int) -> int:
        """The uuid of a thread's track, or of one inside it."""
        key = (str(pid), str(tid), lane)
        if key in self.uuids:
            return self.uuids[key]
        if lane:
            parent = self.track(pid, tid, 0)
            inside = [number(5, parent)]
        else:
            process = self.uuids.setdefault(("process", str(pid)), 2**63 + len(self.uuids))
            own = [number(1, self.whole(pid)), number(2, self.whole(tid))]
            inside = [number(5, process), message(4, *own)]
        uuid = self.uuids[key] = 2**63 + len(self.uuids)
        self.packet(message(60, number(1, uuid), *inside))
        return uuid

    def whole(self, name: object) -> int:
        numbers = self.uuids.setdefault(("number", str(name)), 2**30 + len(self.uuids))
        return name if isinstance(name, int) else numbers

    def named(self, by_iid: int, inline: int, table: int, value: str) -> bytes:
        """A text, inline or interned before the next packet."""
        if not self.interned:
            return text(inline, value)
        key = (table, value)
        if key not in self.texts:
            self.texts[key] = len(self.texts) + 1
            entry = message(table, number(1, self.texts[key]), text(2, value))
            self.packet(message(12, entry), number(13, NEEDED))
        return number(by_iid, self.texts[key])

    def described(self, event: dict[str, Any]) -> list[bytes]:
        """What a begin or an instant says of its event."""
        parts = [self.named(10, 23, 2, str(event.get("name", "")))]
        if event.get("cat"):
            parts.append(self.named(3, 22, 1, event["cat"]))
        arguments = event.get("args") or {}
        for key, value in arguments.items() if isinstance(arguments, dict) else ():
            value = float(value) if isinstance(value, Decimal) else value
            parts.append(message(4, self.named(1, 10, 3, key), value_of(value)))
        return parts

    def add_events(self, events: Iterable[dict[str, Any]]) -> None:
        slices = defaultdict[tuple[object, object], list[tuple[int, int, dict[str, Any]]]](list)
        every = []
        for event in events:
            if not isinstance(event, dict) or event.get("ph") not in ("X", "i"):
                continue
            start = nanoseconds(event.get("ts", 0)) + BOOT_NS
            end = start + max(0, round(float(event.get("dur", 0)) * 1000))
            place = (event.get("pid"), event.get("tid"))
            if event["ph"] == "i":
                track = self.track(*place, 0) if self.layout != "sorted" else self.track(*place, -1)
                self.event(INSTANT, start, track, *self.described(event))
            elif self.layout == "sorted":
                slices[place].append((start, end, event))
            else:
                every.append((start, end, self.track(*place, 0), event))
        for place, rows in slices.items():
            for lane, row in enumerate(nested(rows)):
                self.add_sorted(row, self.track(*place, lane))
        if self.layout == "pairs":
            for start, end, track, event in every:
                self.event(BEGIN, start, track, *self.described(event))
                self.event(END, end, track)
        else:
            for start, _, track, event in every:
                self.event(BEGIN, start, track, *self.described(event))
            for _, end, track, _ in every:
                self.event(END, end, track)

    def add_sorted(self, row: list[tuple[int, int, dict[str, Any]]], track: int) -> None:
        opened: list[int] = []
        for start, end, event in row:
            while opened and opened[-1] <= start:
                self.event(END, opened.pop(), track)
            self.event(BEGIN, start, track, *self.described(event))
            opened.append(end)
        while opened:
            self.event(END, opened.pop(), track)


def nested(
    rows: list[tuple[int, int, dict[str, Any]]],
) -> Iterator[list[tuple[int, int, dict[str, Any]]]]:
    """Split slices into rows that nest."""
    rows = sorted(rows, key=lambda each: (each[0], -each[1]))
    while rows:
        fitting, others, opened = [], [], list[int]()
        for each in rows:
            while opened and opened[-1] <= each[0]:
                opened.pop()
            if opened and opened[-1] < each[1]:
                others.append(each)
            else:
                fitting.append(each)
                opened.append(each[1])
        yield fitting
        rows = others
