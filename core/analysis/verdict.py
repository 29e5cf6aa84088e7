"""The verdict on two step times, used by every comparison of two runs."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from ..formatting import percent

Verdict = Literal["FASTER", "SLOWER", "SAME", "AMBIGUOUS"]

SAME_WITHIN = 0.02
"""Two medians are the same if the interval of their quotient is within this share of one."""


class MedianTime(Protocol):
    """A median in milliseconds with the ends of its 95 % interval, such as a `Spread`."""

    @property
    def median_ms(self) -> float: ...
    @property
    def ci_low_ms(self) -> float: ...
    @property
    def ci_high_ms(self) -> float: ...


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """Step time B judged against step time A.

    Attributes:
        why: The reason, from the two intervals.
        change: B's median over A's, minus one.
        low: The lowest change by the 95 % intervals: B's lower over A's upper end …
        high: … and the highest, B's upper over A's lower. The difference between two processes
            of the same spec is not in these intervals.
    """

    verdict: Verdict
    why: str
    change: float
    low: float
    high: float


def step_change(a: MedianTime, b: MedianTime) -> StepChange:
    """Judge B against A; both medians and A's interval must be above zero."""
    low, high = b.ci_low_ms / a.ci_high_ms - 1, b.ci_high_ms / a.ci_low_ms - 1
    verdict, why = _verdict(low, high)
    return StepChange(
        verdict=verdict, why=why, change=b.median_ms / a.median_ms - 1, low=low, high=high
    )


def _verdict(low: float, high: float) -> tuple[Verdict, str]:
    if low > 0:
        return "SLOWER", "the 95 % intervals of the medians do not overlap"
    if high < 0:
        return "FASTER", "the 95 % intervals of the medians do not overlap"
    if low >= -SAME_WITHIN and high <= SAME_WITHIN:
        return "SAME", f"the 95 % intervals overlap and are within {percent(SAME_WITHIN, 0)}"
    return "AMBIGUOUS", "the 95 % intervals overlap, and are too wide to call it the same"
