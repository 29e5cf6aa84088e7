"""What a snapshot has beside its events: annotated ranges, texts of the user, the ring's length.

Ranges are of ``record_function``, of optimizers and of data loaders, by the clock of the events.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from sysbench.core.memory.history import AnnotationRange, Integers, encodable

START, END = "START", "END"
ALWAYS_NS, NEVER_NS = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


ANNOTATIONS = "external_annotations"
RING_EVENTS, OVERFLOWED = "trace_alloc_max_entries", "trace_alloc_overflowed"
MAX_MARKS = 1_000_000
MAX_RING = 2**40
MAX_LABEL = 200
"""Characters of a text that are kept."""


class AnnotationMark(msgspec.Struct, gc=False):
    """Begin (``START``) or end (``END``) of a range."""

    name: str
    stage: str
    device: int | None = None
    time_us: Annotated[int, msgspec.Meta(ge=0, le=2**52)] = 0


def read_annotations(content: Mapping[str, Any]) -> list[AnnotationMark] | None:
    """Marks of all devices in the order of the file; None if they cannot be read."""
    marks = content.get(ANNOTATIONS) or []
    try:
        return msgspec.convert(marks, list[AnnotationMark]) if len(marks) <= MAX_MARKS else None
    except (TypeError, msgspec.ValidationError):
        return None  # the allocations remain valid; the memory block has the reason


def read_ring(content: Mapping[str, Any]) -> tuple[int | None, bool | None]:
    """Events that the ring holds, and whether it overflowed; None for what is not in the file.

    torch has both in ``allocator_settings``; lists have one value a device.
    """
    settings = content.get("allocator_settings")
    places = [settings, content] if isinstance(settings, dict) else [content]

    def first(key: str) -> object:
        value = next((place[key] for place in places if key in place), None)
        if isinstance(value, list | tuple):
            return max((each for each in value if isinstance(each, int)), default=None)
        return value

    length, is_overflowed = first(RING_EVENTS), first(OVERFLOWED)
    return (
        length if isinstance(length, int) and 0 < length <= MAX_RING else None,
        None if is_overflowed is None else bool(is_overflowed),
    )


class Labels:
    """Numbers distinct texts that the user attached to allocations."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, metadata: Any) -> int:
        """Return the number of a text or a mapping; -1 for none."""
        if isinstance(metadata, dict):
            metadata = ", ".join(f"{key}: {value}" for key, value in metadata.items())
        if not metadata or not isinstance(metadata, str):
            return -1
        return self.numbers.setdefault(encodable(metadata[:MAX_LABEL]), len(self.numbers))


def annotation_ranges(marks: Iterable[AnnotationMark], device: int) -> list[AnnotationRange]:
    """Pair the marks of a device, or all if it has none, into ranges in order of their begin.

    A range without its end is open until the recording ends, one without its begin from before it.
    """
    marks = list(marks)
    own = [mark for mark in marks if mark.device == device] or marks
    opened: defaultdict[str, list[int]] = defaultdict(list)
    ranges = []
    for mark in own:
        if mark.stage == START:
            opened[encodable(mark.name)].append(mark.time_us * 1000)
        elif mark.stage == END:
            name = encodable(mark.name)
            begin_ns = opened[name].pop() if opened[name] else ALWAYS_NS
            # The last nanosecond of the microsecond that was recorded.
            ranges.append(AnnotationRange(begin_ns, mark.time_us * 1000 + 999, name))
    ranges += [
        AnnotationRange(begin_ns, NEVER_NS, name)
        for name, begins in opened.items()
        for begin_ns in begins
    ]
    # Of two that begin together the longer one is around the other.
    return sorted(ranges, key=lambda row: (row.begin_ns, -row.end_ns))


def innermost(ranges: Sequence[AnnotationRange], times_ns: Integers) -> list[str]:
    """Name of the range around each time that began last; ``""`` outside all ranges."""
    names = [""] * len(times_ns)
    if not ranges:
        return names
    opened: list[AnnotationRange] = []
    position = 0
    order = np.argsort(times_ns, kind="stable")
    for index, time_ns in zip(order.tolist(), times_ns[order].tolist(), strict=True):
        while position < len(ranges) and ranges[position].begin_ns <= time_ns:
            opened.append(ranges[position])
            position += 1
        # One that ended below another one is dropped when that one has ended.
        while opened and opened[-1].end_ns < time_ns:
            opened.pop()
        if opened:
            names[index] = opened[-1].name
    return names


def annotated_place(ranges: Sequence[AnnotationRange], time_ns: int) -> str:
    """Where a time lies: ``Optimizer.step#AdamW.step of ProfilerStep#3``; ``""`` without ranges.

    Names that occur several times have a number: ``forward 2 of 6``. Outside all ranges it is the
    one before and the one after: ``between forward 2 of 6 and backward 2 of 6``.
    """
    around = [row for row in ranges if row.begin_ns <= time_ns <= row.end_ns]
    if around:
        outer, inner = around[0], around[-1]
        if inner is outer:
            return _numbered(ranges, inner)
        return f"{inner.name} of {_numbered(ranges, outer)}"
    following = bisect_right(ranges, time_ns, key=lambda row: row.begin_ns)
    before = max(ranges[:following], key=lambda row: row.end_ns, default=None)
    after = ranges[following] if following < len(ranges) else None
    if before and after:
        return f"between {_numbered(ranges, before)} and {_numbered(ranges, after)}"
    if before:
        return f"after {_numbered(ranges, before)}"
    return f"before {_numbered(ranges, after)}" if after else ""


def _numbered(ranges: Sequence[AnnotationRange], row: AnnotationRange) -> str:
    alike = [other for other in ranges if other.name == row.name]
    return f"{row.name} {alike.index(row) + 1} of {len(alike)}" if len(alike) > 1 else row.name
