"""Lists of the memory block: largest allocations, bytes by module, timeline, origins."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ...formatting import short_path, slashed
from ...record.memory import Origin
from ...record.record import Allocation, ModuleMemory, Timeline
from ..trace.names import WHOLE_MODEL
from .history import Frame, Stack, is_python
from .residents import Residents

STACK_DEPTH = 16
RECORDING_MODULES = (
    "sysbench.core.worker.__main__",
    "sysbench.core.worker.memory.tagger",
    "sysbench.core.worker.passes.memory",
    "sysbench.core.worker.passes.registry",
)
"""Modules on the stack of every allocation that the memory pass records."""
RECORDING_FILES = tuple(
    f"{name.partition('.')[2].replace('.', '/')}.py" for name in RECORDING_MODULES
)
LIBRARY_FILE = re.compile(r"<|((.*/)?(site|dist)-packages/)?torch/")
"""Files of the interpreter and of torch."""
OPTIMIZER_FILE = re.compile(r"(^|/)torch/optim/(?!optimizer|lr_scheduler|_|swa)")


def largest_alive(residents: Residents, instant: int, count: int) -> list[Allocation]:
    """The largest allocations alive at an instant; of equals the older first."""
    allocations = residents.allocations
    alive = np.flatnonzero(allocations.alive_at(instant - 1))
    # The last key sorts first: by bytes, then by birth.
    order = np.lexsort((allocations.born[alive], -allocations.bytes[alive]))
    return [_describe(residents, index) for index in alive[order][:count].tolist()]


def _describe(residents: Residents, index: int) -> Allocation:
    history, allocations = residents.history, residents.allocations
    born, died = int(allocations.born[index]), int(allocations.died[index])
    stack = int(allocations.stack[index])
    return Allocation(
        bytes=int(allocations.bytes[index]),
        category=residents.attribution.category[index],
        phase=residents.attribution.phase[index],
        module=residents.attribution.module[index],
        born_ms=residents.time_ms(born + 1),
        died_ms=residents.time_ms(died + 1) if died < len(history) else None,
        stack=readable(history.stacks[stack]) if stack >= 0 else [],
        block_bytes=residents.block_bytes(index),
    )


MOST_KNOWN = 2**14
"""Files and frames whose text is kept: thousands of stacks share them."""


def readable(stack: Stack) -> list[str]:
    """A stack as text, innermost first: Python alone where there is any, without torch's own
    frames unless there is no other, but with the optimizers', which tell their states apart."""
    python = [frame for frame in stack if not frame.file or is_python(frame.file)]
    told = python if any(frame.file for frame in python) else stack
    own = [frame for frame in told if not _is_internal(frame.file)]
    shown = own if any(frame.file for frame in own) else told
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


def module_table(residents: Residents, first: int, last: int) -> list[ModuleMemory]:
    """Bytes of what was alive at some time between two instants, by module.

    A module's figures include its children's; the first row is the whole model. Activations
    are all that its forward saved for backward, whether or not they live at the peak.
    """
    allocations, attribution = residents.allocations, residents.attribution
    # Instant i follows event i - 1: a birth at event ``last`` comes after it.
    during = (allocations.born < last) & (allocations.died >= first)
    totals: dict[str, Counter[str]] = {}
    owned = [name for name in OWNED if name in residents.categories]
    for index in np.flatnonzero(during).tolist() if owned else ():
        category = attribution.category[index]
        if category in owned:
            for path in _with_parents(attribution.module[index]):
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


def draw_timeline(residents: Residents, first: int, last: int) -> Timeline:
    """At most POINTS instants, half of them between the two given ones.

    Each equal part of the events keeps its instant of the most live bytes, so that no peak is
    lost. Parts are of events, not of time: a model takes longer to build than to step.
    """
    end = len(residents.history)
    instants = np.concatenate(
        [
            _maxima(residents, 0, first, POINTS // 4),
            _maxima(residents, first, last + 1, POINTS // 2),
            _maxima(residents, last + 1, end + 1, POINTS // 4),
        ]
    )
    return Timeline(
        t_ms=[residents.time_ms(instant) for instant in instants.tolist()],
        live_bytes=residents.live[instants].tolist(),
        categories={
            name: live_bytes[instants].tolist() for name, live_bytes in residents.categories.items()
        },
        phases=_phase_spans(residents),
    )


def _maxima(residents: Residents, first: int, stop: int, parts: int) -> np.ndarray:
    """The instant of the most live bytes in each of at most ``parts`` equal parts.

    ``stop`` is excluded.
    """
    # ``unique``: where there are fewer instants than parts, edges coincide.
    edges = np.unique(np.linspace(first, stop, parts + 1).astype(np.int64))
    peaks = [residents.peak(begin, end - 1) for begin, end in pairwise(edges.tolist())]
    return np.array(peaks, dtype=np.int64)


def _phase_spans(residents: Residents) -> list[tuple[str, float, float]]:
    marks = residents.notes.phases
    return [
        (
            mark.phase,
            residents.since_start_ms(mark.time_ns),
            residents.since_start_ms(after.time_ns),
        )
        for mark, after in pairwise(marks)
        if mark.phase
    ]


SMALLER = "smaller"


def origins_alive(residents: Residents, instant: int, keep: int) -> list[Origin]:
    """The ``keep`` largest origins at an instant, and the rest as one: they sum to its bytes.

    Bytes are as requested. Stacks that read alike are one.
    """
    allocations, attribution = residents.allocations, residents.attribution
    totals: defaultdict[tuple[str, str, int], _Sum] = defaultdict(_Sum)
    for index in np.flatnonzero(allocations.alive_at(instant - 1)).tolist():
        key = attribution.category[index], attribution.phase[index], int(allocations.stack[index])
        totals[key].add(int(allocations.bytes[index]), 1, residents.block_bytes(index))
    texts = {number: _text(residents, number) for _, _, number in totals}
    merged: defaultdict[tuple[str, str, tuple[str, ...]], _Sum] = defaultdict(_Sum)
    for (category, phase, number), total in totals.items():
        merged[category, phase, texts[number]].add(*total.parts)
    origins = [
        Origin(category, phase, size, blocks, list(stack), block_bytes)
        for (category, phase, stack), total in merged.items()
        for size, blocks, block_bytes in [total.parts]
    ]
    origins.sort(key=lambda origin: (-origin.bytes, origin.category, origin.phase, origin.stack))
    rest = origins[keep:]
    if rest:
        smaller = _Sum()
        for origin in rest:
            smaller.add(origin.bytes, origin.blocks, origin.block_bytes)
        size, blocks, block_bytes = smaller.parts
        origins[keep:] = [Origin(SMALLER, "", size, blocks, [], block_bytes)]
    return origins


class _Sum:
    """Bytes as requested, how many blocks, and their bytes where the allocator has granules."""

    def __init__(self) -> None:
        self.parts: tuple[int, int, int | None] = 0, 0, None

    def add(self, size: int, blocks: int, block_bytes: int | None) -> None:
        parts = self.parts
        self.parts = (
            parts[0] + size,
            parts[1] + blocks,
            parts[2] if block_bytes is None else (parts[2] or 0) + block_bytes,
        )


def _text(residents: Residents, stack: int) -> tuple[str, ...]:
    return tuple(readable(residents.history.stacks[stack])) if stack >= 0 else ()
