"""Build the columns of a `Trace` from its JSON events, chunk by chunk."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any

import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from sysbench.core.trace.classify import LAUNCH, SYNC
from sysbench.core.trace.intervals import (
    TOO_LONG,
    Cover,
    NotATimeError,
    Times,
    durations,
    integers,
    is_time,
    nanoseconds,
)
from sysbench.core.trace.operands import operands_text
from sysbench.core.trace.trace_events import (
    MODULE_PREFIX,
    PROCESS_SHIFT,
    CollectiveCall,
    DeviceEvents,
    Flags,
    HostEvents,
    Index,
    Kind,
    NumberedCall,
    Numbers,
    Ranges,
    Synchronization,
    Trace,
    names_fit,
    no_ranges,
)
from sysbench.core.trace.trace_json import NO_WORK, UNNAMED, Args, JsonEvent, UnreadWork

KERNEL_LAUNCH = re.compile(r"Launch(?!HostFunc)")
BEGIN_CAPTURE = re.compile(r"StreamBeginCapture")
END_CAPTURE = re.compile(r"StreamEndCapture")
FILL_LAUNCH = re.compile(r"Memset")


class Launches:
    """Calls of the runtime and the driver. Launches ran on a device, into a graph, or are lost.

    Of a device without launches onto others, and of threads that launch only there.
    """

    def __init__(self, trace: Trace, device: int | None = None) -> None:
        self.calls = trace.host.take(trace.host.kind == Kind.RUNTIME)
        self._names = trace.names
        elsewhere = np.zeros(len(self.calls), dtype=np.bool_)
        here = ~elsewhere
        if device is not None:
            is_here = trace.device.device == device
            has_id = self.calls.correlation > 0
            ran_here, ran_elsewhere = (
                has_id & np.isin(self.calls.correlation, trace.device.correlation[chosen])
                for chosen in (is_here, ~is_here)
            )
            here = np.isin(self.calls.thread, self.calls.thread[ran_here])
            is_other = np.isin(self.calls.thread, self.calls.thread[ran_elsewhere]) & ~here
            elsewhere = (ran_elsewhere & ~ran_here) | is_other
        self._here = here
        self._is_launch = self.named(LAUNCH) & ~elsewhere
        self._captured = self._is_launch & self._in_captures()
        ran = self._is_launch & ~self._captured & (self.calls.correlation > 0)
        at = np.flatnonzero(ran)
        self._lost = at[~np.isin(self.calls.correlation[at], trace.device.correlation)]

    def named(self, pattern: re.Pattern[str]) -> Flags:
        return names_fit(self._names, self.calls.name, pattern.search)

    def lost(self, pattern: re.Pattern[str] = LAUNCH) -> Times:
        """Return the times of launches whose work is on no device, for names that match the pattern
        (`LAUNCH` or narrower)."""
        at = self._lost[self.named(pattern)[self._lost]]
        _, first = np.unique(self.calls.correlation[at], return_index=True)
        return self.calls.start[at[first]]

    def syncs(self) -> Cover:
        """Return the time inside synchronizing calls of the threads that launch onto the device."""
        chosen = self._here & self.named(SYNC)
        return Cover(self.calls.start[chosen], self.calls.end[chosen])

    def count(self, low: int, high: int) -> int:
        # A driver's call inside a runtime's may have the same id: one launch.
        return self._distinct(self._is_launch & ~self._captured, low, high)

    def count_captured(self, low: int, high: int) -> int:
        return self._distinct(self._captured, low, high)

    def _distinct(self, chosen: Flags, low: int, high: int) -> int:
        inside = chosen & (self.calls.start >= low) & (self.calls.start < high)
        # The ids are nearly in order: sorting them is quicker than np.unique's hashing.
        ids: Index = np.sort(self.calls.correlation[inside])
        return int(np.count_nonzero(np.diff(ids))) + 1 if len(ids) else 0

    def _in_captures(self) -> Flags:
        begins, ends = self.named(BEGIN_CAPTURE), self.named(END_CAPTURE)
        captured = np.zeros(len(self.calls), dtype=np.bool_)
        for thread in np.unique(self.calls.thread[begins]).tolist():
            own = self.calls.thread == thread
            begun, ended = (
                np.searchsorted(np.sort(self.calls.start[marks & own]), self.calls.start[own])
                for marks in (begins, ends)
            )
            captured[own] = begun > ended
        return captured


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
"""By the event's ``cat``; torch before 2.0 wrote the capitalized ones."""
NAMELESS = "INVALID"
"""Kineto's name for a CUDA runtime call missing in its table: before torch 2.13 all calls that CUDA
13 added, including every launch by a compiler."""
LAUNCH_OF_CBID = {
    **{211: "cudaLaunchKernel", 214: "cudaLaunchKernel_ptsz"},
    **{269: "cudaLaunchCooperativeKernel", 270: "cudaLaunchCooperativeKernel_ptsz"},
    272: "cudaLaunchCooperativeKernelMultiDevice",
    **{311: "cudaGraphLaunch", 312: "cudaGraphLaunch_ptsz"},
    **{430: "cudaLaunchKernelExC", 431: "cudaLaunchKernelExC_ptsz"},
    **{505: "__cudaLaunchKernel", 506: "__cudaLaunchKernel_ptsz"},
}
"""Runtime launches by CUPTI's callback id (cupti_runtime_cbid.h of CUDA 13). Other unnamed calls,
such as 502 to 504, only prepare a launch."""
NUMBERED = "record_param_comms"
"""torch operator whose ``Seq`` numbers the collective launched inside it."""
RUNTIMES = ("cuda_runtime", "Runtime")
"""Categories that use these callback ids; the driver has other ids."""
ON_HOST = {category: int(kind) for category, kind in KIND_OF.items() if kind < Kind.KERNEL}
ON_DEVICE = {category: int(kind) for category, kind in KIND_OF.items() if kind >= Kind.KERNEL}
PYTHON = "python_function"
PROJECTED = "gpu_user_annotation"
CUDA_SYNC = "cuda_sync"
PYTHON_FILE = ".py("
"""Name of a Python function: ``train.py(12): step``, with its first line."""
OF_TORCH = ("torch/", "<")
"""Name prefixes of functions inside torch or without a file."""
INSTALLED_TORCH = "-packages/torch/"
OF_WAITS = ("device", "stream", "waits_for")
INSTANT = "cpu_instant_event"

NONE = -1
MAX_ELEMENTS = 2**48
MAX_TEXT_LENGTH = 256
"""Limit against decompression bombs, far above real traces."""


def call_of(args: Args) -> CollectiveCall:
    """Parse the arguments of a collective; values of unexpected types count as absent."""
    texts = (args.collective, args.dtype, args.group, args.ranks, args.purpose)
    name, dtype, group, ranks, purpose = (
        text[:MAX_TEXT_LENGTH] if isinstance(text, str) else "" for text in texts
    )
    counts = (args.in_elements, args.out_elements, args.group_size, args.source, args.target)
    first, last, size, source, target = (
        count if isinstance(count, int) and 0 <= count < MAX_ELEMENTS else NONE for count in counts
    )
    return CollectiveCall(
        name,
        dtype,
        first,
        last,
        size,
        group,
        ranks,
        source,
        target,
        "" if purpose == UNNAMED else purpose,
    )


def is_incomplete(args: Args) -> bool:
    """Return whether a call of a collective lacks its kind, type, sizes or group."""
    counts = (args.in_elements, args.out_elements, args.group_size)
    return NONE in counts or not (args.dtype and args.collective)


def is_own_function(name: str) -> bool:
    """Return whether a Python function is outside torch, by its name."""
    return PYTHON_FILE in name and not name.startswith(OF_TORCH) and INSTALLED_TORCH not in name


def launch_name(name: str, category: str, args: Args) -> str:
    if name != NAMELESS or category not in RUNTIMES or not isinstance(args.cbid, int):
        return name
    return LAUNCH_OF_CBID.get(args.cbid, name)


CATEGORY = attrgetter("cat")
PHASE = attrgetter("ph")
KERNEL_NAME = attrgetter("kernel")
DIMENSIONS = attrgetter("dims")
TIMED = ON_HOST | ON_DEVICE
READ_CATEGORIES = frozenset((*TIMED, "gpu_user_annotation", "cuda_sync"))
KNOWN_CATEGORIES = READ_CATEGORIES | NO_WORK

NO_ARGS = Args()
MAX_OPERANDS_LENGTH = 2**18
"""Characters; above an optimizer's list of a thousand tensors."""
MAX_EVENTS = 2**24
MAX_CHARACTERS = 2**28
MAX_COLLECTIVES = 2**16
MAX_NUMBERED_CALLS = 2**20


class Collector:
    def __init__(self) -> None:
        self.names = Numbers()
        self.processes = Numbers()
        self.threads = Numbers()
        self.operands = Numbers()
        self.devices: dict[int, str] = {}
        self.unread = UnreadWork()
        self.repairs: Counter[str] = Counter()
        self.wrong_on_device: dict[str, list[Index]] = {}
        self.wrong_on_host: Counter[str] = Counter()
        self.device_count = 0
        self.without_time = 0
        self.open: defaultdict[Any, list[JsonEvent]] = defaultdict(list)
        self.first_call: dict[int, int] = {}
        self.first_work: dict[int, int] = {}
        self.waits: list[Synchronization] = []
        self.incomplete_calls = 0
        self.has_requests = False
        self.collectives = Numbers()
        self.kernel_names: dict[int, int] = {}
        self.numbered: list[NumberedCall] = []
        self.host: list[HostEvents] = []
        self.device: list[DeviceEvents] = []
        self.functions: list[Ranges] = [no_ranges()]
        self.projected: list[Ranges] = [no_ranges()]
        self.seen = self.kept = 0

    def add(self, events: list[JsonEvent]) -> None:
        """Add the events that take time; ValueError if there are too many, or a number is out of
        range."""
        self.seen += len(events)
        # A set first: few chunks have any of these, and counting costs more than comparing.
        categories = set(map(CATEGORY, events))
        self.has_requests |= INSTANT in categories
        timed = [event for event in events if event.ph == "X"]
        phases = set(map(PHASE, events))
        if "B" in phases or "E" in phases:
            timed += self._pairs([event for event in events if event.ph in ("B", "E")])
        if "M" in phases:
            self.unread.name_processes([event for event in events if event.ph == "M"])
        try:
            self._add(timed, categories)
        except NotATimeError:
            with_time = [event for event in timed if is_time(event.ts)]
            self.without_time += len(timed) - len(with_time)
            self._add(with_time, categories)

    def _pairs(self, events: list[JsonEvent]) -> list[JsonEvent]:
        """Join the begin and the end of each event, on a thread the last that is open."""
        whole = []
        for event in events:
            opened = self.open[event.pid, event.tid]
            if event.ph == "B":
                opened.append(event)
            elif opened and is_time(event.ts) and is_time((begin := opened.pop()).ts):
                begin.ph = "X"
                begin.dur = float(Decimal(str(event.ts)) - Decimal(str(begin.ts)))
                whole.append(begin)
        self.kept += len(whole)
        return whole

    def _add(self, timed: list[JsonEvent], categories: set[str]) -> None:
        if not categories <= KNOWN_CATEGORIES:
            self.unread.add([event for event in timed if event.cat not in READ_CATEGORIES])
        host = [event for event in timed if event.cat in ON_HOST]
        functions, projected = [], []
        if PYTHON in categories:
            calls = [event for event in host if event.cat == PYTHON and is_own_function(event.name)]
            host = [
                event
                for event in host
                if event.cat != PYTHON or event.name.startswith(MODULE_PREFIX)
            ]
            functions.append(self._ranges_of(calls, on_device=False))
        if PROJECTED in categories:
            of_device = [event for event in timed if event.cat == PROJECTED]
            projected.append(self._ranges_of(of_device, on_device=True))
        if CUDA_SYNC in categories:
            self._add_waits([event for event in timed if event.cat == CUDA_SYNC])
        self._add_timed(host, [event for event in timed if event.cat in ON_DEVICE])
        self.functions += functions
        self.projected += projected
        self.kept += len(self.host[-1]) + len(self.device[-1])
        if self.kept > MAX_EVENTS:
            raise ValueError(f"more than {MAX_EVENTS:,} timed events")
        if self.names.characters + self.operands.characters > MAX_CHARACTERS:
            raise ValueError(f"its names have more than {MAX_CHARACTERS:,} characters")

    def _add_timed(self, host: list[JsonEvent], device: list[JsonEvent]) -> None:
        """Add host and device events together: numpy's overhead per call is as large as half a
        chunk."""
        size = len(host)
        _, names, categories, processes, threads, times, lengths, all_args = _fields(host + device)
        self.unread.host_processes.update(processes[:size])
        args = [arg or NO_ARGS for arg in all_args]
        of_host = args[:size]  # the host's events come first in every column
        if NAMELESS in names:
            names = tuple(map(launch_name, names, categories, args))
        if any(map(KERNEL_NAME, of_host)):  # HIP's launches have it
            self.kernel_names |= {
                arg.correlation: self.names[arg.kernel]
                for arg in of_host
                if arg.kernel and isinstance(arg.kernel, str) and isinstance(arg.correlation, int)
            }
        kind = integers(list(map(TIMED.__getitem__, categories)))
        name = self.names.of(names)
        start = nanoseconds(times)
        duration, wrong = durations(lengths)
        end = start + duration
        for what, index in wrong.items():
            of_device = index[index >= size] - size + self.device_count
            if len(of_device):
                self.wrong_on_device.setdefault(what, []).append(of_device)
            self.wrong_on_host[what] += len(index) - len(of_device)
        self.device_count += len(device)
        correlation = integers([arg.correlation for arg in args])
        for part in (slice(size), slice(size, None)):
            at = np.flatnonzero((correlation[part] == NONE) & (kind[part] >= Kind.RUNTIME))
            own, on_device = args[part], part.start is not None
            external = [own[number].external for number in at.tolist()]
            self._add_unlinked(external, start[part][at], on_device=on_device)
        self.host.append(
            HostEvents(
                kind=kind[:size],
                name=name[:size],
                thread=self._thread_of(processes[:size], threads[:size]),
                start=start[:size],
                end=end[:size],
                correlation=correlation[:size],
                sequence=integers([arg.sequence for arg in of_host]),
                operands=self._operands_of(of_host),
            )
        )
        args_of_device = args[size:]
        self.device.append(
            DeviceEvents(
                kind=kind[size:],
                name=name[size:],
                device=integers([arg.device for arg in args_of_device]),
                stream=integers([arg.stream for arg in args_of_device]),
                start=start[size:],
                end=end[size:],
                correlation=correlation[size:],
                collective=self._collectives_of(args_of_device),
                bytes=integers([arg.copied for arg in args_of_device]),
            )
        )
        # The dictionary first, whatever the length of the chunk: most files have no such name.
        if NUMBERED in self.names and NUMBERED in names:
            self._add_numbered(names[:size], of_host, start[:size].tolist(), end[:size].tolist())

    def _add_unlinked(self, external: Sequence[Any], start: Times, *, on_device: bool) -> None:
        """Note the first call and the first work of each ``External id``."""
        earliest = self.first_work if on_device else self.first_call
        for number, begin in zip(external, start.tolist(), strict=True):
            if type(number) is int and number > 0:
                earliest[number] = min(begin, earliest.get(number, begin))

    def _add_numbered(
        self, names: Sequence[str], args: list[Args], starts: list[int], ends: list[int]
    ) -> None:
        for name, arg, start, end in zip(names, args, starts, ends, strict=True):
            if name != NUMBERED:
                continue
            self.incomplete_calls += is_incomplete(arg)
            number = arg.position
            if type(number) is int and 0 <= number < MAX_ELEMENTS:
                self.numbered.append(NumberedCall(start, end, number))
        if len(self.numbered) > MAX_NUMBERED_CALLS:
            raise ValueError(f"more than {MAX_NUMBERED_CALLS:,} calls of collectives")

    def _add_waits(self, events: list[JsonEvent]) -> None:
        args = [event.args or NO_ARGS for event in events]
        columns = (integers([getattr(arg, name) for arg in args]) for name in OF_WAITS)
        kinds = [arg.sync if isinstance(arg.sync, str) else "" for arg in args]
        start = nanoseconds([event.ts for event in events])
        self.waits += map(Synchronization, kinds, *(each.tolist() for each in (start, *columns)))
        self.kept += len(events)

    def _operands_of(self, args: list[Args]) -> NDArray[np.int64]:
        if list(map(DIMENSIONS, args)).count(None) == len(args):
            return np.full(len(args), NONE)
        texts = [b"" if arg.dims is None else operands_text(arg) for arg in args]
        numbers = [
            self.operands[text] if 0 < len(text) <= MAX_OPERANDS_LENGTH else NONE for text in texts
        ]
        return np.array(numbers, dtype=np.int64)

    def _ranges_of(self, events: list[JsonEvent], *, on_device: bool) -> Ranges:
        self.kept += len(events)
        _, names, _, processes, threads, times, lengths, all_args = _fields(events)
        start = nanoseconds(times)
        if on_device:
            thread = integers([(arg or NO_ARGS).device for arg in all_args])
        else:
            thread = self._thread_of(processes, threads)
        return Ranges(
            name=self.names.of(names), thread=thread, start=start, end=start + durations(lengths)[0]
        )

    def _thread_of(self, processes: Sequence[Any], threads: Sequence[Any]) -> NDArray[np.int64]:
        # A file's ids can be any JSON value: their numbers are small, and two fit in one integer.
        return self.processes.of(processes) << PROCESS_SHIFT | self.threads.of(threads)

    def _collectives_of(self, args: list[Args]) -> NDArray[np.int64]:
        if all(arg.collective is None for arg in args):
            return np.full(len(args), NONE)
        numbers = [
            NONE if arg.collective is None else self.collectives[call_of(arg)] for arg in args
        ]
        if len(self.collectives) > MAX_COLLECTIVES:
            raise ValueError(f"more than {MAX_COLLECTIVES:,} distinct collectives")
        return np.array(numbers, dtype=np.int64)

    def finish(self) -> Trace:
        host, device = HostEvents.joined(self.host), DeviceEvents.joined(self.device)
        wrong = {what: np.concatenate(parts) for what, parts in self.wrong_on_device.items()}
        wrong_count = sum(map(len, wrong.values())) + self.wrong_on_host.total()
        starts = [int(events.start.min()) for events in (host, device) if len(events)]
        opened = (event for events in self.open.values() for event in events)
        self.without_time += sum(event.cat in TIMED for event in opened)
        if not starts and self.without_time:
            raise ValueError("no event has a time")
        if wrong_count == len(host) + len(device) and (TOO_LONG in {*wrong, *self.wrong_on_host}):
            raise ValueError("a duration is out of range")
        base_ns = min(starts, default=0)
        trace = Trace(
            names=list(self.names),
            base_ns=0,
            host=host,
            device=device,
            operands=list(self.operands),
            devices=self.devices,
            unread=self.unread.counts(),
            repairs=dict(self.repairs),
            wrong_durations=wrong,
            wrong_on_host=dict(self.wrong_on_host),
            without_time=self.without_time,
            early=[
                call - self.first_work[external]
                for external, call in self.first_call.items()
                if self.first_work.get(external, call) < call
            ],
            waits=self.waits,
            incomplete_calls=self.incomplete_calls,
            has_requests=self.has_requests,
            collectives=list(self.collectives),
            kernel_names=self.kernel_names,
            functions=Ranges.joined(self.functions),
            projected=Ranges.joined(self.projected),
            numbered=self.numbered,
        )
        return trace.since(base_ns)


def _fields(events: list[JsonEvent]) -> list[tuple[Any, ...]]:
    return list(zip(*map(astuple, events), strict=True)) or [()] * len(JsonEvent.__struct_fields__)
