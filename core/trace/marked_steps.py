"""Marked steps of a file: busy time, idle time by cause, exposed communication.

A device lags behind its host, so a step ends after the work that was launched while its marker was
open on the host.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np

from sysbench.core.errors import DamagedFileError
from sysbench.core.record.steps import MarkedSteps, StepRow
from sysbench.core.trace.intervals import Cover, Times
from sysbench.core.trace.markers import Steps
from sysbench.core.trace.module_tree import find_outliers
from sysbench.core.trace.scopes import COMPUTE, MEMORY, Activities
from sysbench.core.trace.trace_events import Flags, Index

OUTSIDE = "outside the steps"


@dataclass(frozen=True, slots=True)
class Gaps:
    """Disjoint intervals in which nothing ran: by cause, and unattributed (see `gaps_of`)."""

    causes: Mapping[str, Cover]
    unattributed: Cover

    def within(self, low: int, high: int) -> tuple[dict[str, int], int]:
        causes = {cause: cover.length(low, high) for cause, cover in self.causes.items()}
        return causes, self.unattributed.length(low, high)


def device_cuts(steps: Steps, work: Activities) -> tuple[Times, Times]:
    """Return begin and end of each step on the device, ascending and disjoint.

    A step lasts from the begin of its marker to the end of the marker or of the last work launched
    in it, whichever is later; while an earlier step lasts, it has not begun.
    """
    step, is_in_step = _launching_steps(steps, work)
    end = steps.end.copy()
    np.maximum.at(end, step[is_in_step], work.end[is_in_step])
    end = np.maximum.accumulate(end)
    return np.maximum(steps.start, np.append(steps.start[:1], end[:-1])), end


def _launching_steps(steps: Steps, work: Activities) -> tuple[Index, Flags]:
    """Return the step whose marker was open at each launch, and whether one was."""
    borders = np.stack((steps.start, steps.end), axis=1).reshape(-1)
    # Odd parts are steps, even ones lie before, between and after them.
    part = np.searchsorted(borders, work.launched, side="right")
    return part // 2, work.linked & (part % 2 == 1)


def marked_steps(
    steps: Steps,
    cuts: tuple[Times, Times],
    work: Activities,
    gaps: Gaps,
    loading: Cover,
    low: int,
    high: int,
    *,
    clock: str,
) -> MarkedSteps:
    """Return the table of steps over [low, high); each column adds up to that of the span.

    ``loading`` is the time in which the loop, or an idle device, waits for the data loader;
    ``clock`` is ``device`` or ``host``.
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
    launching, is_in_step = _launching_steps(steps, work)
    launched = np.bincount(launching[is_in_step], minlength=len(low_of))
    launched[-1] = len(work)
    columns = {
        "ns": high_of - low_of,
        "busy_ns": busy,
        "communication_ns": both - alone,
        "unattributed_ns": unattributed,
        "kernels": kernels,
        "launched": launched,
        "loading_ns": loading.within(low_of, high_of),
    }
    for values in chain(columns.values(), causes.values()):
        values[-1] -= values[:-1].sum()  # the span less its steps is what lies outside
    has_work = (kernels + launched)[:-1] > 0
    own_ns = columns["ns"][:-1].copy()
    # Each other step begins when the one before has ended; work from before the first runs into it.
    earlier = work.end[work.linked & (work.launched < steps.start[0])].max(initial=low)
    own_ns[0] -= max(0, min(int(earlier), int(end[0])) - int(begin[0]))
    odd = _odd(steps, own_ns, has_work)
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
    """Return the steps from the first to the last in [first, last]; DamagedFileError if none is."""
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


def _odd(steps: Steps, lengths: Times, has_work: Flags) -> set[int]:
    """Return the outliers among the steps of each kind that ran something."""
    groups: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for at in np.flatnonzero(has_work).tolist():
        groups[steps.markers[at].kind][at] = float(lengths[at])
    return {
        at
        for group in groups.values()
        if statistics.median(group.values())
        for at in find_outliers(group)
    }
