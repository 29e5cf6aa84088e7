"""Marked steps of a file: busy time, idle time by cause, exposed communication.

A device lags behind its host, so its part of a step is the work launched while the step's marker
was open on the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np

from sysbench.core.errors import DamagedFileError
from sysbench.core.record.steps import MarkedSteps, StepRow
from sysbench.core.trace.activities import COMPUTE, MEMORY, Activities
from sysbench.core.trace.intervals import Cover, Times
from sysbench.core.trace.markers import Steps
from sysbench.core.trace.module_tree import find_outliers

OUTSIDE = "outside the steps"


@dataclass(frozen=True, slots=True)
class Gaps:
    """Disjoint intervals in which nothing ran: by cause, and unattributed (see `gaps_of`)."""

    causes: Mapping[str, Cover]
    unattributed: Cover

    def within(self, low: int, high: int) -> tuple[dict[str, int], int]:
        causes = {cause: cover.length(low, high) for cause, cover in self.causes.items()}
        return causes, self.unattributed.length(low, high)


def device_cuts(steps: Steps, work: Activities, low: int, high: int) -> tuple[Times, Times]:
    """Return begin and end of each step on the device, ascending and disjoint in [low, high].

    A step lasts from its first work to the end of its last, at most until the next step. It also
    owns the parts of adjacent gaps in which its marker was open. Only kernels begin a step: a copy
    for it may overlap the step before. A step that launched nothing has length 0.
    """
    borders = np.stack((steps.start, steps.end), axis=1).reshape(-1)
    # Odd parts are steps, even ones lie before, between and after them.
    part = np.searchsorted(borders, work.launched, side="right")
    step, is_in_step = part // 2, work.linked & (part % 2 == 1)
    count = len(steps.start)
    begin, kernel = np.full(count, high), np.full(count, high)
    end = np.full(count, low)
    is_kernel = is_in_step & (work.rank != MEMORY)
    np.minimum.at(begin, step[is_in_step], work.start[is_in_step])
    np.minimum.at(kernel, step[is_kernel], work.start[is_kernel])
    np.maximum.at(end, step[is_in_step], work.end[is_in_step])
    before_it = np.append(low, np.maximum.accumulate(end)[:-1])
    begin = np.minimum(kernel, np.maximum(begin, before_it))
    # Gaps are between pieces of any work: what ran last before, and what starts next.
    order = np.argsort(work.start, kind="stable")
    starts, reached = work.start[order], np.maximum.accumulate(work.end[order])
    before = np.searchsorted(starts, begin) - 1
    idle_from = np.where(before >= 0, reached[np.maximum(before, 0)], low)
    has_work = end > begin
    begin = np.where(has_work, np.minimum(begin, np.maximum(idle_from, steps.start)), begin)
    after = np.searchsorted(starts, end)
    idle_to = np.where(after < len(starts), starts[np.minimum(after, len(starts) - 1)], high)
    end = np.where(has_work, np.maximum(end, np.minimum(idle_to, steps.end)), begin)
    begin = np.clip(np.minimum.accumulate(begin[::-1])[::-1], low, high)
    end = np.clip(np.minimum(end, np.append(begin[1:], high)), begin, high)
    return begin, end


def marked_steps(
    steps: Steps,
    cuts: tuple[Times, Times],
    work: Activities,
    gaps: Gaps,
    low: int,
    high: int,
    *,
    clock: str,
) -> MarkedSteps:
    """Return the table of steps over [low, high); each column adds up to that of the span.

    Args:
        cuts: Begin and end of each step, in order and disjoint.
        work: Everything that ran in the span.
        clock: ``device`` or ``host``.
    """
    begin, end = cuts
    low_of = np.append(begin, low)
    high_of = np.append(end, high)
    busy = Cover(work.start, work.end).within(low_of, high_of)
    computing = work.rank == COMPUTE
    is_kernel = computing | (work.rank != MEMORY)
    both = Cover(work.start[is_kernel], work.end[is_kernel]).within(low_of, high_of)
    alone = Cover(work.start[computing], work.end[computing]).within(low_of, high_of)
    causes = {cause: cover.within(low_of, high_of) for cause, cover in gaps.causes.items()}
    unattributed = gaps.unattributed.within(low_of, high_of)
    order = np.sort(work.start)
    kernels = np.searchsorted(order, high_of) - np.searchsorted(order, low_of)
    kernels[-1] = len(order)  # also what begins at the very end, without length
    columns = {
        "ns": high_of - low_of,
        "busy_ns": busy,
        "communication_ns": both - alone,
        "unattributed_ns": unattributed,
        "kernels": kernels,
    }
    for values in chain(columns.values(), causes.values()):
        values[-1] -= values[:-1].sum()  # the span less its steps is what lies outside
    odd = _odd(steps, columns["ns"][:-1])
    rows = [
        msgspec.structs.replace(
            _row(columns, causes, at),
            number=steps.numbers[at],
            name=steps.names[at],
            start_ns=int(begin[at]),
            kind=marker.kind,
            tokens=marker.tokens,
            requests=marker.requests,
            host_start_ns=int(steps.start[at]),
            host_ns=int(steps.end[at] - steps.start[at]),
            is_odd=at in odd,
        )
        for at, marker in enumerate(steps.markers)
    ]
    return MarkedSteps(
        family=steps.family,
        clock=clock,
        span_ns=high - low,
        rows=rows,
        outside=_row(columns, causes, -1),
        left_out=steps.left_out,
    )


def rows_between(marked: MarkedSteps, first: int, last: int) -> list[StepRow]:
    """Return the steps from the first to the last with a number in [first, last].

    Raises:
        DamagedFileError: There is no such step.
    """
    numbers = [row.number or 0 for row in marked.rows]
    inside = [index for index, number in enumerate(numbers) if first <= number <= last]
    if not inside:
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        raise DamagedFileError(f"no {steps} in this file ({min(numbers)} to {max(numbers)})")
    return marked.rows[inside[0] : inside[-1] + 1]


def _row(columns: Mapping[str, Times], causes: Mapping[str, Times], at: int) -> StepRow:
    return StepRow(
        number=None,
        name=OUTSIDE,
        idle={cause: int(values[at]) for cause, values in causes.items()},
        **{name: values[at].item() for name, values in columns.items()},
    )


def _odd(steps: Steps, lengths: Times) -> set[int]:
    groups: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for at, (marker, length) in enumerate(zip(steps.markers, lengths.tolist(), strict=True)):
        groups[marker.kind][at] = float(length)
    return {at for group in groups.values() for at in find_outliers(group)}
