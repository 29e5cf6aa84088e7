"""The verdict on two step times: the only module that calls one of them faster."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import msgspec

from sysbench.core.compare.interval import Interval, runs_words
from sysbench.core.formatting import percent, signed_percent

Word = Literal["faster", "slower", "same", "not decidable", "not the same computation"]
"""B against A. ``same`` means within the smallest difference that matters."""

MIN_EFFECT = 0.01
"""Default for the smallest difference of two step times that matters."""


NO_TIMES = "times of a simulated GPU are not meaningful"
"""The reason of a verdict on times of a simulated device."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """B's step time judged against A's.

    Attributes:
        why: Evidence behind it.
        next: What would decide it; empty for a decided verdict.
        change: B's time over A's, minus one; null if one of them is missing.
        low, high: Ends of its interval, which misses the true change in at most 5 % of comparisons;
            null if the evidence is insufficient.
        smallest: Smallest difference that matters, as a share.
        basis: Kind of evidence, see `sysbench.core.compare.interval.Basis`.
        rounds_a, rounds_b: Processes of each side that count.
        spread: Standard deviation between processes, as a share; null if unknown.
        more_rounds: Rounds of both sides together that would decide; null if unknown.
    """

    verdict: Word
    why: str
    next: str = ""
    change: float | None = None
    low: float | None = None
    high: float | None = None
    smallest: float = MIN_EFFECT
    basis: str = "none"
    rounds_a: int = 0
    rounds_b: int = 0
    spread: float | None = None
    more_rounds: int | None = None

    @property
    def differs(self) -> bool:
        return self.verdict in ("faster", "slower")


def judge(
    interval: Interval, *, smallest: float = MIN_EFFECT, more_rounds: int | None = None
) -> Verdict:
    """Judge a change by its interval.

    A difference whose interval lies wholly on one side of zero and wholly within ``smallest`` is
    ``same``: it exists, but is too small to matter. ``more_rounds`` would decide one of that size.
    """
    word, reason = _word(interval, smallest)
    facts, following = msgspec.structs.asdict(interval), ""
    if word == "not decidable" and more_rounds is not None:
        following = f"{more_rounds} more rounds would decide a {percent(smallest)} difference"
    return Verdict(
        verdict=word,
        why=f"{reason}: {facts.pop('source')}",
        next=following,
        smallest=smallest,
        more_rounds=more_rounds if word == "not decidable" else None,
        **facts,
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


NOT_TESTED = "1 run each: not tested"
GLYPHS = {
    "faster": "▼",
    "slower": "▲",
    "same": "=",
    "not decidable": "?",
    "not the same computation": "≠",
}
CELLS = 41
_MIN_REACH = 2.0
"""Ends of the axis in smallest differences that matter, if the interval is narrower."""
_WHOLE_PERCENT_FROM = 1.0
"""Share from which the ends of an interval are shown without decimals."""
_AXIS, _INSIDE, _LOW, _HIGH, _CHANGE, _ZERO, _SMALLEST = "┄─┤├●│┊"


@dataclass(frozen=True, slots=True)
class VerdictText:
    """A verdict as text; the picture is the interval on an axis, empty without a change."""

    glyph: str
    headline: str
    reasons: tuple[str, ...]
    picture: str


def describe_verdict(verdict: Verdict, subject: str = "B") -> VerdictText:
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
    """The headline with its number of rounds, or a note that one process a side is no test."""
    if verdict.verdict == "not the same computation":
        return headline(verdict)
    runs = runs_words(verdict.rounds_a, verdict.rounds_b)
    if verdict.basis == "none":
        return f"{runs}: not tested"
    if verdict.basis == "known spread":
        return f"{headline(verdict)}; {runs}, by the variation of earlier runs"
    return f"{headline(verdict)}; {verdict.rounds_a} and {verdict.rounds_b} rounds"


def interval_line(verdict: Verdict, cells: int = CELLS) -> str:
    """``-2 % ┄┄┊┄┤─│──●──├┄┄ +2 %``; empty without a change.

    The axis is linear, with zero in its middle and a whole number of per cent, or a part of one, at
    its ends. An unknown interval has no ends. ``cells`` is odd.
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
