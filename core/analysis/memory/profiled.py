"""Allocation events from a chrome trace of torch.profiler with ``profile_memory``.

The profiler reports an allocator's requests as instant events named ``[memory]``, those of a GPU's
with its counters, and with ``with_stack`` the Python functions that were open around them.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np

from ...errors import DamagedFileError
from .history import Frame, History, OomEvent, Stack, pair

GZIP_MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 2**20
MEMORY, REFUSED = "[memory]", "[OutOfMemory]"
CPU = 0
"""``Device Type`` of the host; a GPU's is larger."""
NOWHERE = -1
"""Address of the block that stands for all that was there before."""
FUNCTIONS_KEPT = 4096
PYTHON = "python_function"
OPERATOR = "cpu_op"
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
NAME = re.compile(r'(?<="name": ").*?(?=",\n    "pid": )', re.DOTALL)
NOT_IN_A_NAME = re.compile(r'["\\\x00-\x1f]')


class _Args(msgspec.Struct, gc=False):
    bytes: int = msgspec.field(name="Bytes", default=0)
    address: int = msgspec.field(name="Addr", default=0)
    device_type: int = msgspec.field(name="Device Type", default=-1)
    device: int = msgspec.field(name="Device Id", default=-1)
    allocated: int = msgspec.field(name="Total Allocated", default=0)
    reserved: int = msgspec.field(name="Total Reserved", default=0)


class _Event(msgspec.Struct, gc=False):
    name: str = ""
    cat: str = ""
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: _Args = msgspec.field(default_factory=_Args)


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)


def has_profiled_allocations(path: Path) -> bool:
    """Search the text of a chrome trace for a memory event, in chunks and without decoding.

    Raises:
        DamagedFileError: It cannot be read.
    """
    word = f'"{MEMORY}"'.encode()
    try:
        with path.open("rb") as file:
            packed = file.peek()[:2] == GZIP_MAGIC
            text = gzip.GzipFile(fileobj=file) if packed else file
            before = b""
            while chunk := text.read(CHUNK_BYTES):
                if word in before + chunk:
                    return True
                before = chunk[-len(word) :]
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFileError(f"{path} is not a chrome trace: {error}") from error
    return False


def read_profiled_allocations(path: Path) -> History:
    """The CPU allocator's history in a chrome trace, gzip'd or plain.

    A stack has Python functions with the line where each begins, and first the outermost
    operator that the innermost of them called.

    Raises:
        DamagedFileError: Not a chrome trace.
    """
    try:
        return decode_profiled_allocations(_unpacked(path))
    except (msgspec.DecodeError, OverflowError) as error:
        raise DamagedFileError(f"{path} is not a chrome trace: {error}") from error


def _unpacked(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(GZIP_MAGIC) else data
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFileError(f"{path} is not a chrome trace: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedHistory:
    """The history of a GPU's allocator, and its counters over the same time, in bytes."""

    history: History
    peak_allocated: int
    peak_reserved: int
    end_allocated: int


def read_counted_allocations(path: Path, device: int | None) -> CountedHistory | None:
    """The allocator of a GPU in a chrome trace, gzip'd or plain; None where the trace has none.

    Each event has the allocator's counters. What they have before the first event, and no event
    gives back, is one block that was there before.

    Args:
        path: The file.
        device: Number of the GPU; of None, or one without events, the one with the most.

    Raises:
        DamagedFileError: Not a chrome trace.
    """
    try:
        trace = _decode(_unpacked(path).decode("utf-8", "replace"))
        return _counted(trace, device)
    except (msgspec.DecodeError, OverflowError) as error:
        raise DamagedFileError(f"{path} is not a chrome trace: {error}") from error


def _counted(trace: _Trace, device: int | None) -> CountedHistory | None:
    counts = Counter(event.args.device for event in trace.events if _is_on_gpu(event))
    if not counts:
        return None
    chosen = device if device in counts else max(counts, key=counts.__getitem__)

    def is_wanted(event: _Event) -> bool:
        return _is_on_gpu(event) and event.args.device == chosen

    readings = sorted(filter(is_wanted, trace.events), key=attrgetter("ts"))
    history = _history(trace, is_wanted)
    before = readings[0].args.allocated - readings[0].args.bytes
    allocations = pair(history)
    before -= int(allocations.bytes[allocations.born < 0].sum())
    return CountedHistory(
        history=replace(history, survivors=[(NOWHERE, before)]) if before > 0 else history,
        peak_allocated=max(event.args.allocated for event in readings),
        peak_reserved=max(event.args.reserved for event in readings),
        end_allocated=readings[-1].args.allocated,
    )


def decode_profiled_allocations(data: bytes) -> History:
    """The same from the JSON text.

    Raises:
        msgspec.DecodeError: Not a chrome trace.
    """
    return _history(_decode(data.decode("utf-8", "replace")), _is_move)


def _history(trace: _Trace, is_wanted: Callable[[_Event], bool]) -> History:
    """The memory events that are wanted, with their stacks."""
    stacks: dict[Stack, int] = {}
    products: dict[int, int] = {}
    moves: list[tuple[int, int, int, int, int]] = []
    relevant = [
        event for event in trace.events if event.cat in (PYTHON, OPERATOR) or is_wanted(event)
    ]
    relevant.sort(key=lambda event: (str(event.tid), event.ts, -event.dur))
    for _, thread in groupby(relevant, key=attrgetter("tid")):
        for event, opened in _with_open(thread):
            stack = stacks.setdefault(_stack(opened), len(stacks))
            time_ns = trace.base_ns + round(event.ts * 1000)
            product = _product(opened, products)
            moves.append((time_ns, event.args.address, event.args.bytes, stack, product))
    moves.sort(key=lambda move: move[0])
    columns = np.array(moves, dtype=np.int64).reshape(-1, 5).T
    return History(
        time_ns=columns[0],
        address=columns[1],
        change=columns[2],
        stack=columns[3],
        stacks=list(stacks),
        product=columns[4],
    )


def decode_refusal(data: bytes) -> OomEvent | None:
    """The last request for which the allocator had no memory, from the same text; None without any.

    Raises:
        msgspec.DecodeError: Not a chrome trace.
    """
    if REFUSED.encode() not in data:
        return None
    trace = _decode(data.decode("utf-8", "replace"))
    relevant = [
        event for event in trace.events if event.cat in (PYTHON, OPERATOR) or event.name == REFUSED
    ]
    relevant.sort(key=lambda event: (str(event.tid), event.ts, -event.dur))
    refusals = [
        OomEvent(
            time_ns=trace.base_ns + round(event.ts * 1000),
            bytes=event.args.bytes,
            stack=_stack(opened),
            op=_innermost_operator(opened),
        )
        for _, thread in groupby(relevant, key=attrgetter("tid"))
        for event, opened in _with_open(thread)
    ]
    return max(refusals, key=attrgetter("time_ns"), default=None)


def _innermost_operator(opened: list[_Event]) -> str | None:
    """The operator that requested memory; those that only allocate do so for another."""
    operators = [event.name for event in opened if event.cat == OPERATOR]
    asking = [name for name in operators if not ONLY_ALLOCATES.fullmatch(name)]
    return next(reversed(asking or operators), None)


def _decode(text: str) -> _Trace:
    """The events, also where the profiler wrote a function's name that breaks the JSON.

    It reads some names from memory that was freed, and they can then hold any byte.
    """
    try:
        return msgspec.json.decode(text, type=_Trace)
    except msgspec.DecodeError:
        cleaned = NAME.sub(
            lambda match: NOT_IN_A_NAME.sub("\N{REPLACEMENT CHARACTER}", match[0]), text
        )
        return msgspec.json.decode(cleaned, type=_Trace)


def _is_move(event: _Event) -> bool:
    return event.name == MEMORY and event.args.device_type == CPU and event.args.bytes != 0


def _is_on_gpu(event: _Event) -> bool:
    return event.name == MEMORY and event.args.device_type > CPU and event.args.bytes != 0


def _with_open(thread: Iterator[_Event]) -> Iterator[tuple[_Event, list[_Event]]]:
    """Each memory event of a thread with the events open around it, outermost first."""
    opened: list[_Event] = []
    for event in thread:
        while opened and opened[-1].ts + opened[-1].dur < event.ts:
            opened.pop()
        if event.name in (MEMORY, REFUSED):
            yield event, opened
        else:
            opened.append(event)


def _product(opened: list[_Event], numbers: dict[int, int]) -> int:
    """The number of the outermost product that is open, a new one at first sight; -1 without."""
    for event in opened:
        if event.cat == OPERATOR and _is_product(event.name):
            return numbers.setdefault(id(event), len(numbers))
    return -1


@lru_cache(FUNCTIONS_KEPT)
def _is_product(operator: str) -> bool:
    return PRODUCT.fullmatch(operator) is not None


def _stack(opened: list[_Event]) -> Stack:
    """Python frames, innermost first, under the operator that the innermost called."""
    called: list[Frame] = []
    frames: list[Frame] = []
    for event in reversed(opened):
        if event.cat == PYTHON:
            if (frame := _frame(event.name)) is not None:
                frames.append(frame)
        elif not frames:
            called = [Frame("", 0, event.name.removeprefix(BACKWARD_NODE))]
    return (*called, *frames)


@lru_cache(FUNCTIONS_KEPT)
def _frame(function: str) -> Frame | None:
    """None for a built-in function and a module's class, which have no place in a file."""
    match = FUNCTION.fullmatch(function)
    return None if match is None else Frame(match["file"], int(match["line"]), match["name"])
