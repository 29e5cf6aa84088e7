"""Steps side by side: which one has the highest peak, how they differ, and what grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sysbench.core.memory.allocations import AllocationHistory, Notes
from sysbench.core.memory.stack_text import stack_text
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

    Args:
        held: Bytes at the ends of the steps, by category, phase, module and stack.
        steps: Their numbers, from 1.
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
