"""The columns of a `Trace` from its JSON events, chunk by chunk, with times as exact nanoseconds.

A float64 near 1.7e15 µs (a time of today since the Unix epoch) steps by 0.25 µs, so numbers
with a fraction arrive as their JSON text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from ..costs.operands import operands_text
from .events import MODULE_PREFIX, DeviceEvents, HostEvents, Kind, Trace
from .intervals import Times
from .json import Args, JsonEvent

# 31 years before the Unix epoch to 126 after it: differences in nanoseconds fit 63 bits.
EARLIEST_US = -(10**15)
LATEST_US = 4 * 10**15
LONGEST_FRACTION = 3
LONGEST_WHOLE = 16
DIGIT_0, POINT, COMMA = b"0.,"


def nanoseconds(values: Sequence[object]) -> NDArray[np.int64]:
    """Integers (µs) and decimal texts (µs) to ns; digits beyond the nanosecond are cut.

    Raises:
        ValueError: Not a number, or before 1939 or after 2096 as a Unix time.
    """
    if not values:
        return np.zeros(0, dtype=np.int64)
    try:
        joined = ",".join(values)  # type: ignore[arg-type]
    except TypeError:  # whole microseconds are decoded as integers
        joined = ",".join(map(str, values))
    parsed = _parse_plain(joined.encode(), len(values))
    if parsed is None:
        texts = map(str, values)
        parsed = np.fromiter(map(_parse_number, texts), dtype=np.int64, count=len(values))
    return parsed


def _parse_plain(joined: bytes, count: int) -> NDArray[np.int64] | None:
    """All numbers at once, if each is digits with at most three decimals; else None."""
    characters = np.frombuffer(joined, dtype=np.uint8)
    points = np.flatnonzero(characters == POINT)
    ends = np.append(np.flatnonzero(characters == COMMA), len(joined))
    is_digit = (characters - DIGIT_0) <= 9  # unsigned: a character below "0" wraps around
    # Digits, points and commas make up the whole text: no sign, exponent or space is left.
    if len(ends) != count or np.count_nonzero(is_digit) + len(points) + count - 1 != len(joined):
        return None
    points_before = np.searchsorted(points, ends)
    point_count = np.diff(points_before, prepend=0)
    decimals = np.zeros(count, dtype=np.int64)
    with_point = point_count == 1
    # The last point before a number's end is its own: `points_before - 1`, counted from 0.
    decimals[with_point] = ends[with_point] - points[points_before[with_point] - 1] - 1
    # As if a comma stood at -1: a number lies strictly between the commas around it.
    whole_digits = np.diff(ends, prepend=-1) - 1 - point_count - decimals
    if (
        point_count.max() > 1
        or decimals.max() > LONGEST_FRACTION
        or whole_digits.min() < 1
        or whole_digits.max() > LONGEST_WHOLE
    ):
        return None
    # Without its point a number counts units of 10**-decimals µs: integers, so nothing is rounded.
    digits = np.fromstring(joined.replace(b".", b""), dtype=np.int64, sep=",")
    scale = 10 ** (3 - decimals)
    if (digits > LATEST_US * 1000 // scale).any():  # before the product, which must fit 63 bits
        return None
    result: NDArray[np.int64] = digits * scale
    return result


def _parse_number(text: str) -> int:
    """Any JSON number, like -1.5 or 1e-05."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]!r} is not a time") from None
    if not value.is_finite() or not EARLIEST_US <= value <= LATEST_US:
        raise ValueError(f"{text[:40]} µs is out of range")
    return int(value * 1000)


KIND_OF = {
    "cpu_op": Kind.OPERATOR,
    "Operator": Kind.OPERATOR,
    "user_annotation": Kind.ANNOTATION,
    "python_function": Kind.MODULE,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "xpu_driver": Kind.RUNTIME,
    "Runtime": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "Memcpy": Kind.COPY,
    "gpu_memset": Kind.FILL,
    "Memset": Kind.FILL,
}
"""By the event's ``cat``; torch before 2.0 wrote the capitalised ones."""
NAMELESS = "INVALID"
"""Kineto's name for a call of CUDA's runtime that its table lacks: before torch 2.13 all of those
that CUDA 13 brought, every launch that a compiler wrote among them."""
LAUNCH_OF_CBID = {
    **{211: "cudaLaunchKernel", 214: "cudaLaunchKernel_ptsz"},
    **{269: "cudaLaunchCooperativeKernel", 270: "cudaLaunchCooperativeKernel_ptsz"},
    272: "cudaLaunchCooperativeKernelMultiDevice",
    **{311: "cudaGraphLaunch", 312: "cudaGraphLaunch_ptsz"},
    **{430: "cudaLaunchKernelExC", 431: "cudaLaunchKernelExC_ptsz"},
    **{505: "__cudaLaunchKernel", 506: "__cudaLaunchKernel_ptsz"},
}
"""The runtime's launches by CUPTI's number of the call (cupti_runtime_cbid.h of CUDA 13). Others
without a name, such as 502 to 504, prepare a launch and launch nothing."""
RUNTIMES = ("cuda_runtime", "Runtime")
"""Categories whose calls have these numbers; the driver's numbers mean other calls."""
ON_HOST = {category: int(kind) for category, kind in KIND_OF.items() if kind < Kind.KERNEL}
ON_DEVICE = {category: int(kind) for category, kind in KIND_OF.items() if kind >= Kind.KERNEL}
UNREAD = frozenset(
    ("cuda_profiler_range", "glow_runtime", "hpu_op", "mtia_ccp_events", "mtia_insight")
)
"""Kineto's categories (``ActivityType.cpp``) of other devices' events, and of times that CUPTI's
range profiler gives in place of kernels."""
PYTHON = "python_function"
INSTANT = "cpu_instant_event"
CATEGORY = attrgetter("cat")
THREAD_BITS = 32

AnyColumns = TypeVar("AnyColumns", HostEvents, DeviceEvents)
NO_ARGS = Args()
NONE = -1
LONGEST_OPERANDS = 2**18
"""Characters: more than an optimizer's list of a thousand tensors has."""
LONGEST_US = 1e12
MOST_EVENTS = 2**24
MOST_CHARACTERS = 2**28
"""A real trace stays far below these; a file that was packed to be huge does not."""


class PackedColumns(msgspec.Struct, frozen=True):
    """The events of a file's part on their way between processes; columns of 64-bit integers."""

    seen: int
    names: list[str]
    processes: list[Any]
    threads: list[Any]
    operands: list[bytes]
    devices: dict[int, str]
    unread: dict[str, int]
    has_requests: bool
    host: dict[str, bytes]
    device: dict[str, bytes]


class _Numbers(dict[Any, int]):
    """Numbers values in the order in which they appear; ``characters`` is their total length."""

    characters = 0

    def __missing__(self, value: object) -> int:
        number = self[value] = len(self)
        self.characters += len(value) if isinstance(value, str | bytes) else 0
        return number

    def of(self, values: Sequence[Any]) -> NDArray[np.int64]:
        return np.fromiter(map(self.__getitem__, values), dtype=np.int64, count=len(values))


class Collector:
    """Collects the columns of a `Trace`, chunk by chunk."""

    def __init__(self) -> None:
        self.names = _Numbers()
        self.processes = _Numbers()
        self.threads = _Numbers()
        self.operands = _Numbers()
        self.devices: dict[int, str] = {}
        self.unread: Counter[str] = Counter()
        self.has_requests = False
        self.host: list[HostEvents] = []
        self.device: list[DeviceEvents] = []
        self.seen = 0
        self.kept = 0

    def add(self, events: list[JsonEvent]) -> None:
        """Add the events that take time: host ranges and calls, and device work.

        Raises:
            ValueError: A number is out of range, or there is too much.
        """
        self.seen += len(events)
        # A set first: few chunks have any of these, and counting costs more than comparing.
        categories = set(map(CATEGORY, events))
        self.has_requests |= INSTANT in categories
        if UNREAD & categories:
            self.unread.update(
                event.cat for event in events if event.cat in UNREAD and event.ph == "X"
            )
        self._add_host(
            [
                event
                for event in events
                if event.cat in ON_HOST
                and event.ph == "X"
                and (event.cat != PYTHON or event.name.startswith(MODULE_PREFIX))
            ]
        )
        self._add_device([event for event in events if event.cat in ON_DEVICE and event.ph == "X"])
        self._check_size()

    def packed(self) -> bytes:
        """All events added so far, for `add_packed` in another process."""
        columns = [
            {name: getattr(events, name).tobytes() for name in events.__slots__}
            for events in (_joined(self.host), _joined(self.device))
        ]
        return msgspec.msgpack.encode(
            PackedColumns(
                self.seen,
                list(self.names),
                list(self.processes),
                list(self.threads),
                list(self.operands),
                self.devices,
                self.unread,
                self.has_requests,
                *columns,
            )
        )

    def add_packed(self, packed: bytes) -> None:
        """Add what another process collected.

        Raises:
            ValueError: The bytes are incomplete, or there is too much.
        """
        part = msgspec.msgpack.decode(packed, type=PackedColumns)
        host, device = (
            {name: np.frombuffer(values, dtype=np.int64) for name, values in columns.items()}
            for columns in (part.host, part.device)
        )
        # The part numbered its values from 0: index its columns by the numbers given here.
        names = self.names.of(part.names)
        process, thread = self.processes.of(part.processes), self.threads.of(part.threads)
        host["thread"] = (
            process[host["thread"] >> THREAD_BITS] << THREAD_BITS
            | thread[host["thread"] % 2**THREAD_BITS]
        )
        operands = np.r_[self.operands.of(part.operands), NONE]  # index -1 reads the last
        host |= {"name": names[host["name"]], "operands": operands[host["operands"]]}
        self.host.append(HostEvents(**host))
        self.device.append(DeviceEvents(**device | {"name": names[device["name"]]}))
        self.devices |= part.devices
        self.unread.update(part.unread)
        self.has_requests |= part.has_requests
        self.seen += part.seen
        self._check_size()

    def _check_size(self) -> None:
        self.kept += len(self.host[-1]) + len(self.device[-1])
        if self.kept > MOST_EVENTS:
            raise ValueError(f"more than {MOST_EVENTS:,} timed events")
        if self.names.characters + self.operands.characters > MOST_CHARACTERS:
            raise ValueError(f"its names have more than {MOST_CHARACTERS:,} characters")

    def _add_host(self, events: list[JsonEvent]) -> None:
        _, names, categories, processes, threads, times, durations, all_args = _fields(events)
        args = [arg or NO_ARGS for arg in all_args]
        if NAMELESS in names:
            names = tuple(map(_named, names, categories, args))
        start = nanoseconds(times)
        self.host.append(
            HostEvents(
                kind=_integers([ON_HOST[category] for category in categories]),
                name=self.names.of(names),
                thread=self.processes.of(processes) << THREAD_BITS | self.threads.of(threads),
                start=start,
                end=start + _durations(durations),
                correlation=_integers([arg.correlation for arg in args]),
                sequence=_integers([arg.sequence for arg in args]),
                operands=self._operands_of(args),
            )
        )

    def _operands_of(self, args: list[Args]) -> NDArray[np.int64]:
        """Numbers of the operators' inputs; -1 where the profiler recorded no shapes."""
        if all(arg.dims is None for arg in args):
            return np.full(len(args), NONE)
        texts = [b"" if arg.dims is None else operands_text(arg) for arg in args]
        numbers = [
            self.operands[text] if 0 < len(text) <= LONGEST_OPERANDS else NONE for text in texts
        ]
        return np.array(numbers, dtype=np.int64)

    def _add_device(self, events: list[JsonEvent]) -> None:
        _, names, categories, _, _, times, durations, all_args = _fields(events)
        args = [arg or NO_ARGS for arg in all_args]
        start = nanoseconds(times)
        self.device.append(
            DeviceEvents(
                kind=_integers([ON_DEVICE[category] for category in categories]),
                name=self.names.of(names),
                device=_integers([arg.device for arg in args]),
                start=start,
                end=start + _durations(durations),
                correlation=_integers([arg.correlation for arg in args]),
            )
        )

    def finished(self) -> Trace:
        """The chunks joined, times counted from the first event."""
        host, device = _joined(self.host), _joined(self.device)
        starts = [int(events.start.min()) for events in (host, device) if len(events)]
        base_ns = min(starts, default=0)
        for events in (host, device):  # joining copied the columns, so they may change in place
            events.start[:] -= base_ns
            events.end[:] -= base_ns
        return Trace(
            names=list(self.names),
            base_ns=base_ns,
            host=host,
            device=device,
            operands=list(self.operands),
            devices=self.devices,
            unread=dict(self.unread),
            has_requests=self.has_requests,
        )


def _named(name: str, category: str, args: Args) -> str:
    """The name of a launch that the profiler had no name for; else the name as it is."""
    if name != NAMELESS or category not in RUNTIMES or not isinstance(args.cbid, int):
        return name
    return LAUNCH_OF_CBID.get(args.cbid, name)


def _fields(events: list[JsonEvent]) -> list[tuple[Any, ...]]:
    """One tuple of values per field; quicker than reading each field of each event."""
    return list(zip(*map(astuple, events), strict=True)) or [()] * len(JsonEvent.__struct_fields__)


def _joined(chunks: list[AnyColumns]) -> AnyColumns:
    kind = type(chunks[0])
    names = kind.__slots__
    return kind(
        **{name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in names}
    )


def _durations(values: Sequence[float]) -> Times:
    """Microseconds to nanoseconds; below the limit a float64 resolves them.

    Raises:
        ValueError: Longer than eleven days.
    """
    # A profiler that was stopped inside an event may have written a negative duration.
    microseconds = np.maximum(np.array(values, dtype=np.float64), 0)
    if microseconds.max(initial=0) > LONGEST_US:
        raise ValueError("a duration is out of range")
    return np.asarray(np.rint(microseconds * 1000), dtype=np.int64)


def _integers(values: list[Any]) -> NDArray[np.int64]:
    """Integers unchanged; any other value, which only a foreign trace has, as -1."""
    try:
        return np.fromiter(values, dtype=np.int64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        checked = (
            value if isinstance(value, int) and abs(value) < 2**63 else -1 for value in values
        )
        return np.fromiter(checked, dtype=np.int64, count=len(values))
