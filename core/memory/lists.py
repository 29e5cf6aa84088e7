"""Lists of the memory block: largest allocations, bytes by module, timeline, origins."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

import numpy as np

from sysbench.core.formatting import short_path, slashed
from sysbench.core.memory.allocations import AllocationHistory
from sysbench.core.memory.history import Frame, Stack, is_python
from sysbench.core.record.memory import Origin
from sysbench.core.record.record import Allocation, ModuleMemory, Timeline
from sysbench.core.trace.names import WHOLE_MODEL

STACK_DEPTH = 16
RECORDING_MODULES = (
    "sysbench.core.worker.__main__",
    "sysbench.core.worker.memory.tagger",
    "sysbench.core.worker.passes.memory_pass",
    "sysbench.core.worker.passes.pass_modules",
)
"""Modules on the stack of every allocation that the memory pass records."""
RECORDING_FILES = tuple(
    f"{name.partition('.')[2].replace('.', '/')}.py" for name in RECORDING_MODULES
)
LIBRARY_FILE = re.compile(r"<|((.*/)?(site|dist)-packages/)?torch/")
"""Files of the interpreter and of torch."""
OPTIMIZER_FILE = re.compile(r"(^|/)torch/optim/(?!optimizer|lr_scheduler|_|swa)")


def largest_alive(allocations: AllocationHistory, instant: int, count: int) -> list[Allocation]:
    """The largest allocations alive at an instant; of equals the older first."""
    alive = allocations.alive_at(instant)
    # The last key sorts first: by bytes, then by birth.
    order = np.lexsort((allocations.born[alive], -allocations.bytes[alive]))
    return [_describe(allocations, index) for index in alive[order][:count].tolist()]


def _describe(allocations: AllocationHistory, index: int) -> Allocation:
    died = int(allocations.died[index])
    blocks = allocations.shown_blocks
    return Allocation(
        bytes=int(allocations.bytes[index]),
        category=allocations.category[index],
        phase=allocations.phase[index],
        module=allocations.module[index],
        born_ms=allocations.time_ms(int(allocations.born[index])),
        died_ms=allocations.time_ms(died) if died < allocations.instants else None,
        stack=list(_text(allocations, int(allocations.stack[index]))),
        block_bytes=None if blocks is None else int(blocks[index]),
    )


def _text(allocations: AllocationHistory, stack: int) -> tuple[str, ...]:
    return tuple(readable(allocations.history.stacks[stack])) if stack >= 0 else ()


MOST_KNOWN = 2**14
"""Files and frames whose text is kept: thousands of stacks share them."""


def readable(stack: Stack) -> list[str]:
    """A stack as text, innermost first: Python alone where there is any, without torch's own
    frames unless there is no other, but with the optimizers', which tell their states apart."""
    python = [frame for frame in stack if not frame.file or is_python(frame.file)]
    frames = python if any(frame.file for frame in python) else stack
    own = [frame for frame in frames if not _is_internal(frame.file)]
    shown = own if any(frame.file for frame in own) else frames
    return [_line(frame) for frame in shown[:STACK_DEPTH]]


@lru_cache(MOST_KNOWN)
def _is_internal(file: str) -> bool:
    file = slashed(file)
    is_library = LIBRARY_FILE.match(file) and not OPTIMIZER_FILE.search(file)
    return bool(is_library) or file.endswith(RECORDING_FILES)


@lru_cache(MOST_KNOWN)
def _line(frame: Frame) -> str:
    if not frame.file:
        return frame.name
    return f"{short_path(frame.file)}:{frame.line} {frame.name}"


OWNED = ("parameters", "gradients", "optimizer state", "activations")
"""Categories whose allocations belong to modules."""


def module_table(allocations: AllocationHistory, first: int, last: int) -> list[ModuleMemory]:
    """Bytes of what was alive at some time between two instants, by module.

    A module's figures include its children's; the first row is the whole model. Activations
    are all that its forward saved for backward, whether or not they live at the peak.
    """
    during = (allocations.born <= last) & (allocations.died > first)
    totals: dict[str, Counter[str]] = {}
    owned = [name for name in OWNED if name in allocations.categories]
    for index in np.flatnonzero(during).tolist() if owned else ():
        category = allocations.category[index]
        if category in owned:
            for path in _with_parents(allocations.module[index]):
                totals.setdefault(path, Counter())[category] += int(allocations.bytes[index])
    return [
        ModuleMemory(
            module=path,
            parameter_bytes=total["parameters"],
            gradient_bytes=total["gradients"],
            optimizer_bytes=total["optimizer state"],
            activation_bytes=total["activations"],
        )
        for path, total in totals.items()
    ]


def _with_parents(path: str) -> Iterable[str]:
    """The path, all that contain it, and the whole model; none twice."""
    parts = path.split(".")
    containing = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return dict.fromkeys([WHOLE_MODEL, *containing])


POINTS = 400


def draw_timeline(allocations: AllocationHistory, first: int, last: int) -> Timeline:
    """At most POINTS instants, half of them between the two given ones.

    Each equal part of the events keeps its instant of the most live bytes, so that no peak is
    lost. Parts are of events, not of time: a model takes longer to build than to step.
    """
    # Half open ranges, and the number of points in each.
    ranges = (
        (0, first, POINTS // 4),
        (first, last + 1, POINTS // 2),
        (last + 1, allocations.instants, POINTS // 4),
    )
    instants = [
        allocations.peak(begin, end - 1)
        for start, stop, points in ranges
        # ``unique``: where there are fewer instants than points, edges coincide.
        for begin, end in pairwise(
            np.unique(np.linspace(start, stop, points + 1).astype(np.int64)).tolist()
        )
    ]
    return Timeline(
        t_ms=[allocations.time_ms(instant) for instant in instants],
        live_bytes=allocations.live[instants].tolist(),
        categories={
            name: curve[instants].tolist() for name, curve in allocations.categories.items()
        },
        phases=[
            (
                mark.phase,
                allocations.since_start_ms(mark.time_ns),
                allocations.since_start_ms(after.time_ns),
            )
            for mark, after in pairwise(allocations.notes.phases)
            if mark.phase
        ],
    )


SMALLER = "smaller"


def origins_alive(allocations: AllocationHistory, instant: int, keep: int) -> list[Origin]:
    """The ``keep`` largest origins at an instant, and the rest as one: they sum to its bytes.

    Bytes are as requested. Stacks that read alike are one.
    """
    alive = allocations.alive_at(instant)
    blocks = allocations.shown_blocks
    texts = {
        number: _text(allocations, number) for number in set(allocations.stack[alive].tolist())
    }
    keys = [
        (allocations.category[index], allocations.phase[index], texts[stack])
        for index, stack in zip(alive.tolist(), allocations.stack[alive].tolist(), strict=True)
    ]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    # One row an origin: bytes as requested, count, bytes of blocks.
    sums = np.zeros((len(numbers), 3), dtype=np.int64)
    of_blocks = allocations.rounded if blocks is None else blocks
    amounts = (allocations.bytes[alive], np.ones(len(alive), dtype=np.int64), of_blocks[alive])
    rows_of = np.array([numbers[key] for key in keys], dtype=np.int64)
    # ``add.at`` and not ``+=``: several allocations share a row.
    np.add.at(sums, rows_of, np.stack(amounts, axis=1))

    def origin(key: tuple[str, str, tuple[str, ...]], parts: list[int]) -> Origin:
        block_bytes = None if blocks is None else parts[2]
        return Origin(key[0], key[1], parts[0], parts[1], list(key[2]), block_bytes)

    rows = sorted(zip(numbers, sums.tolist(), strict=True), key=lambda row: (-row[1][0], row[0]))
    origins = [origin(key, parts) for key, parts in rows[:keep]]
    if rows[keep:]:
        smaller = [sum(column) for column in zip(*(parts for _, parts in rows[keep:]), strict=True)]
        origins.append(origin((SMALLER, "", ()), smaller))
    return origins
