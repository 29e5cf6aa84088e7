"""Project NVTX ranges onto the GPU by the work launched inside them.

A host range has no times on the device, where its work runs later. A range owns the CUDA calls that
its thread made inside it and, by correlation id, the work they launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from sysbench.core.errors import DamagedFileError
from sysbench.core.record.steps import Clocks, KernelSummary, NsysDevice, Nvtx, NvtxRange, Style
from sysbench.core.trace.classify import is_communication
from sysbench.core.trace.intervals import Cover, Times, sums_by
from sysbench.core.trace.nsys_events import (
    MAX_DEVICES,
    OPERATOR_FACTS,
    Calls,
    NsysEvents,
    NsysRanges,
    NsysWork,
)
from sysbench.core.trace.trace_events import EventColumns, Flags, Index, Kind, Numbers, names_fit

STYLES: tuple[Style, ...] = get_args(Style)
LAST, FIRST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


def nvtx_of(events: NsysEvents) -> Nvtx:
    """Return every range that launched work, by label and style, and the kernels in no range."""
    ranges = events.ranges
    calls, launched = _launched_by(events.calls, events.work)
    clock = _Clock(ranges, calls)
    by_thread = _in_own_thread(ranges, calls, launched, clock)
    by_process = _in_process(ranges, calls, launched, clock)
    rows = _rows(events.labels, ranges, by_thread, by_process)
    names, label = _folded(events.labels, ranges)
    folded = []
    if len(np.unique(label)) < len(np.unique(ranges.label)):
        folded = _rows(names, replace(ranges, label=label), by_thread, by_process)
    in_range = _made_in_a_range(ranges, calls, clock)
    kernels = events.work.take(events.work.kind == Kind.KERNEL)
    linked = np.isin(kernels.correlation, calls.correlation)
    return Nvtx(
        rows=[row for row in rows if row.operations],
        elsewhere=sorted(
            (row for row in rows if not row.operations),
            key=lambda row: (-row.process_kernel_ns, row.range),
        ),
        folded=folded,
        ranges=len(ranges),
        outside_kernels=int(launched.kernels[~in_range].sum()),
        outside_kernel_ns=int(launched.kernel_ns[~in_range].sum()),
        unlinked_kernels=int((~linked).sum()),
        unlinked_kernel_ns=int((kernels.end - kernels.start)[~linked].sum()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launched(EventColumns):
    """Work of each call, or of each range; ``start`` and ``end`` are undefined without work."""

    operations: Index
    kernels: Index
    kernel_ns: Times


def _launched_by(calls: Calls, work: NsysWork) -> tuple[Calls, _Launched]:
    """Return the calls that launched work, and what each of them launched."""
    work = work.take(work.correlation > 0)
    is_kernel = work.kind == Kind.KERNEL
    keys, group = np.unique(work.correlation, return_inverse=True)
    start, end = np.full(len(keys), LAST), np.full(len(keys), FIRST)
    np.minimum.at(start, group, work.start)
    np.maximum.at(end, group, work.end)
    launched = _Launched(
        start=start,
        end=end,
        operations=np.ones(len(keys), dtype=np.int64),
        kernels=sums_by(group, is_kernel.astype(np.int64), len(keys)),
        kernel_ns=sums_by(group, np.where(is_kernel, work.end - work.start, 0), len(keys)),
    )
    # A driver's call inside a runtime's may have the same number: the first counts.
    unique, first = np.unique(calls.correlation, return_index=True)
    calls = calls.take(first[np.isin(unique, keys)])
    # The search is exact: only launches in `keys` are left.
    return calls, launched.take(np.searchsorted(keys, calls.correlation))


class _Clock:
    """Instants of ranges and calls as small integers in the same order.

    An owner (thread or process) and an instant fit in one integer, so one binary search finds an
    instant of an owner. Nanoseconds could overflow it.
    """

    def __init__(self, ranges: NsysRanges, calls: Calls) -> None:
        parts = (ranges.start, ranges.end, calls.start, calls.end)
        unique, rank = np.unique(np.concatenate(parts), return_inverse=True)
        # One more than instants: an interval may end one past its last, still in its owner.
        self.length = len(unique) + 1
        ends = np.cumsum([len(part) for part in parts])[:-1]
        self.range_start, self.range_end, self.call_start, self.call_end = np.split(rank, ends)

    def key(self, owner: Index, instant: Index) -> Index:
        return owner * self.length + instant


def _in_own_thread(
    ranges: NsysRanges, calls: Calls, launched: _Launched, clock: _Clock
) -> _Launched:
    """Project calls of the range's thread that lie inside the range completely."""
    first = clock.key(calls.thread, clock.call_start)
    last = clock.key(calls.thread, clock.call_end)
    opens = clock.key(ranges.thread, clock.range_start)
    closes = clock.key(ranges.thread, clock.range_end)
    columns = (launched.operations, launched.kernels, launched.kernel_ns)
    totals = np.zeros((len(columns), len(ranges)), dtype=np.int64)
    start, end = np.full(len(ranges), LAST), np.full(len(ranges), FIRST)
    for chain in _chains(first, last):
        # Begins and ends of a chain ascend, so a range's calls are a slice: from the first that
        # begins at or after it opens, to before the first that ends after it closes.
        low = np.searchsorted(first[chain], opens, side="left")
        high = np.searchsorted(last[chain], closes, side="right")
        # A range inside a single call has high < low; one that another thread ended, no calls.
        high = np.where(ranges.crosses, low, np.maximum(low, high))
        totals += [_sums(values[chain], low, high) for values in columns]
        start = np.minimum(start, _extremes(np.minimum, launched.start[chain], low, high, LAST))
        end = np.maximum(end, _extremes(np.maximum, launched.end[chain], low, high, FIRST))
    operations, kernels, kernel_ns = totals
    return _Launched(
        start=start, end=end, operations=operations, kernels=kernels, kernel_ns=kernel_ns
    )


def _in_process(
    ranges: NsysRanges, calls: Calls, launched: _Launched, clock: _Clock
) -> tuple[Index, Times]:
    """Return number and time of kernels that the process launched while the range was open."""
    started = clock.key(calls.process, clock.call_start)
    order = np.argsort(started)
    opens = clock.key(ranges.process, clock.range_start)
    closes = clock.key(ranges.process, clock.range_end)
    low = np.searchsorted(started[order], opens, side="left")
    high = np.maximum(low, np.searchsorted(started[order], closes, side="right"))
    return (
        _sums(launched.kernels[order], low, high),
        _sums(launched.kernel_ns[order], low, high),
    )


def _made_in_a_range(ranges: NsysRanges, calls: Calls, clock: _Clock) -> NDArray[np.bool_]:
    opens = clock.key(ranges.thread, clock.range_start)
    closes = clock.key(ranges.thread, clock.range_end)
    began = clock.key(calls.thread, clock.call_start)
    # `Cover` is half-open: one more than the last instant includes it.
    return np.asarray(Cover(opens, closes + 1).within(began, began + 1) > 0)


def _chains(first: Index, last: Index) -> Iterator[Index]:
    """Split the calls into chains with ascending begins and ends: one unless calls nest."""
    rest = np.argsort(first, kind="stable")
    while len(rest):
        ends = last[rest]
        # The calls that end no earlier than all before them; the first always does.
        ascends = ends >= np.maximum.accumulate(ends)
        yield rest[ascends]
        rest = rest[~ascends]


def _sums(values: Times, low: Index, high: Index) -> Times:
    before = np.r_[0, np.cumsum(values)]
    return np.asarray(before[high] - before[low])


def _extremes(best: np.ufunc, values: Times, low: Index, high: Index, none: int) -> Times:
    """Return the extreme of ``values[low:high]`` for each pair of bounds; ``none`` if empty.

    A sparse table, one row at a time: in round k ``values[i]`` is the extreme of the 2**k values
    from i. Two such pieces, possibly overlapping, cover a slice of up to twice that length.
    """
    result = np.full(len(low), none)
    length = high - low
    longest = length.max(initial=0)
    width = 1
    while width <= longest:
        fits = np.flatnonzero((length >= width) & (length < 2 * width))
        result[fits] = best(values[low[fits]], values[high[fits] - width])
        values = best(values[:-width], values[width:])
        width *= 2
    return result


def _rows(
    names: list[str],
    ranges: NsysRanges,
    by_thread: _Launched,
    by_process: tuple[Index, Times],
) -> list[NvtxRange]:
    """Sum ranges of one label and style to a row, longest projection first.

    Instances whose thread launched no work count only if no instance's thread did.
    """
    process_kernels, process_kernel_ns = by_process
    group = ranges.label * len(STYLES) + ranges.style  # one integer for label and style
    has_work = by_thread.operations > 0
    counts = has_work | ((process_kernels > 0) & ~np.isin(group, group[has_work]))
    # The bounds are undefined without work, and their difference could overflow.
    projected = np.where(has_work, by_thread.end, 0) - np.where(has_work, by_thread.start, 0)
    groups, stats = by_group(group[counts], projected[counts])
    row = np.searchsorted(groups, group[counts])
    # The process's kernels sum over all instances of a row, counted or not.
    in_row = np.isin(group, groups)
    row_of_all = np.searchsorted(groups, group[in_row])
    size = len(groups)
    columns = {
        "range_ns": sums_by(row, (ranges.end - ranges.start)[counts], size),
        "operations": sums_by(row, by_thread.operations[counts], size),
        "kernels": sums_by(row, by_thread.kernels[counts], size),
        "kernel_ns": sums_by(row, by_thread.kernel_ns[counts], size),
        "process_kernels": sums_by(row_of_all, process_kernels[in_row], size),
        "process_kernel_ns": sums_by(row_of_all, process_kernel_ns[in_row], size),
    }
    totals = (values.tolist() for values in columns.values())
    nvtx_ranges = []
    for key, stat, *values in zip(groups.tolist(), stats, *totals, strict=True):
        facts = stat._asdict()
        nvtx_ranges.append(
            NvtxRange(
                range=names[key // len(STYLES)],
                style=STYLES[key % len(STYLES)],
                projected_ns=facts.pop("total_ns"),
                **facts,
                **dict(zip(columns, values, strict=True)),
            )
        )
    return sorted(nvtx_ranges, key=lambda nvtx: (-nvtx.projected_ns, nvtx.range, nvtx.style))


def _folded(names: list[str], ranges: NsysRanges) -> tuple[list[str], Index]:
    numbers = Numbers()
    number_of = np.zeros(len(names), dtype=np.int64)
    for index in np.unique(ranges.label).tolist():
        number_of[index] = numbers[OPERATOR_FACTS.split(names[index], maxsplit=1)[0]]
    return list(numbers), number_of[ranges.label]


class Stats(NamedTuple):
    """Statistics of one group; ``std_ns`` is the sample standard deviation, 0 for one member."""

    instances: int
    total_ns: int
    mean_ns: float
    median_ns: float
    min_ns: int
    max_ns: int
    std_ns: float


def by_group(group: Index, values: Times) -> tuple[Index, list[Stats]]:
    """Return the groups, ascending, with their statistics."""
    # By group, then by value: the least of a group comes first and the greatest last.
    order = np.lexsort((values, group))
    group, values = group[order], values[order]
    begin = np.flatnonzero(np.r_[True, group[1:] != group[:-1]][: len(group)])  # may be empty
    count = np.diff(np.r_[begin, len(group)])
    total = np.add.reduceat(values, begin) if len(begin) else values[:0]
    mean = total / count
    # Twice the median: of an odd count both are the middle value.
    middle = values[begin + (count - 1) // 2] + values[begin + count // 2]
    deviations = (values - np.repeat(mean, count)) ** 2
    squares = np.add.reduceat(deviations, begin) if len(begin) else deviations
    std = np.sqrt(squares / np.maximum(count - 1, 1))
    ends = values[begin], values[begin + count - 1]
    columns = (count, total, mean, middle / 2, *ends, std)
    return group[begin], list(map(Stats, *(column.tolist() for column in columns)))


def summary(names: list[str], group_of: Index, events: EventColumns) -> list[KernelSummary]:
    """Return a row per group, longest first, as in ``cuda_gpu_kern_sum`` and ``cuda_api_sum``."""
    groups, stats = by_group(group_of, events.end - events.start)
    total_ns = sum(stat.total_ns for stat in stats)
    rows = [
        KernelSummary(
            name=names[group],
            share=stat.total_ns / total_ns if total_ns else 0.0,
            **stat._asdict(),
        )
        for group, stat in zip(groups.tolist(), stats, strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))


def devices_of(events: NsysEvents, models: dict[int, str]) -> list[NsysDevice]:
    """Return every device that ran something, by number, named by ``models``."""
    work = NsysWork.joined([events.work, events.graphs])
    numbers = np.unique(work.device).tolist()
    if len(numbers) > MAX_DEVICES:
        raise DamagedFileError(f"the export has work on {len(numbers)} devices")
    communicates = names_fit(events.names, work.name, is_communication)
    devices = []
    for number in numbers:
        on_device = work.device == number
        kernel = on_device & (work.kind == Kind.KERNEL)
        computes = _cover(work, kernel & ~communicates)
        busy = _cover(work, kernel)
        starts, ends = work.start[kernel], work.end[kernel]
        devices.append(
            NsysDevice(
                device=number,
                name=models.get(number),
                kernels=int(kernel.sum()),
                copies=int(on_device.sum() - kernel.sum()),
                span_ns=int(ends.max() - starts.min()) if len(starts) else 0,
                busy_ns=busy.total,
                summed_ns=int((ends - starts).sum()),
                busy_with_copies_ns=_cover(work, on_device).total,
                communication_ns=_cover(work, kernel & communicates).total,
                exposed_communication_ns=busy.total - computes.total,
            )
        )
    return devices


def clocks_of(events: NsysEvents, devices: list[NsysDevice]) -> Clocks:
    """Return the clocks of the export; the GPU's are those of its busiest device."""
    # Times count from the first event, so the last end is the length of the recording.
    columns = (events.work.end, events.graphs.end, events.calls.end, events.ranges.end)
    ends = [int(column.max()) for column in columns if len(column)]
    busiest = max(
        (device for device in devices if device.kernels),
        key=lambda device: device.busy_ns,
        default=None,
    )
    return Clocks(
        wall_ns=max(ends, default=None),
        span_ns=busiest.span_ns if busiest else None,
        busy_ns=busiest.busy_ns if busiest else None,
    )


def _cover(work: NsysWork, chosen: Flags) -> Cover:
    return Cover(work.start[chosen], work.end[chosen])
