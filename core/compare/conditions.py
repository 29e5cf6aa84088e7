"""Conditions of the rounds behind a verdict: order, drift, clocks, other processes; disturbances.

Order and drift have a 95 % interval each: of ten reports on a machine with neither, about one shows
one of them.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from sysbench.core.compare.compared_records import duet_pairs, pair_difference
from sysbench.core.compare.interval import separate
from sysbench.core.compare.power import ROUNDS_A_BLOCK
from sysbench.core.compare.statistics import median_interval
from sysbench.core.formatting import counted, percent, signed_percent
from sysbench.core.record.timing import Round
from sysbench.core.trace.module_tree import group_by

NO_DATA = "not enough data"
NOTABLE_LOAD = 0.1
"""Share of all cores from which the load of other processes deserves attention."""
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


def conditions_of(
    a: Sequence[Round], b: Sequence[Round], *, on_gpu: bool = True
) -> list[Condition]:
    counting = [row for row in (*a, *b) if row.counts and row.block is not None]
    counting.sort(key=lambda row: (row.block or 0, row.position or 0))
    blocks = group_by((row for row in counting if not row.duet), lambda row: row.block)
    whole = [rows for rows in blocks.values() if len(rows) == ROUNDS_A_BLOCK]
    if whole or not any(row.duet for row in counting):
        order, drift = _order(whole), _drift(whole, "block")
    else:
        pairs = duet_pairs(a, b)
        order, drift = _order_of_pairs(pairs), _drift(pairs, "pair")
    return [
        order,
        drift,
        *([*_of_gpu(a, b)] if on_gpu else []),
        _others(a, b),
        _left_out(a, b),
    ]


def _of_gpu(a: Sequence[Round], b: Sequence[Round]) -> Iterator[Condition]:
    yield _sides("SM clock", a, b, lambda row: row.sm_clock_mhz, lambda value: f"{value:.0f} MHz")
    yield _named("throttling", a, b, lambda row: row.clock_reasons, "rounds with a lowered clock")
    yield _named("other GPU processes", a, b, lambda row: row.tenants, "rounds that shared the GPU")


def _others(a: Sequence[Round], b: Sequence[Round]) -> Condition:
    row = _sides("other load", a, b, others_load, lambda value: percent(value, 0))
    loads = [load for each in (*a, *b) if each.counts and (load := others_load(each)) is not None]
    if not loads or statistics.median(loads) < NOTABLE_LOAD:
        return row
    text = f"{row.text}: other programs used the processors"
    return msgspec.structs.replace(row, text=text, warns=True)


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
    middle = math.expm1(statistics.median(changes))
    return _effect("order", middle, ends, what, len(changes), "block")


def _order_of_pairs(pairs: Sequence[tuple[Round, Round]]) -> Condition:
    """The process that took the second turn over the one that began, whatever B's change is.

    Half the difference between the pairs that A and that B began, by Mann and Whitney's test.
    """
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for a, b in pairs:
        ratios[(a.position or 0) < (b.position or 0)].append(math.exp(pair_difference(a, b)))
    if not all(ratios.values()):
        return Condition(name="order", text=NO_DATA)
    found = separate(ratios[False], ratios[True])

    def half(change: float) -> float:
        return math.sqrt(1 + change) - 1

    known = found.low is not None and found.high is not None
    ends = (half(found.low or 0.0), half(found.high or 0.0)) if known else None
    what = "from the first to the second process of a pair"
    return _effect("order", half(found.change), ends, what, len(pairs), "pair")


def _drift(blocks: Sequence[Sequence[Round]], word: str) -> Condition:
    """The later half of the blocks or pairs against the earlier one, by Mann and Whitney's test."""
    levels = [math.exp(statistics.fmean(_log(row) for row in rows)) for rows in blocks]
    half = len(levels) // 2
    if not half:
        return Condition(name="drift", text=NO_DATA)
    later = separate(levels[:half], levels[-half:])
    ends = None if later.low is None or later.high is None else (later.low, later.high)
    what = f"from the first half of the {word}s to the second"
    return _effect("drift", later.change, ends, what, len(levels), word)


def _effect(
    name: str, change: float, ends: tuple[float, float] | None, what: str, count: int, word: str
) -> Condition:
    if ends is None:
        text = f"{signed_percent(change)} {what} ({counted(count, word)}: not tested)"
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


MAX_REPEATS = 2
"""Repeats of one disturbed round; after them the disturbing process counts as part of the machine.
"""
CPU_JUMP = 0.15
"""Share of all cores by which other processes must exceed their usual share.

One busy process is more than that on machines of up to six cores. The shortest measured part with a
known share, 0.4 core-seconds in ticks of 0.01 s, has an error of a third of it.
"""
DEFAULT_ROUNDS = 8
"""Number of previous rounds that define the usual share."""
_LEAST_ROUNDS = 2


def disturbance(row: Round, earlier: Sequence[Round]) -> str:
    """Return the process that disturbed a round, as a sentence part; empty if there is none.

    Usual is the maximum of the last rounds that count: a process that comes and goes all the time
    disturbs all rounds alike, and one that stays counts once its round was repeated often enough. A
    round's time is not used, so that excluding rounds favours no side. ``earlier`` are the rounds
    of both sides before it, those that do not count included.
    """
    usual = sorted((each for each in earlier if each.counts), key=lambda each: each.started_ns)[
        -DEFAULT_ROUNDS:
    ]
    # A pair has two rounds of one load, and what disturbs it hits both sides: it needs more reason.
    least = 3 * _LEAST_ROUNDS if row.duet else _LEAST_ROUNDS
    if len(usual) < least:
        return ""
    present = {name for each in usual for name in each.tenants}
    arrived = [name for name in row.tenants if name not in present]
    if arrived:
        return f"{', '.join(arrived)} came to the device"
    loads = [load for each in usual if (load := others_load(each)) is not None]
    load = others_load(row)
    if load is None or len(loads) < least:
        return ""
    if load <= max(loads) or load <= statistics.median(loads) + CPU_JUMP:
        return ""
    return (
        f"other processes took {percent(load, 0)} of the cores, "
        f"at most {percent(max(loads), 0)} in the rounds before"
    )


def accepted_rounds(rounds: Sequence[Round]) -> list[Round]:
    """Return the disturbed rounds, of all of an experiment, that count because the disturbance
    stayed during their repeats."""
    ordered = sorted(rounds, key=lambda row: row.started_ns)
    return [
        row
        for n, row in enumerate(ordered)
        if row.counts
        and sum(bool(each.disturbed) and place_of(each) == place_of(row) for each in ordered[:n])
        >= MAX_REPEATS
        and disturbance(row, ordered[:n])
    ]


def place_of(row: Round) -> tuple[int | None, int | None]:
    return row.block, row.position
