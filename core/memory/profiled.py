"""Read allocation events from a Chrome trace of torch.profiler with ``profile_memory``.

The profiler reports an allocator's requests as instant events named ``[memory]``, those of a GPU's
with its counters, and with ``with_stack`` the Python functions that were open around them.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from io import BytesIO
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.core.errors import DamagedFileError
from sysbench.core.memory.history import Counters, Frame, History, Integers, OomEvent, Stack, pair
from sysbench.core.trace.intervals import durations, nanoseconds
from sysbench.core.trace.perfetto_packets import MEMORY_CATEGORY
from sysbench.core.trace.perfetto_trace import read_perfetto_events
from sysbench.core.trace.trace_json import Args, JsonEvent, Text, read_events
from sysbench.core.trace.trace_reader import is_perfetto_file

GZIP_MAGIC = b"\x1f\x8b"
MEMORY, REFUSED = "[memory]", "[OutOfMemory]"
CPU = 0
"""``Device Type`` of the host; a GPU's is larger."""
HOST, NOT_A_MOVE = -2, -3
"""Values in the column of devices: the host, and an event that changes no memory."""
UNNUMBERED = -1
NOWHERE = -1
"""Address of the block that represents all memory allocated before the trace."""
MAX_FUNCTIONS = 4096
PYTHON, OPERATOR = "python_function", "cpu_op"
CALLS, REQUESTS = (PYTHON, OPERATOR), (MEMORY, REFUSED)
PROFILED = frozenset((*CALLS, MEMORY_CATEGORY))
ARGUMENTS = ("bytes", "address", "device_type", "device_id", "allocated", "reserved")
OF_BYTES = ("bytes", "allocated", "reserved")
MAX_BYTES = 2**50
TOO_MANY_BYTES = "a number of bytes is larger than any memory"
NO_ARGS = Args()
BACKWARD_NODE = "autograd::engine::evaluate_function: "
FUNCTION = re.compile(r"(?P<file>.*)\((?P<line>\d+)\): (?P<name>.*)", re.DOTALL)
"""The profiler's name of a Python function: ``models/attention.py(51): forward``."""
ONLY_ALLOCATES = re.compile(r"aten::(new_)?empty(_\w+)?|aten::resize_")
PRODUCT = re.compile(
    r"aten::(mm|bmm|mv|dot|addmm|addbmm|baddbmm|addmv|_addmm_activation|_int_mm|_scaled_mm"
    r"|mkldnn_\w+|convolution_backward|_slow_conv2d_(forward|backward)|slow_conv3d_forward"
    r"|_scaled_dot_product_flash_attention_for_cpu(_backward)?)"
    r"|(mkldnn|onednn)::\w+"
)
"""Operators that are one matrix product or convolution, or all those of one fused attention.

Composite operators such as ``aten::linear`` do not match: the outputs of the operators inside are
tensors of the step.
"""


def read_profiled_allocations(path: Path) -> History:
    """Read the CPU allocator's history from a Chrome trace, optionally gzipped.

    A stack has Python functions with their first line, and before them the outermost operator that
    the innermost function called. Raises DamagedFileError.
    """
    return _read(path).history(HOST)[0]


def read_counted_allocations(path: Path, device: int | None) -> tuple[History, Counters] | None:
    """Read the history and the counters of a GPU's allocator from a Chrome trace, optionally
    gzipped; None without events.

    Each event has the allocator's counters. Bytes counted before the first event and never freed
    become one block that existed before. ``device`` defaults to the GPU with the most events, also
    if it has none. Raises DamagedFileError.
    """
    trace = _read(path)
    counts: Counter[int] = Counter(trace.device[trace.device > HOST].tolist())
    if not counts:
        return None
    if device is None or device not in counts:
        device = max(counts, key=counts.__getitem__)
    history, events = trace.history(device)
    allocated, reserved = trace.args["allocated"][events], trace.args["reserved"][events]
    lifetimes = pair(history)
    before = int(allocated[0] - history.change[0])
    before -= int(lifetimes.bytes[lifetimes.born == 0].sum())
    if before > 0:
        history = replace(history, survivors=[(NOWHERE, before)])
    return history, Counters(
        peak_allocated=int(allocated.max()),
        peak_reserved=int(reserved.max()),
        end_allocated=int(allocated[-1]),
    )


def _read(path: Path) -> ProfiledTrace:
    try:
        if is_perfetto_file(path):
            return ProfiledTrace(read_perfetto_events(path, PROFILED))
        data = path.read_bytes()
        return ProfiledTrace(gzip.decompress(data) if data.startswith(GZIP_MAGIC) else data)
    except OverflowError as error:
        raise DamagedFileError(f"{path} is not a chrome trace: {TOO_MANY_BYTES}") from error
    except (
        *(OSError, EOFError, zlib.error, msgspec.DecodeError),
        *(TypeError, ValueError, RecursionError),
    ) as error:
        raise DamagedFileError(f"{path} is not a chrome trace: {error}") from error


class ProfiledTrace:
    """Calls of functions and operators, and memory requests; arrays have one element an event.

    Attributes:
        start, end: Nanoseconds since ``base_ns``.
        args: Arguments of requests, by name; defaults for calls.
        device: Device of a request: HOST or the number of a GPU; else NOT_A_MOVE.
    """

    def __init__(self, trace: bytes | list[JsonEvent]) -> None:
        """Read JSON, or events in Unix time; msgspec.DecodeError or ValueError if they are no
        trace."""
        self.events, self.base_ns = (trace, 0) if isinstance(trace, list) else _relevant(trace)
        self.start = nanoseconds([event.ts for event in self.events])
        self.end = self.start + durations([event.dur for event in self.events])[0]
        requests = [
            event.args if event.args and event.name in REQUESTS else NO_ARGS
            for event in self.events
        ]
        self.args = {
            name: np.fromiter((getattr(args, name) for args in requests), np.int64, len(requests))
            for name in ARGUMENTS
        }
        kind = self.args["device_type"]
        is_move = np.array([event.name == MEMORY for event in self.events], dtype=np.bool_)
        # A request that was refused can be of any size.
        amounts = (self.args[name][is_move] for name in OF_BYTES)
        if max(int(np.abs(each).max(initial=0)) for each in amounts) > MAX_BYTES:
            raise ValueError(TOO_MANY_BYTES)
        is_move &= (self.args["bytes"] != 0) & (kind >= CPU)
        number = np.where(kind == CPU, HOST, np.maximum(self.args["device_id"], UNNUMBERED))
        self.device = np.where(is_move, number, NOT_A_MOVE)

    def history(self, device: int) -> tuple[History, Integers]:
        """A device's history, and the indices of its events."""
        stacks: dict[Stack, int] = {}
        products: dict[int, int] = {}
        rows = [
            (index, stacks.setdefault(_stack(opened), len(stacks)), _product(opened, products))
            for index, opened in self.open_around(self.device == device)
        ]
        rows.sort(key=lambda row: self.start[row[0]])
        events, stack, product = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        history = History(
            time_ns=self.base_ns + self.start[events],
            address=self.args["address"][events],
            change=self.args["bytes"][events],
            stack=stack,
            stacks=list(stacks),
            product=product,
        )
        return history, events

    def refusal(self) -> OomEvent | None:
        """The last failed request, or None."""
        is_refusal = np.array([event.name == REFUSED for event in self.events], dtype=np.bool_)
        if not is_refusal.any():
            return None
        refusals = [
            OomEvent(
                time_ns=self.base_ns + int(self.start[index]),
                bytes=int(self.args["bytes"][index]),
                stack=_stack(opened),
                op=_innermost_operator(opened),
            )
            for index, opened in self.open_around(is_refusal)
        ]
        return max(refusals, key=attrgetter("time_ns"), default=None)

    def open_around(self, wanted: NDArray[np.bool_]) -> Iterator[tuple[int, list[JsonEvent]]]:
        """Yield the index of each wanted event and the calls open around it, outermost first."""
        threads = np.unique([str(event.tid) for event in self.events], return_inverse=True)[1]
        # Each thread's events by start; of equal starts the longest encloses the others.
        order = np.lexsort((-self.end, self.start, threads)).tolist()
        thread, start, end = threads.tolist(), self.start.tolist(), self.end.tolist()
        opened: list[int] = []
        for index in order:
            while opened and (
                thread[opened[-1]] != thread[index] or end[opened[-1]] < start[index]
            ):
                opened.pop()
            if wanted[index]:
                yield index, [self.events[call] for call in opened]
            elif self.events[index].cat in CALLS:
                opened.append(index)


def _relevant(data: bytes) -> tuple[list[JsonEvent], int]:
    text = Text(BytesIO(data), JsonEvent)  # repairs names that the profiler read from freed memory
    events = [
        event
        for events in read_events(text)
        for event in events
        if event.cat in CALLS or event.name in REQUESTS
    ]
    return events, text.base_ns


def _innermost_operator(opened: list[JsonEvent]) -> str | None:
    operators = [event.name for event in opened if event.cat == OPERATOR]
    asking = [name for name in operators if not ONLY_ALLOCATES.fullmatch(name)]
    return next(reversed(asking or operators), None)


def _product(opened: list[JsonEvent], numbers: dict[int, int]) -> int:
    """The number of the outermost open product, assigned at first sight; -1 without one."""
    for event in opened:
        if event.cat == OPERATOR and _is_product(event.name):
            return numbers.setdefault(id(event), len(numbers))
    return -1


@lru_cache(MAX_FUNCTIONS)
def _is_product(operator: str) -> bool:
    return PRODUCT.fullmatch(operator) is not None


def _stack(opened: list[JsonEvent]) -> Stack:
    """Python frames, innermost first, after the operator that the innermost one called."""
    called: list[Frame] = []
    frames: list[Frame] = []
    for event in reversed(opened):
        if event.cat == PYTHON:
            if (frame := _frame(event.name)) is not None:
                frames.append(frame)
        elif not frames:
            called = [Frame("", 0, event.name.removeprefix(BACKWARD_NODE))]
    return (*called, *frames)


@lru_cache(MAX_FUNCTIONS)
def _frame(function: str) -> Frame | None:
    """Parse a function's name; None for built-in functions and modules' classes, which have no
    line."""
    match = FUNCTION.fullmatch(function)
    return None if match is None else Frame(match["file"], int(match["line"]), match["name"])
