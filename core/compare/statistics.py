"""Robust statistics of step times: median, interval, stopping rule, the slowest rank."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from operator import attrgetter

from sysbench.core.record.job import JobStep
from sysbench.core.record.record import Spread

OUTLIER_MADS = 5.0
MAD_TO_SIGMA = 1.4826  # consistency with the standard deviation of a normal distribution
MIN_STEPS = 10
MIN_SECONDS = 1.0


@cache
def interval_rank(count: int, confidence: float = 0.95) -> int:
    """Rank r such that samples r and n-1-r (from 0) bound the median with that confidence.

    From the binomial distribution, exact for independent samples of any distribution. Below six
    samples no such interval exists and rank 0, the full range, is returned.
    """
    tail = (1 - confidence) / 2
    cumulative, rank = 0.0, 0
    for below in range(count // 2):
        # P(exactly `below` samples lie under the median), by logarithms: 2**count overflows.
        cumulative += math.exp(
            math.lgamma(count + 1)
            - math.lgamma(below + 1)
            - math.lgamma(count - below + 1)
            - count * math.log(2)
        )
        if cumulative > tail:
            break
        rank = below
    return rank


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(samples)
    rank = interval_rank(len(ordered))
    return ordered[rank], ordered[-1 - rank]


def half_width(samples: Sequence[float]) -> float:
    """Half of the median's 95 % interval, as a share of the median; infinite below 6 samples."""
    median = statistics.median(samples) if samples else 0.0
    if len(samples) < 6 or median <= 0:
        return math.inf
    low, high = median_interval(samples)
    return (high - low) / 2 / median


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile at a share of one, by linear interpolation between sorted samples."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def spread(samples: Sequence[float]) -> Spread:
    """All statistics of a series of step times in milliseconds, in the order of measuring.

    Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("no samples to summarise")
    ordered = sorted(samples)
    median = statistics.median(ordered)
    mad = MAD_TO_SIGMA * statistics.median(abs(sample - median) for sample in ordered)
    low, high = median_interval(ordered)
    limit = OUTLIER_MADS * mad
    return Spread(
        median_ms=median,
        ci_low_ms=low,
        ci_high_ms=high,
        mad_ms=mad,
        iqr_ms=quantile(ordered, 0.75) - quantile(ordered, 0.25),
        mean_ms=statistics.fmean(ordered),
        std_ms=statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
        min_ms=ordered[0],
        max_ms=ordered[-1],
        p10_ms=quantile(ordered, 0.10),
        p90_ms=quantile(ordered, 0.90),
        n=len(ordered),
        drift=drift(samples),
        outliers=[i for i, sample in enumerate(samples) if mad and abs(sample - median) > limit],
    )


def drift(samples: Sequence[float]) -> float:
    """Median of the second half over median of the first half, minus one; 0 below 4 samples."""
    if len(samples) < 4:
        return 0.0
    half = len(samples) // 2
    before, after = statistics.median(samples[:half]), statistics.median(samples[half:])
    return after / before - 1 if before else 0.0


def settled(recent: Sequence[float], agree_within: float = 0.05, count: int = 3) -> bool:
    """True if the last ``count`` warm-up steps agree within a share of the shortest of them."""
    last = recent[-count:]
    return len(last) == count and max(last) <= min(last) * (1 + agree_within)


def stop_reason(
    samples: Sequence[float],
    elapsed_seconds: float,
    *,
    steps: int,
    until: float,
    max_steps: int,
    max_seconds: float,
    turns: tuple[int, int] | None = None,
) -> str | None:
    """The reason to stop measuring, or None to continue; a number of ``steps`` is the only rule.

    The turns taken, and their number in a pair of processes, replace ``until``.
    """
    if steps:
        return f"the {steps} steps asked for are done" if len(samples) >= steps else None
    enough = len(samples) >= MIN_STEPS and elapsed_seconds >= MIN_SECONDS
    if turns is not None:
        if turns[0] >= turns[1]:
            return f"the {turns[1]} turns of its pair are done"
    elif enough and half_width(samples) <= until:
        return f"the median is known to ±{100 * until:.2g} %"
    if len(samples) >= max_steps:
        return f"the limit of {max_steps} steps was reached"
    if elapsed_seconds >= max_seconds:
        return f"the limit of {max_seconds:g} s was reached"
    return None


ON_REQUEST = "stopped on request"
_FEW_WORDS = (
    (re.compile(r"the (\d+) steps asked for are done"), r"all \1 steps asked for"),
    (re.compile(r"the limit of (.+) was reached"), r"stopped at \1"),
    (re.compile(r"the median is known to .+"), ""),
    (re.compile(r"stopped on request after .+"), ON_REQUEST),
    (re.compile(r"the (\d+) turns of its pair are done"), r"all \1 turns of its pair"),
)


def stop_words(reason: str) -> str:
    """Shorten a reason of `stop_reason`: ``stopped at 15 s``; empty for reaching the goal."""
    for pattern, words in _FEW_WORDS:
        if found := pattern.fullmatch(reason):
            return found.expand(words)
    return reason


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
