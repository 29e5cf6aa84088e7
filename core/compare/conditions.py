"""Conditions of the rounds behind a verdict: order, drift, clocks, other processes.

Order and drift have a 95 % interval each: of ten reports on a machine with neither, about one shows
one of them.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from sysbench.core.compare.interval import separate
from sysbench.core.compare.statistics import median_interval
from sysbench.core.formatting import counted, percent, signed_percent
from sysbench.core.record.timing import Round
from sysbench.core.trace.module_tree import group_by

NO_DATA = "not enough data"
_MIN_BLOCKS = 6  # fewer medians have no 95 % interval


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One condition.

    Attributes:
        name: Such as ``drift``.
        a, b: Figures of the sides, if it is measured per side.
        text: Result, or why there is none.
        warns: Whether it deserves attention. Balanced blocks keep a steady order effect and drift
            out of the change itself.
    """

    name: str
    a: str = ""
    b: str = ""
    text: str
    warns: bool = False


def conditions_of(a: Sequence[Round], b: Sequence[Round]) -> list[Condition]:
    counting = [row for row in (*a, *b) if row.counts and row.block is not None]
    counting.sort(key=lambda row: (row.block or 0, row.position or 0))
    blocks = group_by(counting, lambda row: row.block)
    whole = [rows for rows in blocks.values() if len(rows) == 4]
    return [
        _order(whole),
        _drift(whole),
        _sides("SM clock", a, b, lambda row: row.sm_clock_mhz, lambda value: f"{value:.0f} MHz"),
        _named("throttling", a, b, lambda row: row.clock_reasons, "rounds with a lowered clock"),
        _named("other GPU processes", a, b, lambda row: row.tenants, "rounds that shared the GPU"),
        _sides("other load", a, b, others_load, lambda value: percent(value, 0)),
        _left_out(a, b),
    ]


def _order(blocks: Sequence[Sequence[Round]]) -> Condition:
    """Second rounds of the pairs over first ones; a block has its sides once in either order."""
    changes = [
        statistics.fmean((_log(rows[1]) - _log(rows[0]), _log(rows[3]) - _log(rows[2])))
        for rows in blocks
    ]
    if not changes:
        return Condition(name="order", text=NO_DATA)
    ends = None
    if len(changes) >= _MIN_BLOCKS:
        low, high = median_interval(changes)
        ends = math.expm1(low), math.expm1(high)
    what = "from the first to the second round of a pair"
    return _effect("order", math.expm1(statistics.median(changes)), ends, what, len(changes))


def _drift(blocks: Sequence[Sequence[Round]]) -> Condition:
    """The later half of the blocks against the earlier half, by Mann and Whitney's test."""
    levels = [math.exp(statistics.fmean(_log(row) for row in rows)) for rows in blocks]
    half = len(levels) // 2
    if not half:
        return Condition(name="drift", text=NO_DATA)
    later = separate(levels[:half], levels[-half:])
    ends = None if later.low is None or later.high is None else (later.low, later.high)
    what = "from the first half of the blocks to the second"
    return _effect("drift", later.change, ends, what, len(levels))


def _effect(
    name: str, change: float, ends: tuple[float, float] | None, what: str, blocks: int
) -> Condition:
    if ends is None:
        text = f"{signed_percent(change)} {what} ({counted(blocks, 'block')}: not tested)"
        return Condition(name=name, text=text)
    low, high = ends
    shown = f"{signed_percent(low, 2)} to {signed_percent(high, 2)}"
    text = f"{signed_percent(change, 2)} ({shown}) {what}"
    return Condition(name=name, text=text, warns=low > 0 or high < 0)


def _sides(
    name: str,
    a: Sequence[Round],
    b: Sequence[Round],
    figure: Callable[[Round], float | None],
    shown: Callable[[float], str],
) -> Condition:
    values = [
        [value for row in rows if row.counts and (value := figure(row)) is not None]
        for rows in (a, b)
    ]
    if not all(values):
        return Condition(name=name, text="not measured")
    left, right = (shown(statistics.median(side)) for side in values)
    return Condition(name=name, a=left, b=right, text="median of the rounds")


def others_load(row: Round) -> float | None:
    """Share of all cores used by other processes; None if not measured."""
    if row.cpu_percent is None or row.own_cpu_percent is None:
        return None
    return max(0.0, row.cpu_percent - row.own_cpu_percent) / 100


def _named(
    name: str,
    a: Sequence[Round],
    b: Sequence[Round],
    names: Callable[[Round], Sequence[str]],
    text: str,
) -> Condition:
    sides = [_counts_by_name(map(names, rows)) for rows in (a, b)]
    if not any(sides):
        return Condition(name=name, text="none")
    return Condition(name=name, a=sides[0], b=sides[1], text=text, warns=sides[0] != sides[1])


def _counts_by_name(names_by_round: Iterable[Sequence[str]]) -> str:
    """``power cap 3, thermal 1``."""
    counts = Counter(name for names in names_by_round for name in names)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _left_out(a: Sequence[Round], b: Sequence[Round]) -> Condition:
    reasons = [row.disturbed or row.outcome for row in (*a, *b) if not row.counts]
    if not reasons:
        return Condition(name="excluded runs", text="none")
    left = [str(sum(not row.counts for row in rows)) for rows in (a, b)]
    text = "; ".join(dict.fromkeys(reasons))
    return Condition(name="excluded runs", a=left[0], b=left[1], text=text)


def _log(row: Round) -> float:
    return math.log(row.median_ms or math.nan)
