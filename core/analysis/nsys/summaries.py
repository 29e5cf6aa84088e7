"""Statistics of durations by group, as NVIDIA's reports give them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...record.nsys import KernelSummary
from ..trace.events import Index
from ..trace.intervals import Times
from .events import Work

Floats = NDArray[np.float64]


class Stats(NamedTuple):
    """Of one group; ``std`` is the sample's standard deviation, 0 for a single member."""

    n: int
    total: int
    minimum: int
    maximum: int
    median: float
    std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """`Stats` as columns: one element per group that has members; ``group`` is ascending."""

    group: Index
    count: Index
    total: Times
    minimum: Times
    maximum: Times
    median: Floats
    std: Floats

    def rows(self) -> Iterator[Stats]:
        """One group after the other."""
        columns = (self.count, self.total, self.minimum, self.maximum, self.median, self.std)
        return map(Stats, *(column.tolist() for column in columns))


def by_group(group: Index, values: Times) -> GroupStats:
    """Statistics of the values of each group; integers stay exact."""
    order = np.lexsort((values, group))
    group, values = group[order], values[order]
    begin = np.flatnonzero(np.r_[True, group[1:] != group[:-1]][: len(group)])
    count = np.diff(np.r_[begin, len(group)])
    total = np.add.reduceat(values, begin) if len(begin) else values[:0]
    mean = total / count
    middle = values[begin + (count - 1) // 2] + values[begin + count // 2]
    away = (values - np.repeat(mean, count)) ** 2
    squares = np.add.reduceat(away, begin) if len(begin) else away
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
    """Rows by short name, the longest first: ``cuda_gpu_kern_sum``, or that of copies."""
    stats = by_group(work.short, work.end - work.start)
    whole = int(stats.total.sum())
    rows = [
        KernelSummary(
            name=names[group],
            instances=one.n,
            total_ns=one.total,
            mean_ns=one.total / one.n,
            median_ns=one.median,
            min_ns=one.minimum,
            max_ns=one.maximum,
            std_ns=one.std,
            share=one.total / whole if whole else 0.0,
        )
        for group, one in zip(stats.group.tolist(), stats.rows(), strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))
