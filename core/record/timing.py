"""Statistics of one series of times: a part of several blocks of the record."""

from __future__ import annotations

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """Statistics of one series of samples, in milliseconds.

    ``ci_low_ms`` and ``ci_high_ms`` are the 95 % order-statistic interval of the median;
    ``mad_ms`` is 1.4826 times the median absolute deviation; ``drift`` is the second half's
    median over the first half's, minus one; ``outliers`` are indices of samples farther than
    five scaled MADs from the median: named, not dropped.
    """

    median_ms: float
    ci_low_ms: float
    ci_high_ms: float
    mad_ms: float
    iqr_ms: float
    mean_ms: float
    std_ms: float
    min_ms: float
    max_ms: float
    p10_ms: float
    p90_ms: float
    n: int
    drift: float
    outliers: list[int] = []

    @property
    def half_width(self) -> float:
        """Half of the median's 95 % interval, as a share of the median."""
        if not self.median_ms:
            return 0.0
        return (self.ci_high_ms - self.ci_low_ms) / 2 / self.median_ms
