"""Steps side by side: their peaks, what grows, and the stacks of its allocations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from sysbench.core.formatting import short_path, slashed
from sysbench.core.memory.allocations import AllocationHistory, Notes
from sysbench.core.memory.history import Frame, Stack, is_python
from sysbench.core.predict.requests import WARMUP_STEPS
from sysbench.core.record.memory import Growth, StepMemory
from sysbench.core.step_patterns import growth_of


def measured_steps(notes: Notes) -> list[int]:
    """The recorded steps after the warm-up; the last one if there are no more."""
    return notes.steps[WARMUP_STEPS:] or notes.steps[-1:]


def described_step(allocations: AllocationHistory) -> int | None:
    """The measured step with the highest peak, the last of equals; None without steps."""
    measured = measured_steps(allocations.notes)
    return max(
        reversed(measured),
        key=lambda step: allocations.live[allocations.peak(*allocations.span(step))],
        default=None,
    )


def step_rows(allocations: AllocationHistory) -> list[StepMemory]:
    """Every recorded step, if those after the first differ in their peaks or ends."""
    inputs: dict[int, list[str]] = {}
    for mark in allocations.notes.inputs:
        inputs.setdefault(mark.step, []).append(mark.shapes)
    rows = []
    for step in allocations.notes.steps:
        first, last = allocations.span(step)
        peak_bytes = int(allocations.live[allocations.peak(first, last)])
        shapes = " · ".join(dict.fromkeys(inputs.get(step, ())))
        rows.append(StepMemory(step + 1, peak_bytes, int(allocations.live[last]), shapes))
    differ = len({(row.peak_bytes, row.end_bytes) for row in rows[WARMUP_STEPS - 1 :]}) > 1
    return rows if differ else []


MIN_GROWING = 0.05
"""Smallest share of the growth of all memory that a place is listed with."""


def growth_rows(allocations: AllocationHistory) -> list[Growth]:
    """Places in the code that hold more at the end of each step than of the one before."""
    steps = allocations.notes.steps
    ends = [allocations.span(step)[1] for step in steps]
    if not growth_of([int(allocations.live[end]) for end in ends]):
        return []
    held: dict[tuple[str, str, str, tuple[str, ...]], list[int]] = {}
    for number, end in enumerate(ends):
        for index in allocations.alive_at(end).tolist():
            stack = stack_text(allocations, int(allocations.stack[index]))
            key = allocations.category[index], allocations.phase[index]
            amounts = held.setdefault((*key, allocations.module[index], stack), [0] * len(ends))
            amounts[number] += int(allocations.bytes[index])
    return growing_places(held, [step + 1 for step in steps])


def growing_places(
    held: Mapping[tuple[str, str, str, tuple[str, ...]], Sequence[int]], steps: Sequence[int]
) -> list[Growth]:
    """Places that hold more at the end of each step than of the one before, largest first.

    ``held`` are bytes at the ends of the steps, by category, phase, module and stack.
    """
    rows = []
    for (category, phase, module, stack), amounts in held.items():
        since = next(
            (number for number in range(len(amounts)) if growth_of(amounts[number:])), None
        )
        if since is not None:
            rows.append(
                Growth(
                    bytes=growth_of(amounts[since:]),
                    since_step=steps[since] + 1,
                    category=category,
                    phase=phase,
                    module=module,
                    stack=list(stack),
                )
            )
    total = sum(row.bytes for row in rows)
    rows.sort(key=lambda row: -row.bytes)
    return [row for row in rows if row.bytes >= MIN_GROWING * total]


STACK_DEPTH = 16
RECORDING_MODULES = (
    "sysbench.core.worker.__main__",
    "sysbench.core.worker.memory.tagger",
    "sysbench.core.worker.passes.memory_pass",
    "sysbench.core.worker.boot",
)
"""Modules on the stack of every allocation that the memory pass records."""
RECORDING_FILES = tuple(
    f"{name.partition('.')[2].replace('.', '/')}.py" for name in RECORDING_MODULES
)
LIBRARY_FILE = re.compile(r"<|((.*/)?(site|dist)-packages/)?torch/")
OPTIMIZER_FILE = re.compile(r"(^|/)torch/optim/(?!optimizer|lr_scheduler|_|swa)")


def stack_text(allocations: AllocationHistory, stack: int) -> tuple[str, ...]:
    return tuple(format_stack(allocations.history.stacks[stack])) if stack >= 0 else ()


MAX_TEXTS = 2**14
"""Cached texts of files and frames, which thousands of stacks share."""


def format_stack(stack: Stack) -> list[str]:
    """Format a stack, innermost frame first. Keep Python frames if there are any, and drop torch's
    own frames except those of optimizers, which identify the state."""
    python = [frame for frame in stack if not frame.file or is_python(frame.file)]
    frames = python if any(frame.file for frame in python) else stack
    own = [frame for frame in frames if not _is_internal(frame.file)]
    shown = own if any(frame.file for frame in own) else frames
    return [_line(frame) for frame in shown[:STACK_DEPTH]]


@lru_cache(MAX_TEXTS)
def _is_internal(file: str) -> bool:
    file = slashed(file)
    is_library = LIBRARY_FILE.match(file) and not OPTIMIZER_FILE.search(file)
    return bool(is_library) or file.endswith(RECORDING_FILES)


@lru_cache(MAX_TEXTS)
def _line(frame: Frame) -> str:
    if not frame.file:
        return frame.name
    return f"{short_path(frame.file)}:{frame.line} {frame.name}"
