"""The interval of a change as one line of text: zero, the smallest difference, both ends."""

from __future__ import annotations

import math

from ...analysis.verdict.verdict import Verdict

CELLS = 41
_LEAST_REACH = 2.0
"""Ends of the axis in smallest differences that matter, where the interval is narrower."""
_AXIS, _INSIDE, _LOW, _HIGH, _CHANGE, _ZERO, _SMALLEST = "┄─┤├●│┊"


def interval_line(verdict: Verdict, cells: int = CELLS) -> str:
    """``-2 % ┄┄┊┄┤─│──●──├┄┄ +2 %``; empty without a change.

    The axis is linear, with zero in its middle and a whole number of per cent, or a part of one, at
    its ends. An interval that is not known has no ends.

    Args:
        verdict: With the change, its interval and the smallest difference that matters.
        cells: Width of the axis; odd.
    """
    known = [end for end in (verdict.change, verdict.low, verdict.high) if end is not None]
    if not known:
        return ""
    reach = _rounded_up(max(_LEAST_REACH * verdict.smallest, *map(abs, known)))
    middle = cells // 2

    def place(share: float) -> int:
        return middle + round(share / reach * middle)

    axis = [_AXIS] * cells
    low, high = verdict.low, verdict.high
    if low is not None and high is not None:
        axis[place(low) : place(high) + 1] = [_INSIDE] * (place(high) + 1 - place(low))
    axis[place(-verdict.smallest)] = axis[place(verdict.smallest)] = _SMALLEST
    axis[middle] = _ZERO
    if low is not None and high is not None:
        axis[place(low)], axis[place(high)] = _LOW, _HIGH
    if verdict.change is not None:
        axis[place(verdict.change)] = _CHANGE
    return f"-{100 * reach:g} % {''.join(axis)} +{100 * reach:g} %"


def _rounded_up(share: float) -> float:
    """The next 1, 2 or 5 times a power of ten at or above a share."""
    power = 10.0 ** math.floor(math.log10(share))
    return next((n * power for n in (1, 2, 5) if share <= n * power * (1 + 1e-9)), 10 * power)
