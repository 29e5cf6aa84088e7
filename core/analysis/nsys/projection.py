"""NVTX ranges projected onto the GPU: which work was launched inside of each.

A range of the host says nothing of the device, where its work runs later. What belongs to it
are the CUDA calls that its thread made inside it, and by correlation the work they launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from ...record.nsys import Nvtx, NvtxRange, Style
from ..trace.events import Index, Kind
from ..trace.intervals import Cover, Times
from .events import Calls, Events, Ranges, Work
from .summaries import by_group

STYLES: tuple[Style, ...] = get_args(Style)
LAST, FIRST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


def nvtx_of(events: Events) -> Nvtx:
    """Every range that launched work, by label and style; and the kernels in no range."""
    ranges, launches = events.ranges, _launches(events.calls, events.work)
    clock = _Clock(ranges, launches.calls)
    own = _in_own_thread(ranges, launches, clock)
    whole = _in_process(ranges, launches, clock)
    rows = _rows(events.names, ranges, own, whole)
    in_range = _made_in_a_range(ranges, launches.calls, clock)
    kernels = events.work.take(events.work.kind == Kind.KERNEL)
    linked = np.isin(kernels.launch, launches.calls.launch)
    return Nvtx(
        rows=[row for row in rows if row.operations],
        elsewhere=sorted(
            (row for row in rows if not row.operations),
            key=lambda row: (-row.process_kernel_ns, row.range),
        ),
        ranges=len(ranges),
        outside_kernels=int(launches.kernels[~in_range].sum()),
        outside_kernel_ns=int(launches.kernel_ns[~in_range].sum()),
        unlinked_kernels=int((~linked).sum()),
        unlinked_kernel_ns=int((kernels.end - kernels.start)[~linked].sum()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launches:
    """The calls that launched work, and of each call's work: first begin, last end, kernels."""

    calls: Calls
    begin: Times
    end: Times
    kernels: Index
    kernel_ns: Times


def _launches(calls: Calls, work: Work) -> _Launches:
    work = work.take(work.launch >= 0)
    is_kernel = work.kind == Kind.KERNEL
    keys, group = np.unique(work.launch, return_inverse=True)
    begin, end = np.full(len(keys), LAST), np.full(len(keys), FIRST)
    kernels, kernel_ns = np.zeros((2, len(keys)), dtype=np.int64)
    np.minimum.at(begin, group, work.start)
    np.maximum.at(end, group, work.end)
    np.add.at(kernels, group, is_kernel)
    np.add.at(kernel_ns, group, np.where(is_kernel, work.end - work.start, 0))
    # A driver's call inside a runtime's may bear its number: the first counts.
    unique, first = np.unique(calls.launch, return_index=True)
    calls = calls.take(first[np.isin(unique, keys)])
    place = np.searchsorted(keys, calls.launch)
    return _Launches(
        calls=calls,
        begin=begin[place],
        end=end[place],
        kernels=kernels[place],
        kernel_ns=kernel_ns[place],
    )


class _Clock:
    """All instants of ranges and calls as small integers in the same order.

    An owner (a thread, a process) and an instant then fit in one integer, so that one
    binary search finds an instant among those of its owner.
    """

    def __init__(self, ranges: Ranges, calls: Calls) -> None:
        parts = (ranges.start, ranges.end, calls.start, calls.end)
        unique, rank = np.unique(np.concatenate(parts), return_inverse=True)
        self.length = len(unique) + 1
        ends = np.cumsum([len(part) for part in parts])[:-1]
        self.range_start, self.range_end, self.call_start, self.call_end = np.split(rank, ends)

    def at(self, owner: Index, instant: Index) -> Index:
        """The instant of that owner."""
        return owner * self.length + instant


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """For each range what was launched in it; ``begin`` and ``end`` mean nothing without."""

    operations: Index
    kernels: Index
    kernel_ns: Times
    begin: Times
    end: Times


def _in_own_thread(ranges: Ranges, launches: _Launches, clock: _Clock) -> _Found:
    """What the range's thread launched by calls that lie in it whole."""
    calls = launches.calls
    first = clock.at(calls.thread, clock.call_start)
    last = clock.at(calls.thread, clock.call_end)
    opens = clock.at(ranges.thread, clock.range_start)
    closes = clock.at(ranges.thread, clock.range_end)
    operations, kernels, kernel_ns = np.zeros((3, len(ranges)), dtype=np.int64)
    begin, end = np.full(len(ranges), LAST), np.full(len(ranges), FIRST)
    for chain in _chains(first, last):
        low = np.searchsorted(first[chain], opens, side="left")
        high = np.searchsorted(last[chain], closes, side="right")
        high = np.where(ranges.crosses, low, np.maximum(low, high))
        operations += high - low
        kernels += _sums(launches.kernels[chain], low, high)
        kernel_ns += _sums(launches.kernel_ns[chain], low, high)
        begin = np.minimum(begin, _extremes(np.minimum, launches.begin[chain], low, high, LAST))
        end = np.maximum(end, _extremes(np.maximum, launches.end[chain], low, high, FIRST))
    return _Found(operations=operations, kernels=kernels, kernel_ns=kernel_ns, begin=begin, end=end)


def _in_process(ranges: Ranges, launches: _Launches, clock: _Clock) -> tuple[Index, Times]:
    """Number and time of the kernels that any thread launched while the range was open."""
    started = clock.at(launches.calls.process, clock.call_start)
    order = np.argsort(started)
    opens = clock.at(ranges.process, clock.range_start)
    closes = clock.at(ranges.process, clock.range_end)
    low = np.searchsorted(started[order], opens, side="left")
    high = np.maximum(low, np.searchsorted(started[order], closes, side="right"))
    return (
        _sums(launches.kernels[order], low, high),
        _sums(launches.kernel_ns[order], low, high),
    )


def _made_in_a_range(ranges: Ranges, calls: Calls, clock: _Clock) -> NDArray[np.bool_]:
    """Whether a range of its thread was open when each call began."""
    opens = clock.at(ranges.thread, clock.range_start)
    closes = clock.at(ranges.thread, clock.range_end)
    began = clock.at(calls.thread, clock.call_start)
    return np.asarray(Cover(opens, closes + 1).within(began, began + 1) > 0)


def _chains(first: Index, last: Index) -> Iterator[Index]:
    """The calls, parted so that in each part both begins and ends ascend.

    One part, unless calls lie within each other.
    """
    rest = np.argsort(first, kind="stable")
    while len(rest):
        ends = last[rest]
        ascends = ends >= np.maximum.accumulate(ends)
        yield rest[ascends]
        rest = rest[~ascends]


def _sums(values: Times, low: Index, high: Index) -> Times:
    """Sums of ``values[low:high]``."""
    before = np.r_[0, np.cumsum(values)]
    return np.asarray(before[high] - before[low])


def _extremes(best: np.ufunc, values: Times, low: Index, high: Index, none: int) -> Times:
    """The least or greatest of ``values[low:high]``, ``none`` where that is empty.

    Two overlapping pieces cover any slice, each as long as a power of two.
    """
    result = np.full(len(low), none)
    length = high - low
    longest = length.max(initial=0)
    width = 1
    while width <= longest:
        now = np.flatnonzero((length >= width) & (length < 2 * width))
        result[now] = best(values[low[now]], values[high[now] - width])
        values = best(values[:-width], values[width:])
        width *= 2
    return result


def _rows(
    names: list[str], ranges: Ranges, own: _Found, whole: tuple[Index, Times]
) -> list[NvtxRange]:
    """Ranges of one label and style as one row, the longest projection first.

    Instances without work of their own count only where no instance has any.
    """
    group = ranges.label * len(STYLES) + ranges.kind
    has_own = own.operations > 0
    counts = has_own | ((whole[0] > 0) & ~np.isin(group, group[has_own]))
    projected = np.where(has_own, own.end, 0) - np.where(has_own, own.begin, 0)
    stats = by_group(group[counts], projected[counts])
    place = np.searchsorted(stats.group, group[counts])
    in_row = np.isin(group, stats.group)
    every = np.searchsorted(stats.group, group[in_row])
    size = len(stats.group)
    rows = zip(
        stats.group.tolist(),
        stats.rows(),
        _totals(place, (ranges.end - ranges.start)[counts], size),
        _totals(place, own.operations[counts], size),
        _totals(place, own.kernels[counts], size),
        _totals(place, own.kernel_ns[counts], size),
        _totals(every, whole[0][in_row], size),
        _totals(every, whole[1][in_row], size),
        strict=True,
    )
    made = [
        NvtxRange(
            range=names[key // len(STYLES)],
            style=STYLES[key % len(STYLES)],
            instances=one.n,
            projected_ns=one.total,
            range_ns=range_ns,
            operations=operations,
            mean_ns=one.total / one.n,
            median_ns=one.median,
            min_ns=one.minimum,
            max_ns=one.maximum,
            std_ns=one.std,
            kernels=kernels,
            kernel_ns=kernel_ns,
            process_kernels=process_kernels,
            process_kernel_ns=process_kernel_ns,
        )
        for key, one, range_ns, operations, kernels, kernel_ns, process_kernels, process_kernel_ns
        in rows
    ]  # fmt: skip
    return sorted(made, key=lambda row: (-row.projected_ns, row.range, row.style))


def _totals(place: Index, values: Times, size: int) -> list[int]:
    totals = np.zeros(size, dtype=np.int64)
    np.add.at(totals, place, values)
    return totals.tolist()
