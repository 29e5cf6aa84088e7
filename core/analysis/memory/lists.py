"""Two tables of the memory block: the largest allocations, and bytes by module."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath

import numpy as np

from ...record.record import Allocation, ModuleMemory
from ..notes import WHOLE_MODEL
from .history import Frame, Stack
from .residents import Residents

STACK_DEPTH = 16
INTERNAL = re.compile(
    r"<|((.*/)?(site|dist)-packages/)?torch/"
    r"|.*core/worker/(tags|snapshot|passes|__main__)\.py"
)
"""Files of torch, of the interpreter and of the recording: frames there are noise."""


def largest_alive(residents: Residents, instant: int, count: int) -> list[Allocation]:
    """The largest allocations alive at an instant; of equals the older first."""
    allocations = residents.allocations
    alive = np.flatnonzero(allocations.alive_at(instant - 1))
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


def readable(stack: Stack) -> list[str]:
    """A stack as text, innermost first, without torch's own frames unless there is no other."""
    own = [frame for frame in stack if not INTERNAL.match(frame.file)]
    shown = own if any(frame.file for frame in own) else stack
    return [_line(frame) for frame in shown[:STACK_DEPTH]]


def _line(frame: Frame) -> str:
    """The file with its folder only: records are published, homes are private."""
    if not frame.file:
        return frame.name
    return f"{'/'.join(PurePath(frame.file).parts[-2:])}:{frame.line} {frame.name}"


def module_table(residents: Residents, first: int, last: int) -> list[ModuleMemory]:
    """Bytes of what was alive at some time between two instants, by module.

    A module's figures include its children's; the first row is the whole model. Activations
    are all that its forward saved for backward, whether or not they live at the peak.
    """
    allocations, attribution = residents.allocations, residents.attribution
    during = (allocations.born < last) & (allocations.died >= first)
    totals: dict[str, Counter[str]] = {}
    for index in np.flatnonzero(during).tolist():
        category = attribution.category[index]
        if category in ("parameters", "gradients", "optimizer state", "activations"):
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
