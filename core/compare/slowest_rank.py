"""The rank of a job that the others wait for."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from operator import attrgetter

from sysbench.core.compare.statistics import median_interval
from sysbench.core.record.job import JobStep

MIN_MEASURED = 6
"""Least steps after the warm-up for an interval of their median."""
NEWEST = 200
"""Steps of each rank that are summed up while the command runs."""
MIN_LAG = 0.05


def slowest_rank(steps: Mapping[int, Sequence[JobStep]]) -> tuple[int, float] | None:
    """Return the rank that the others wait for, and how much longer it takes than the next one.

    Ranks that wait for each other take equally long. The slowest is then that with the least
    communication, or with the longest time beside that and the backward, in which ranks also wait.
    None if the 95 % intervals of the medians of two ranks overlap, or if the difference is below
    `MIN_LAG` of the step.
    """
    newest = [
        [step for step in rows[-NEWEST:] if not step.traced] for _, rows in sorted(steps.items())
    ]
    if len(newest) < 2 or min(map(len, newest)) < MIN_MEASURED:
        return None
    for own_ms in (attrgetter("wall_ms"), _less_waiting, _without_backward):
        samples = {rows[0].rank: [own_ms(step) for step in rows] for rows in newest}
        medians = {rank: statistics.median(values) for rank, values in samples.items()}
        *_, second, first = sorted(medians, key=medians.__getitem__)
        late_ms = medians[first] - medians[second]
        others = [values for rank, values in samples.items() if rank != first]
        lows, highs = median_interval(samples[first]), map(median_interval, others)
        step_ms = statistics.median(step.wall_ms for step in newest[0])
        if lows[0] > max(high for _, high in highs) and late_ms > MIN_LAG * step_ms:
            return first, late_ms
    return None


def _less_waiting(step: JobStep) -> float:
    return -(step.communication_ms or 0.0)


def _without_backward(step: JobStep) -> float:
    return step.wall_ms + _less_waiting(step) - step.backward_ms
