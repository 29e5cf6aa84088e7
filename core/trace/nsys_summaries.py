"""Durations by group as in NVIDIA's reports; the clocks wall, GPU span and GPU busy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sysbench.core.errors import DamagedFileError
from sysbench.core.record.nsys import Clocks, KernelSummary, NsysDevice
from sysbench.core.trace.classify import classify
from sysbench.core.trace.intervals import Cover, Times
from sysbench.core.trace.nsys_events import MOST_DEVICES, Calls, Events, Work, joined
from sysbench.core.trace.trace_events import Index, Kind

Floats = NDArray[np.float64]


class Stats(NamedTuple):
    """Statistics of one group; ``std`` is the sample standard deviation, 0 for one member."""

    n: int
    total: int
    minimum: int
    maximum: int
    median: float
    std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """`Stats` as columns: one element per group with members; ``group`` is ascending."""

    group: Index
    count: Index
    total: Times
    minimum: Times
    maximum: Times
    median: Floats
    std: Floats

    def rows(self) -> Iterator[Stats]:
        """The statistics of each group, in order."""
        columns = (self.count, self.total, self.minimum, self.maximum, self.median, self.std)
        return map(Stats, *(column.tolist() for column in columns))


def by_group(group: Index, values: Times) -> GroupStats:
    """Statistics of the values of each group; integers stay exact."""
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
    return GroupStats(
        group=group[begin],
        count=count,
        total=total,
        minimum=values[begin],
        maximum=values[begin + count - 1],
        median=middle / 2,
        std=np.sqrt(squares / np.maximum(count - 1, 1)),
    )


def work_summary(names: list[str], work: Work) -> list[KernelSummary]:
    """Rows by short name, the longest first, as in ``cuda_gpu_kern_sum``."""
    return summary(names, work.short, work.end - work.start)


def call_summary(names: list[str], calls: Calls) -> list[KernelSummary]:
    """Rows by the name of the CUDA call, the longest first, as in ``cuda_api_sum``; names are
    without the version that a call of the API may end in."""
    return summary(names, calls.name, calls.end - calls.start)


def summary(names: list[str], group_of: Index, durations: Times) -> list[KernelSummary]:
    """A row for each name that ``group_of`` is an index of, the longest first."""
    stats = by_group(group_of, durations)
    total_ns = int(stats.total.sum())
    rows = [
        KernelSummary(
            name=names[group],
            instances=stat.n,
            total_ns=stat.total,
            mean_ns=stat.total / stat.n,
            median_ns=stat.median,
            min_ns=stat.minimum,
            max_ns=stat.maximum,
            std_ns=stat.std,
            share=stat.total / total_ns if total_ns else 0.0,
        )
        for group, stat in zip(stats.group.tolist(), stats.rows(), strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))


Flags = NDArray[np.bool_]


def devices_of(events: Events, models: dict[int, str]) -> list[NsysDevice]:
    """Every device that ran something, by its number.

    Args:
        events: The export's events.
        models: Names of the devices by their number.

    Raises:
        DamagedFileError: More devices than a machine can have.
    """
    work = joined([events.work, events.graphs])
    numbers = np.unique(work.device).tolist()
    if len(numbers) > MOST_DEVICES:
        raise DamagedFileError(f"the export has work on {len(numbers)} devices")
    communicates = _communicates(events.names, work)
    devices = []
    for number in numbers:
        on_device = work.device == number
        kernel = on_device & (work.kind == Kind.KERNEL)
        computes = _cover(work, kernel & ~communicates)
        busy = _cover(work, kernel)
        devices.append(
            NsysDevice(
                device=number,
                name=models.get(number),
                kernels=int(kernel.sum()),
                copies=int(on_device.sum() - kernel.sum()),
                span_ns=_span(work, kernel),
                busy_ns=busy.total,
                summed_ns=int((work.end - work.start)[kernel].sum()),
                busy_with_copies_ns=_cover(work, on_device).total,
                communication_ns=_cover(work, kernel & communicates).total,
                exposed_communication_ns=busy.total - computes.total,
            )
        )
    return devices


def clocks_of(events: Events, devices: list[NsysDevice]) -> Clocks:
    """The clocks of the export; the GPU's are those of its busiest device."""
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


def _communicates(names: list[str], work: Work) -> Flags:
    used, index = np.unique(work.name, return_inverse=True)
    flags = [classify(names[name]) == "communication" for name in used.tolist()]
    return np.array(flags, dtype=bool)[index]


def _cover(work: Work, chosen: Flags) -> Cover:
    return Cover(work.start[chosen], work.end[chosen])


def _span(work: Work, chosen: Flags) -> int:
    if not chosen.any():
        return 0
    return int(work.end[chosen].max() - work.start[chosen].min())
