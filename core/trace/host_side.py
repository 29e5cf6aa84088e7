"""Host side of an imported file: annotations, Python functions, and runtime calls.

A range owns the work that its thread launched while it was open. Pieces have the exclusive times of
the kernel table, so the self times of the ranges and the rest add up to busy time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sysbench.core.formatting import HOMES, slashed
from sysbench.core.record.steps import HostRange, HostSide, KernelSummary, TracedOperator
from sysbench.core.trace.intervals import Cover, Times, sums_by
from sysbench.core.trace.markers import read_marker
from sysbench.core.trace.operands import parse_operands
from sysbench.core.trace.scopes import RANGES, launches_of
from sysbench.core.trace.time_ledger import TimeLedger
from sysbench.core.trace.trace_events import (
    NONE,
    Flags,
    HostEvents,
    Index,
    Kind,
    Numbers,
    Ranges,
    Trace,
    by_thread,
    follow_flow,
    names_fit,
    nearest,
    occurring,
    parents,
    self_times,
)

MAX_ROWS = 1000
MAX_OPERATORS = 600
AUTOGRAD = "autograd::engine::evaluate_function"
NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
"""A separate number in a name; the number in ``fc1`` identifies a layer."""
MIN_ALIKE = 8
"""Minimum number of names that differ only in such numbers to count as calls of one range."""
MAX_NAME_LENGTH = 500
OLD_RANGES = ("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer.")
"""Name prefixes of torch's own ranges; before 1.10 they were recorded as operators."""


class Work(NamedTuple):
    """Pieces of work by the place of their launch; ``own_ns`` is exclusive time, ``calls`` is 1 for
    the first piece of a call, else 0."""

    thread: Index
    launched: Times
    own_ns: Times
    calls: Index


def host_side(trace: Trace, ledger: TimeLedger, calls: list[KernelSummary]) -> HostSide:
    work = _work_of(trace, ledger)
    annotations, projected = _annotations(trace), False
    names = _without_numbers(trace, annotations)
    placed = work
    if not len(annotations) and len(trace.projected) and ledger.device is not None:
        projected = True
        annotations = trace.projected.take(trace.projected.thread == ledger.device)
        names = _without_numbers(trace, annotations)
        begun = np.full(len(ledger.work), ledger.device)
        placed = Work(begun, ledger.work.start, ledger.exclusive, work.calls)
    late = None if projected else ledger.late
    rows, elsewhere = range_rows(names, annotations, placed, _open_in(ledger, annotations), late)
    functions = _with_work(trace.functions, work)
    paths = [_path(name) for name in trace.names] if len(functions) else []
    function_rows, no_function = range_rows(
        paths, functions, work, np.zeros(len(functions), dtype=np.bool_)
    )
    function_rows.sort(key=lambda row: -row.own_ns)  # where it is launched, not all above that
    return HostSide(
        annotations=rows[:MAX_ROWS],
        elsewhere_ns=elsewhere,
        more_ns=sum(row.own_ns for row in rows[MAX_ROWS:]),
        projected=projected,
        functions=function_rows[:MAX_ROWS],
        no_function_ns=no_function,
        more_functions_ns=sum(row.own_ns for row in function_rows[MAX_ROWS:]),
        calls=calls,
        operators=_operators(trace, ledger, functions, paths),
    )


def _operators(
    trace: Trace, ledger: TimeLedger, functions: Ranges, paths: Sequence[str]
) -> list[TracedOperator]:
    """Return a row for each operator, its operands and the function around it; longest first."""
    events, at = _calls_of(trace, ledger, sort=True)
    has_operands = (events.kind == Kind.OPERATOR) & (events.operands != NONE)
    around = parents(events)
    operator = follow_flow(at, nearest(has_operands, around))
    is_engine = names_fit(trace.names, events.name, lambda name: name.startswith(AUTOGRAD))
    in_engine = nearest(is_engine, around) != NONE
    chosen = np.flatnonzero(operator != NONE)
    operator = operator[chosen]
    work = Work(
        events.thread[operator],
        events.start[operator],
        ledger.exclusive[chosen],
        np.ones(len(chosen), dtype=np.int64),
    )
    inside = _innermost(functions, work) if len(functions) else np.full(len(chosen), NONE)
    keys = Numbers()
    place, backward = follow_flow(inside, functions.name), in_engine[operator].astype(np.int64)
    columns = (events.name[operator], events.operands[operator], place, backward)
    row = keys.of(list(zip(*(column.tolist() for column in columns), strict=True)))
    own_ns = sums_by(row, work.own_ns, len(keys))
    distinct = np.unique(operator, return_index=True)[1]
    calls = np.bincount(row[distinct], minlength=len(keys))
    rows = []
    for (name, operands, function, in_backward), number in keys.items():
        tensors = [one for one in parse_operands(trace.operands[operands]) or [] if one.is_tensor]
        rows.append(
            TracedOperator(
                name=trace.names[name],
                shapes=[list(one.shape) for one in tensors],
                types=[one.type for one in tensors],
                function=paths[function] if function != NONE else "",
                calls=int(calls[number]),
                own_ns=int(own_ns[number]),
                in_backward=bool(in_backward),
            )
        )
    rows.sort(key=lambda one: (-one.own_ns, one.name, one.shapes, one.function))
    return rows[:MAX_OPERATORS]


def _calls_of(trace: Trace, ledger: TimeLedger, *, sort: bool) -> tuple[HostEvents, Index]:
    """Return the host's events, and for each piece of work the one that called it."""
    if ledger.device is None:
        return by_thread(trace.host), ledger.work.call  # a call is its event
    events = by_thread(trace.host) if sort else trace.host
    of_device = trace.device.take(trace.device.device == ledger.device)
    return events, launches_of(of_device, events)[ledger.work.call]


def _work_of(trace: Trace, ledger: TimeLedger) -> Work:
    events, at = _calls_of(trace, ledger, sort=False)
    # A call of several pieces counts once: at the first of them, which ``unique`` returns.
    calls = np.zeros(len(at), dtype=np.int64)
    calls[np.unique(ledger.work.call, return_index=True)[1]] = 1
    return Work(
        follow_flow(at, events.thread), follow_flow(at, events.start), ledger.exclusive, calls
    )


def _annotations(trace: Trace) -> Ranges:
    host = trace.host
    is_own = names_fit(trace.names, host.name, lambda name: name.startswith(RANGES))
    is_old = names_fit(trace.names, host.name, lambda name: name.startswith(OLD_RANGES))
    is_range = (host.kind == Kind.ANNOTATION) & ~is_own
    is_range |= (host.kind == Kind.OPERATOR) & is_old
    chosen = np.flatnonzero(is_range)
    return Ranges(
        name=host.name[chosen],
        thread=host.thread[chosen],
        start=host.start[chosen],
        end=host.end[chosen],
    )


def _open_in(ledger: TimeLedger, ranges: Ranges) -> Flags:
    if ledger.host_window is None:
        return np.ones(len(ranges), dtype=np.bool_)
    low, high = ledger.host_window.low, ledger.host_window.high
    return np.asarray((ranges.start >= low) & (ranges.start < high))


def _without_numbers(trace: Trace, ranges: Ranges) -> list[str]:
    """Remove call numbers from range names, as in ``batch 3`` and ``batch 4``.

    If few names are alike, the numbers identify parts of a program and stay.
    """
    used = occurring(ranges.name).tolist()
    folded = {index: _replace_numbers(trace.names[index]) for index in used}
    alike = Counter(folded.values())
    names = list(trace.names)
    for index, name in folded.items():
        is_numbered = alike[name] >= MIN_ALIKE or read_marker(names[index]) is not None
        names[index] = (name if is_numbered else names[index])[:MAX_NAME_LENGTH]
    return names


def _replace_numbers(name: str) -> str:
    # A step's marker has its tokens and requests in its name: they are in the table of steps.
    return re.sub(r"\d+", "*", name) if read_marker(name) else NUMBER.sub("*", name)


def _path(name: str) -> str:
    path = slashed(name)
    parts = path.split("/")
    homes = [index for index, part in enumerate(parts[:-2]) if part.lower() in HOMES]
    return "/".join(parts[homes[0] + 2 :] if homes else parts)[-MAX_NAME_LENGTH:]


def _with_work(ranges: Ranges, work: Work) -> Ranges:
    if not len(ranges):
        return ranges
    return ranges.take(_Launches(ranges, work).launched_in() > 0)


class _Launches:
    """Instants of ranges and launches as small integers in the same order.

    A group (a label, a thread) and an instant fit in one integer, so one search finds an instant
    within its group.
    """

    def __init__(self, ranges: Ranges, work: Work) -> None:
        self.instants, rank = np.unique(
            np.r_[ranges.start, ranges.end, work.launched], return_inverse=True
        )
        # One more than instants: a range may end behind the last, still in its group.
        self.length = len(self.instants) + 1
        size = len(ranges)
        # One ``unique`` over all three, so that their ranks compare; here they come apart again.
        self.begin, self.end, launched = np.split(rank, [size, 2 * size])
        threads, thread = np.unique(np.r_[ranges.thread, work.thread], return_inverse=True)
        self.threads = len(threads)
        self.thread, of_work = np.split(thread, [size])
        linked = work.thread != NONE  # the launch of the others is not in the file
        self.any_thread = _Sums(launched[linked], work.own_ns[linked], work.calls[linked])
        # Thread and instant in one integer: searching a thread's interval finds no other's work.
        keys = of_work * self.length + launched
        self.own_thread = _Sums(keys[linked], work.own_ns[linked], work.calls[linked])

    def in_thread(self, thread: Index, begin: Index, end: Index) -> tuple[Times, Index]:
        offset = thread * self.length
        return self.own_thread.within(offset + begin, offset + end)

    def launched_in(self) -> Index:
        return self.in_thread(self.thread, self.begin, self.end)[1]

    def covered(self, group: Index, chosen: Index) -> tuple[Index, Index, Index]:
        """Return group, begin and end of intervals of instants; those of a group are disjoint."""
        # Each group has a range of integers of its own, so that one cover merges the intervals of
        # all groups, and never those of two.
        offset = group * self.length
        cover = Cover(offset + self.begin[chosen], offset + self.end[chosen])
        of = cover.start // self.length
        return of, cover.start - of * self.length, cover.end - of * self.length


class _Sums:
    def __init__(self, launched: Index, own_ns: Times, calls: Index) -> None:
        # Sums of the first n in order of launch: a difference of two is the sum of an interval.
        order = np.argsort(launched, kind="stable")
        self._launched = launched[order]
        self._own_ns = np.r_[0, np.cumsum(own_ns[order])]
        self._calls = np.r_[0, np.cumsum(calls[order])]

    def within(self, begin: Index, end: Index) -> tuple[Times, Index]:
        low, high = (np.searchsorted(self._launched, bound) for bound in (begin, end))
        return self._own_ns[high] - self._own_ns[low], self._calls[high] - self._calls[low]


def range_rows(
    names: Sequence[str], ranges: Ranges, work: Work, counts: Flags, late: Cover | None = None
) -> tuple[list[HostRange], int]:
    """Return a row per range name, longest first, and the time of work in no range.

    Ranges of one label are one row; those that count appear even if they launched nothing. ``late``
    is idle time of the device caused by the host.
    """
    if not len(ranges):
        return [], int(work.own_ns.sum())
    around = _innermost(ranges, work)
    elsewhere_ns = int(work.own_ns[around == NONE].sum())
    launches = _Launches(ranges, work)
    kept = np.flatnonzero(counts | (launches.launched_in() > 0))
    numbers = Numbers()
    label = numbers.of([names[name] for name in ranges.name.tolist()])
    count = len(numbers)
    own = sums_by(label[around[around != NONE]], work.own_ns[around != NONE], count)
    # Calls of one name in different threads do not lie inside each other.
    instants, threads = launches.instants, launches.threads
    group, begin, end = launches.covered(label[kept] * threads + launches.thread[kept], kept)
    inside = *launches.in_thread(group % threads, begin, end), instants[end] - instants[begin]
    total, launched, host = (sums_by(group // threads, values, count) for values in inside)
    group, begin, end = launches.covered(label[kept], kept)
    any_ns, _ = launches.any_thread.within(begin, end)
    late_ns, own_late = np.zeros_like(any_ns), np.zeros(count, dtype=np.int64)
    if late is not None:
        late_ns = late.within(instants[begin], instants[end])
        own_late = _own_late(ranges, label, count, late)
    columns = {
        "calls": np.bincount(label[kept], minlength=count),
        "host_ns": host,
        "launched": launched,
        "own_ns": own,
        "total_ns": total,
        "meanwhile_ns": sums_by(group, any_ns, count),
        "late_ns": sums_by(group, late_ns, count),
        "own_late_ns": own_late,
    }
    table = zip(numbers, *(values.tolist() for values in columns.values()), strict=True)
    rows = [
        HostRange(name=name, **dict(zip(columns, values, strict=True)))
        for name, *values in table
        if values[0]
    ]
    rows.sort(key=lambda row: (-max(row.total_ns, row.meanwhile_ns), -row.host_ns, row.name))
    return rows, elsewhere_ns


def _own_late(ranges: Ranges, label: Index, count: int, late: Cover) -> Times:
    """Return the part of ``late`` in which a range of each label was a thread's innermost."""
    size = len(ranges)
    none = np.full(size, NONE)
    events = by_thread(
        HostEvents(
            kind=np.full(size, int(Kind.ANNOTATION)),
            name=label,
            thread=ranges.thread,
            start=ranges.start,
            end=ranges.end,
            correlation=none,
            sequence=none,
            operands=none,
        )
    )
    owner, start, end = self_times(events, parents(events))
    return sums_by(events.name[owner], late.within(start, end), count)


def _innermost(ranges: Ranges, work: Work) -> Index:
    size, count = len(ranges), len(work.thread)
    none = np.full(size + count, NONE)
    # Work is an instant behind the ranges that begin with it, and nothing lies inside an instant.
    events = HostEvents(
        kind=np.r_[np.full(size, int(Kind.ANNOTATION)), np.full(count, int(Kind.RUNTIME))],
        name=none,
        thread=np.r_[ranges.thread, work.thread],
        start=np.r_[ranges.start, work.launched],
        end=np.r_[ranges.end, work.launched],
        correlation=np.arange(size + count),  # the place before sorting
        sequence=none,
        operands=none,
    )
    events = by_thread(events)
    is_range = events.kind == Kind.ANNOTATION
    around = follow_flow(nearest(is_range, parents(events)), events.correlation)
    result = np.full(count, NONE)
    result[events.correlation[~is_range] - size] = around[~is_range]
    result[work.thread == NONE] = NONE  # its launch is not in the file
    return result
