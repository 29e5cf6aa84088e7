"""A verdict in words and as a picture: made here for every command, screen and export."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sysbench.core.compare.verdict import Verdict
from sysbench.core.formatting import percent, signed_percent

NOT_TESTED = "one process each: not tested"
GLYPHS = {
    "faster": "▼",
    "slower": "▲",
    "same": "=",
    "not decidable": "?",
    "not the same computation": "≠",
}
CELLS = 41
_MIN_REACH = 2.0
"""Ends of the axis in smallest differences that matter, where the interval is narrower."""
_WHOLE_PERCENT_FROM = 1.0
"""Share from which on the ends of an interval have no decimals."""
_AXIS, _INSIDE, _LOW, _HIGH, _CHANGE, _ZERO, _SMALLEST = "┄─┤├●│┊"


@dataclass(frozen=True, slots=True)
class VerdictText:
    """A verdict as text.

    Attributes:
        glyph: Its sign in one character.
        headline: A sentence on B with the change and its interval.
        reasons: The evidence, then the next step; without those that do not apply.
        picture: The interval on an axis; empty without a change.
    """

    glyph: str
    headline: str
    reasons: tuple[str, ...]
    picture: str


def describe_verdict(verdict: Verdict, subject: str = "B") -> VerdictText:
    """Describe a verdict on B, or on what the user calls it."""
    # Without a change the headline has the evidence already.
    why = "" if verdict.change is None else verdict.why
    return VerdictText(
        glyph=GLYPHS[verdict.verdict],
        headline=headline(verdict, subject),
        reasons=tuple(filter(None, (why, verdict.next))),
        picture=interval_line(verdict),
    )


def headline(verdict: Verdict, subject: str = "") -> str:
    """``slower: +4.1 % (95 % CI +3.2 to +5.0 %)``; with a subject a sentence on it."""
    if verdict.change is None:
        return f"{'No' if subject else 'no'} verdict: {verdict.why}"
    word: str = verdict.verdict
    if word == "same":
        word = f"{'the ' if subject else ''}same within {percent(verdict.smallest)}"
    elif word == "not decidable":
        word = "inconclusive"
    if subject:
        found = verdict.differs or verdict.verdict == "same"
        word = f"{subject} is {word}" if found else word.capitalize()
    return f"{word}: {signed_percent(verdict.change)} ({_interval(verdict)})"


def _interval(verdict: Verdict) -> str:
    if verdict.low is None or verdict.high is None:
        return "95 % CI unknown"
    digits = 0 if max(abs(verdict.low), abs(verdict.high)) >= _WHOLE_PERCENT_FROM else 1
    low, high = (signed_percent(end, digits) for end in (verdict.low, verdict.high))
    return f"95 % CI {low.removesuffix(' %')} to {high}"


def tested_words(verdict: Verdict) -> str:
    """The headline with the rounds behind it; that one process a side was not tested."""
    if verdict.verdict == "not the same computation":
        return headline(verdict)
    if verdict.basis == "none":
        return NOT_TESTED
    if verdict.basis == "known spread":
        return f"{headline(verdict)}; 1 run each, by the variation of earlier runs"
    return f"{headline(verdict)}; {verdict.rounds_a} and {verdict.rounds_b} rounds"


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
    reach = _round_up(max(_MIN_REACH * verdict.smallest, *map(abs, known)))
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


def _round_up(share: float) -> float:
    """The next 1, 2 or 5 times a power of ten at or above a share."""
    power = 10.0 ** math.floor(math.log10(share))
    return next((n * power for n in (1, 2, 5) if share <= n * power * (1 + 1e-9)), 10 * power)
