"""Estimate the noise of a machine by source, from rounds of one spec compared with itself.

Sources are differences between processes, the steps inside a process, and conditions that change
during the rounds. A condition is tested by splitting the rounds at it, with the test of Mann and
Whitney. The five tests share one false rate, so at most 5 % of measurements find a source that is
not there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from sysbench.core.compare.bounds import FALSE_RATE, rank_bound
from sysbench.core.compare.conditions import others_load
from sysbench.core.compare.statistics import interval_rank, quantile
from sysbench.core.formatting import counted, percent
from sysbench.core.record.timing import Round

MIN_ROUNDS = 8
"""Minimum rounds to store a noise floor: the spread of fewer is a guess."""
TESTED = ("drift", "order", "clock", "neighbours", "first touch")
TEST_RATE = FALSE_RATE / len(TESTED)
"""False rate of one test."""
_MIN_LOAD_RANGE = 0.05  # of all cores: the kernel's ticks alone move the figure by a few per cent
_MIN_CLOCK_RANGE = 0.005
_WARM_SHARE = 4  # the first quarter of the measured steps against the rest
_EVENT_TICK_NS = 500.0  # "resolution of around 0.5 microseconds": CUDA's cudaEventElapsedTime


class NoiseSource(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    share: float | None = None
    low: float | None = None
    high: float | None = None
    found: bool | None = None
    how: str


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """A round, and the processor's clock in its measured part; null if not reported."""

    round: Round
    clock_mhz: float | None = None

    @property
    def log_ms(self) -> float:
        return math.log(self.round.median_ms or math.nan)


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Noise measured by the rounds.

    Attributes:
        between: Standard deviation between processes, as a share.
        inside: Median half-width of the interval inside a process, as a share.
        drift: Largest change between the first and the second half that is not excluded.
        pair: Difference of two single processes that 95 % of pairs stay within, as a share.
        residuals: Log deviations of the rounds from their median, in the order of measuring.
    """

    rounds: int
    median_ms: float
    between: float
    inside: float
    drift: float
    pair: float
    residuals: list[float]
    sources: list[NoiseSource]


def noise_of(observed: Sequence[Observed], tick_ns: float | None) -> Noise | None:
    """Estimate the noise of rounds of one spec, in the order of starting; None below `MIN_ROUNDS`
    that count.

    ``tick_ns`` is the step of the clock that times steps on the host; None for CUDA's events.
    """
    counting = [row for row in observed if row.round.counts]
    if len(counting) < MIN_ROUNDS:
        return None
    logs = [row.log_ms for row in counting]
    median_ms = statistics.median(row.round.median_ms or 0.0 for row in counting)
    spread = deviation_interval(logs)
    pairs = sorted(abs(a - b) for n, a in enumerate(logs) for b in logs[:n])
    half = len(logs) // 2
    drift = _split_source("drift", logs[:half], logs[half:], "the second half against the first")
    widths = [width for row in counting if (width := row.round.half_width) is not None]
    inside = statistics.median(widths) if widths else 0.0
    return Noise(
        rounds=len(counting),
        median_ms=median_ms,
        between=spread[0],
        inside=inside,
        drift=_largest(logs, drift),
        pair=math.expm1(quantile(pairs, 0.95)),
        residuals=[value - statistics.median(logs) for value in logs],
        sources=[
            _between(spread, len(counting)),
            _inside(inside, len(widths)),
            drift,
            _order(counting),
            _clock(counting),
            _neighbours(observed),
            _first_touch(counting),
            _granularity(median_ms, tick_ns),
        ],
    )


def deviation_interval(logs: Sequence[float]) -> tuple[float, float, float]:
    """Standard deviation of at least 5 logarithms and its interval, as shares; raises ValueError.

    By Bonett's method (Comput. Stat. Data Anal. 50, 2006), which takes the fourth moment into
    account. From 8 values on it contains the true deviation in 95 % of cases for a normal
    distribution, in 88 to 99 % for skewed, heavy-tailed and bimodal ones, for which chi-square
    limits fall to 72 %.
    """
    n = len(logs)
    if n < 5:
        raise ValueError(f"{n} values have no interval of their deviation")
    deviation = statistics.stdev(logs)
    if not deviation:
        return 0.0, 0.0, 0.0
    cut = int(n / (2 * math.sqrt(n - 4)))
    middle = statistics.fmean(sorted(logs)[cut : n - cut])
    # In units of the deviation, whose square alone can vanish.
    fourth = n * sum(((value - middle) / deviation) ** 4 for value in logs) / (n - 1) ** 2
    z = statistics.NormalDist().inv_cdf(1 - FALSE_RATE / 2)
    scale = n / (n - z)
    error = scale * math.sqrt((fourth - (n - 3) / n) / (n - 1))
    centre = math.log(scale) + 2 * math.log(deviation)
    low, high = (math.exp((centre + sign * z * error) / 2) for sign in (-1, 1))
    return math.expm1(deviation), math.expm1(low), math.expm1(high)


def _between(spread: tuple[float, float, float], rounds: int) -> NoiseSource:
    share, low, high = spread
    return NoiseSource(
        name="between processes",
        share=share,
        low=low,
        high=high,
        how=f"standard deviation of the medians of {rounds} processes, with its "
        "95 % interval (Bonett 2006)",
    )


def _inside(width: float, rounds: int) -> NoiseSource:
    name = "inside a process"
    if not rounds:
        return NoiseSource(name=name, how="no process had enough steps for an interval")
    # A median of independent steps has this standard deviation from process to process.
    alone = width / statistics.NormalDist().inv_cdf(0.975)
    return NoiseSource(
        name=name,
        share=width,
        how="middle of the half-widths of the 95 % intervals inside the processes; this alone "
        f"makes processes differ by a standard deviation of about {percent(alone, 2)} at most",
    )


def _largest(logs: Sequence[float], drift: NoiseSource) -> float:
    if drift.low is not None and drift.high is not None:
        return max(abs(drift.low), abs(drift.high))
    half = len(logs) // 2
    return math.expm1(max(abs(after - before) for before in logs[:half] for after in logs[half:]))


def _order(rows: Sequence[Observed]) -> NoiseSource:
    firsts, seconds = (
        [row.log_ms for row in rows if (row.round.position or 0) % 2 == place] for place in (0, 1)
    )
    return _split_source("order", firsts, seconds, "the second process of a pair against the first")


def _clock(rows: Sequence[Observed]) -> NoiseSource:
    on_gpu = any(row.round.sm_clock_mhz is not None for row in rows)
    clocks = [row.round.sm_clock_mhz if on_gpu else row.clock_mhz for row in rows]
    known = [(clock, row.log_ms) for clock, row in zip(clocks, rows, strict=True) if clock]
    if not known:
        where = "the kernel reports no CPU clock, as is usual in a virtual machine"
        return NoiseSource(name="clock", how=f"not measured: {where}")
    low, high = min(known)[0], max(known)[0]
    seen = f"{low:.0f} to {high:.0f} MHz"
    if high - low < _MIN_CLOCK_RANGE * high:
        return NoiseSource(name="clock", how=f"it did not vary: {seen}")
    return _split_by("clock", known, f"rounds with a high clock against a low one ({seen})")


def _neighbours(rows: Sequence[Observed]) -> NoiseSource:
    measured = [row for row in rows if row.round.outcome == "finished" and row.round.median_ms]
    shared = [row.log_ms for row in measured if row.round.tenants]
    alone = [row.log_ms for row in measured if not row.round.tenants]
    if shared and alone:
        what = "rounds with other processes on the device against those without"
        return _split_source("neighbours", alone, shared, what)
    known = [(load, row.log_ms) for row in measured if (load := others_load(row.round)) is not None]
    if not known:
        return NoiseSource(name="neighbours", how="not measured: the rounds were too short")
    low, high = min(known)[0], max(known)[0]
    seen = f"{percent(low, 0)} to {percent(high, 0)} of all cores"
    if high - low < _MIN_LOAD_RANGE:
        return NoiseSource(name="neighbours", how=f"their load did not vary: {seen}")
    what = f"rounds with much load by other processes against little ({seen})"
    return _split_by("neighbours", known, what)


def _first_touch(rows: Sequence[Observed]) -> NoiseSource:
    name = "first touch"
    firsts = [
        first / median
        for row in rows
        if (first := row.round.first_step_ms) and (median := row.round.median_ms)
    ]
    times = f"{statistics.median(firsts):.1f} times a steady one" if firsts else "not measured"
    excluded = f"the first step takes {times}, and warm-up keeps it out of the figures"
    changes = sorted(
        change for row in rows if (change := _warming(row.round.samples_ms)) is not None
    )
    # The sign test: its rarest outcome must be rarer than the false rate.
    if not changes or 2 * 0.5 ** len(changes) > TEST_RATE:
        few = "no rounds have" if not changes else f"only {counted(len(changes), 'round')} with"
        return NoiseSource(
            name=name, how=f"{excluded}; what is left of it: not tested, {few} 8 steps"
        )
    rank = interval_rank(len(changes), 1 - TEST_RATE)
    what = f"the first quarter of the measured steps against the rest; {excluded}"
    return _source(name, statistics.median(changes), changes[rank], changes[-1 - rank], what)


def _warming(samples_ms: Sequence[float]) -> float | None:
    first = len(samples_ms) // _WARM_SHARE
    if first < 2:
        return None
    before, after = statistics.median(samples_ms[:first]), statistics.median(samples_ms[first:])
    return math.log(before / after) if before > 0 and after > 0 else None


def _granularity(median_ms: float, tick_ns: float | None) -> NoiseSource:
    host = f"the host's clock advances by {tick_ns:.0f} ns" if tick_ns is not None else ""
    ns = _EVENT_TICK_NS if tick_ns is None else tick_ns
    return NoiseSource(
        name="clock granularity",
        share=ns / 1e6 / median_ms if median_ms else None,
        how=f"{host or 'CUDA events resolve 0.5 µs'}, against the step",
    )


def _split_by(name: str, known: Sequence[tuple[float, float]], what: str) -> NoiseSource:
    """Split rounds at the middle of a condition; equal rounds stay together."""
    ordered = sorted(known)
    cuts = [n for n in range(1, len(ordered)) if ordered[n - 1][0] < ordered[n][0]]
    cut = min(cuts, key=lambda n: abs(2 * n - len(ordered)))
    logs = [log for _, log in ordered]
    return _split_source(name, logs[:cut], logs[cut:], what)


def _split_source(
    name: str, before: Sequence[float], after: Sequence[float], what: str
) -> NoiseSource:
    """The change between two groups of rounds: Hodges-Lehmann, with the test's interval."""
    if not before or not after:
        return NoiseSource(name=name, how=f"not tested: one group only of {what}")
    differences = sorted(b - a for a in before for b in after)
    middle = statistics.median(differences)
    bound = rank_bound(len(before), len(after), TEST_RATE)
    sizes = f"{len(after)} and {len(before)} rounds"
    if bound is None:
        how = f"{what}: {sizes} are too few to test"
        return NoiseSource(name=name, share=math.expm1(middle), how=how)
    low, high = differences[bound], differences[-1 - bound]
    return _source(name, middle, low, high, f"{what}, {sizes}")


def _source(name: str, middle: float, low: float, high: float, what: str) -> NoiseSource:
    return NoiseSource(
        name=name,
        share=math.expm1(middle),
        low=math.expm1(low),
        high=math.expm1(high),
        found=low > 0 or high < 0,
        how=what,
    )
