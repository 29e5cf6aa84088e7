"""The verdict on two step times: the only place that calls one of them faster."""

from __future__ import annotations

from typing import Literal

import msgspec

from sysbench.core.compare.interval import Interval
from sysbench.core.formatting import percent

Word = Literal["faster", "slower", "same", "not decidable", "not the same computation"]
"""B against A. ``same`` means within the smallest difference that matters."""

SMALLEST = 0.01
"""Smallest difference of two step times that matters unless the user names another."""


NO_TIMES = "times of a null GPU mean nothing"
"""The reason of a verdict on times of a simulated device."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """B's step time judged against A's.

    Attributes:
        verdict: The word.
        why: Evidence behind it.
        next: What would decide it; empty for a verdict that stands.
        change: B's time over A's, minus one; null where one of them has none.
        low: Lower end of its interval, which misses the true change in at most 5 % of
            comparisons; null where the evidence is too thin for one.
        high: Upper end of the interval.
        smallest: Smallest difference that matters, as a share.
        basis: Kind of evidence, see `sysbench.core.compare.interval.Basis`.
        rounds_a: Processes of A that count.
        rounds_b: Processes of B that count.
        spread: Standard deviation between processes, as a share; null where not known.
        more_rounds: Rounds of both sides together that would decide; null where not known.
    """

    verdict: Word
    why: str
    next: str = ""
    change: float | None = None
    low: float | None = None
    high: float | None = None
    smallest: float = SMALLEST
    basis: str = "none"
    rounds_a: int = 0
    rounds_b: int = 0
    spread: float | None = None
    more_rounds: int | None = None

    @property
    def differs(self) -> bool:
        """Whether one side is faster, by the evidence."""
        return self.verdict in ("faster", "slower")


def judge(
    interval: Interval, *, smallest: float = SMALLEST, more_rounds: int | None = None
) -> Verdict:
    """The verdict on a change with its interval.

    A difference whose interval lies wholly on one side of zero and wholly within ``smallest``
    is ``same``: it is there, and too small to matter.

    Args:
        interval: The change from A to B.
        smallest: Smallest difference that matters, as a share.
        more_rounds: Rounds that would decide a difference of that size, where it is known.
    """
    word, reason = _word(interval, smallest)
    following = ""
    if word == "not decidable" and more_rounds is not None:
        following = f"{more_rounds} more rounds would decide a {percent(smallest)} difference"
    return Verdict(
        verdict=word,
        why=f"{reason}: {interval.source}",
        next=following,
        change=interval.change,
        low=interval.low,
        high=interval.high,
        smallest=smallest,
        basis=interval.basis,
        rounds_a=interval.rounds_a,
        rounds_b=interval.rounds_b,
        spread=interval.spread,
        more_rounds=more_rounds if word == "not decidable" else None,
    )


def _word(interval: Interval, smallest: float) -> tuple[Word, str]:
    low, high = interval.low, interval.high
    if low is None or high is None:
        if interval.basis == "none":
            return "not decidable", "variation between runs unknown"
        return "not decidable", "too few runs for an interval"
    if -smallest <= low and high <= smallest:
        return "same", f"the interval is within ±{percent(smallest)}"
    if low > 0:
        return "slower", "significant"
    if high < 0:
        return "faster", "significant"
    return "not decidable", "the interval includes 0"
