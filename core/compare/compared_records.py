"""Judge two runs by the best evidence in their records."""

from __future__ import annotations

import itertools
import math
import shlex
import statistics
from collections.abc import Sequence

import msgspec

from sysbench.core.compare.bounds import (
    FIRST_LOOK,
    FIRST_PAIR_LOOK,
    MAX_BLOCKS,
    MAX_DUET_PAIRS,
    least_pairs,
)
from sysbench.core.compare.interval import (
    Interval,
    RoundBlock,
    duet,
    from_known_spread,
    interleaved,
    paired,
    residuals,
    separate,
)
from sysbench.core.compare.power import (
    ROUNDS_A_BLOCK,
    ROUNDS_A_PAIR,
    duet_pairs_needed,
    more_rounds,
    pairs_needed,
)
from sysbench.core.compare.verdict import MIN_EFFECT, NO_TIMES, Verdict, judge
from sysbench.core.formatting import percent, significant
from sysbench.core.record.environment import is_simulated
from sysbench.core.record.record import Record, Timing
from sysbench.core.record.timing import Round
from sysbench.core.spec.choices import precision_named
from sysbench.core.spec.fields import keys_deciding
from sysbench.core.spec.own_model import JOB

NO_ROUND = "no round counts in"
_SIDES_TO_BLOCK = 2  # rounds of one side in an ABBA block
_MIN_LOSS_ERROR = 1e-4
_FREE_OF_LOSS = {
    *keys_deciding("procedure", "conditions"),
    *("precision", "attention", "compile", "step", "optimizer", "clip", "checkpoint"),
} - {"seed"}
"""Keys of a spec that do not change the first step's loss, up to rounding."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's noise, known from outside the two records.

    Attributes:
        a_ms, b_ms: Step medians of all processes of each spec measured here, including these runs.
        floor: Smallest standard deviation between processes on this machine, as a share.
        drift: Change between batches of rounds on this machine, as a share.
    """

    a_ms: tuple[float, ...] = ()
    b_ms: tuple[float, ...] = ()
    floor: float = 0.0
    drift: float = 0.0


NOTHING_KNOWN = Known()


def verdict_of(
    a: Record, b: Record, known: Known = NOTHING_KNOWN, *, smallest: float = MIN_EFFECT
) -> Verdict:
    """Judge the step time of run B against that of run A.

    The evidence is the first available of: rounds interleaved in one experiment, its pairs of
    processes that took turns, rounds paired by the passes of a study, rounds of both runs, and one
    process a side with the spread of earlier processes.
    """
    reasons = _untimed(a), _untimed(b)
    reason = reasons[0] or reasons[1]
    if reason or a.timing is None or b.timing is None:
        pairs = zip((a, b), reasons, strict=True)
        names = " and ".join(record.id for record, text in pairs if text == reason)
        following = "measure again on an idle machine" if reason == NO_ROUND else ""
        why = f"{reason} {names}"
        return Verdict(verdict="not decidable", why=why, next=following, smallest=smallest)
    if a.timing.of_command != b.timing.of_command:
        why = "one has steps, the other the wall time of a whole command"
        return Verdict(verdict="not decidable", why=why, next="", smallest=smallest)
    verdict = _judge(a.timing, b.timing, known, smallest)
    other_work = other_computation(a, b)
    if other_work:
        return msgspec.structs.replace(
            verdict, verdict="not the same computation", why=other_work, next="", more_rounds=None
        )
    if verdict.verdict != "not decidable" or verdict.next or a.spec.get("workload") == JOB:
        return verdict
    command = shlex.join(("sysbench-tui", "ab", a.id, b.id))
    return msgspec.structs.replace(verdict, next=f"`{command}` runs an A/B test")


def _untimed(record: Record) -> str:
    if record.timing is None:
        return "no timing in"
    if is_simulated(record.environment):
        return f"{NO_TIMES}:"
    if not record.timing.step.median_ms > 0:
        return "a step took no time in"
    return "" if counted_ms(record.timing) else NO_ROUND


def _judge(a: Timing, b: Timing, known: Known, smallest: float) -> Verdict:
    if blocks := round_blocks(a.rounds, b.rounds):
        return _judge_blocks(blocks, smallest)
    if differences := duet_differences(a.rounds, b.rounds):
        return _judge_duet(differences, smallest)
    pairs = pairs_of(a.rounds, b.rounds)
    if len(pairs) >= least_pairs():
        return of_pairs(pairs, smallest=smallest)
    rounds_a, rounds_b = counted_ms(a), counted_ms(b)
    if min(len(rounds_a), len(rounds_b)) > 1:
        return judge(separate(rounds_a, rounds_b, drift=known.drift), smallest=smallest)
    interval = from_known_spread(
        a.step.median_ms,
        b.step.median_ms,
        known.a_ms or rounds_a,
        known.b_ms or rounds_b,
        floor=known.floor,
        rounds=(len(rounds_a), len(rounds_b)),
    )
    return judge(interval, smallest=smallest)


def of_pairs(pairs: Sequence[tuple[float, float]], *, smallest: float = MIN_EFFECT) -> Verdict:
    """Judge two specs that the passes of a study measured in turn."""
    a, b = zip(*pairs, strict=True)
    interval = paired(a, b)
    needed = 0
    if interval.spread is not None:
        needed = pairs_needed(interval.spread, smallest)
    more = max(1, needed - len(pairs))
    return judge(interval, smallest=smallest, more_rounds=2 * more)


def _judge_blocks(blocks: Sequence[RoundBlock], smallest: float) -> Verdict:
    if len(blocks) < FIRST_LOOK:
        wait = ROUNDS_A_BLOCK * (FIRST_LOOK - len(blocks))
        return _before_first_look(interleaved(blocks), wait, smallest)
    interval, noise = interleaved(blocks), residuals(blocks)
    needed = more_rounds(blocks, noise, smallest)
    verdict = judge(interval, smallest=smallest, more_rounds=needed)
    if verdict.verdict != "not decidable":
        return verdict
    as_seen = more_rounds(blocks, noise, interval.change)
    return _with_next(verdict, interval, as_seen, ROUNDS_A_BLOCK * MAX_BLOCKS)


def _judge_duet(differences: Sequence[float], smallest: float) -> Verdict:
    interval, done = duet(differences), len(differences)
    if done < FIRST_PAIR_LOOK or interval.spread is None:
        wait = ROUNDS_A_PAIR * (FIRST_PAIR_LOOK - done)
        return _before_first_look(interval, wait, smallest)
    needed, as_seen = (
        None if pairs is None else ROUNDS_A_PAIR * max(1, pairs - done)
        for pairs in (
            duet_pairs_needed(interval.spread, smallest),
            duet_pairs_needed(interval.spread, interval.change),
        )
    )
    verdict = judge(interval, smallest=smallest, more_rounds=needed)
    if verdict.verdict != "not decidable":
        return verdict
    return _with_next(verdict, interval, as_seen, ROUNDS_A_PAIR * MAX_DUET_PAIRS)


def _before_first_look(interval: Interval, wait: int, smallest: float) -> Verdict:
    verdict = judge(interval, smallest=smallest)
    if verdict.verdict != "not decidable":
        return verdict
    return msgspec.structs.replace(verdict, next=f"{wait} more rounds until the first look")


def _with_next(verdict: Verdict, interval: Interval, as_seen: int | None, most: int) -> Verdict:
    """Add what would decide; ``as_seen`` rounds do for the present change, ``most`` are allowed."""
    following = [verdict.next]
    if verdict.more_rounds is None:
        words = percent(verdict.smallest)
        following = [f"not even {most} rounds would decide a {words} difference here"]
    if as_seen is not None and abs(interval.change) > verdict.smallest:
        following.append(f"{as_seen} more would decide the observed one")
    return msgspec.structs.replace(verdict, next="; ".join(following))


def counted_ms(timing: Timing) -> list[float]:
    """Step medians in milliseconds of the processes that count; one for a run without rounds."""
    if not timing.rounds:
        return [timing.step.median_ms]
    return [row.median_ms for row in timing.rounds if row.median_ms and row.counts]


def round_blocks(a: Sequence[Round], b: Sequence[Round]) -> list[RoundBlock]:
    """The complete ABBA blocks of the last experiment that measured both runs, in order.

    Repeated rounds replace disturbed ones; a block that lacks a round is left out.
    """
    last = last_experiment(a, b)
    if not last:
        return []
    times_a, times_b = (_by_block(rows, last) for rows in (a, b))
    return [
        RoundBlock((times_a[n][0], times_a[n][1]), (times_b[n][0], times_b[n][1]))
        for n in sorted(times_a.keys() & times_b.keys())
        if len(times_a[n]) == len(times_b[n]) == _SIDES_TO_BLOCK
    ]


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The change after a block or pair, and ``alone`` that in it alone, as a share."""

    interval: Interval
    alone: float


def looks_of(a: Sequence[Round], b: Sequence[Round]) -> list[Look]:
    """The looks of the last experiment that measured both runs, in order."""
    if blocks := round_blocks(a, b):
        changes = [math.log(math.prod(block.b) / math.prod(block.a)) / 2 for block in blocks]
        intervals = [interleaved(blocks[: n + 1]) for n in range(len(blocks))]
    else:
        changes = duet_differences(a, b)
        intervals = [duet(changes[: n + 1]) for n in range(len(changes))]
    return [
        Look(interval=interval, alone=math.expm1(change))
        for interval, change in zip(intervals, changes, strict=True)
    ]


def duet_pairs(a: Sequence[Round], b: Sequence[Round]) -> list[tuple[Round, Round]]:
    """The complete pairs of the last experiment that measured both runs, A's round first, in order.

    A pair that was repeated counts with its last processes.
    """
    last = last_experiment(a, b)
    by_pair_a, by_pair_b = (
        {
            row.block: row
            for row in rows
            if last and row.experiment == last and row.duet and row.counts and row.median_ms
        }
        for rows in (a, b)
    )
    both = sorted(n for n in by_pair_a.keys() & by_pair_b.keys() if n is not None)
    return [(by_pair_a[n], by_pair_b[n]) for n in both]


def duet_differences(a: Sequence[Round], b: Sequence[Round]) -> list[float]:
    """Logarithm of B's step time over A's in each of `duet_pairs`."""
    return [pair_difference(*pair) for pair in duet_pairs(a, b)]


def pair_difference(a: Round, b: Round) -> float:
    """Logarithm of B's step time over A's: the median over steps of turns that follow each other.

    A change of the machine hits neighbouring turns alike, wherever between the turns it comes. That
    of the two processes' medians would differ if it came in the middle.
    """
    turns_a, turns_b = _turn_logs(a), _turn_logs(b)
    if min(map(len, (turns_a, turns_b))) < _MIN_TURNS:
        return math.log((b.median_ms or math.nan) / (a.median_ms or math.nan))
    is_a_first = (a.position or 0) < (b.position or 0)
    first, second = (turns_a, turns_b) if is_a_first else (turns_b, turns_a)
    neighbours = itertools.chain(
        zip(first, second, strict=False), zip(first[1:], second, strict=False)
    )
    changes = [y - x for before, after in neighbours for x in before for y in after]
    return statistics.median(changes) * (1 if is_a_first else -1)


_MIN_TURNS = 3


def _turn_logs(row: Round) -> list[list[float]]:
    """Logarithms of the steps of each turn; empty if the turns are not those of the steps."""
    ends = list(itertools.accumulate(row.turn_steps))
    if min(row.turn_steps, default=0) < 1 or ends[-1] != len(row.samples_ms):
        return []
    if min(row.samples_ms) <= 0:  # no logarithm
        return []
    return [
        [math.log(ms) for ms in row.samples_ms[end - count : end]]
        for count, end in zip(row.turn_steps, ends, strict=True)
    ]


def pairs_of(a: Sequence[Round], b: Sequence[Round]) -> list[tuple[float, float]]:
    """Step medians of the passes of one study that measured both sides, A's first.

    A study's rounds have its id as their experiment, the pass as their block, and no side.
    """
    times_a, times_b = _by_pass(a), _by_pass(b)
    return [(times_a[n], times_b[n]) for n in sorted(times_a.keys() & times_b.keys())]


def _by_pass(rows: Sequence[Round]) -> dict[tuple[str, int], float]:
    return {
        (row.experiment, row.block): row.median_ms
        for row in rows
        if row.experiment and row.block is not None and not row.side
        if row.counts and row.median_ms
    }


def last_experiment(a: Sequence[Round], b: Sequence[Round]) -> str:
    shared = {row.experiment for row in a} & {row.experiment for row in b} - {""}
    rows = [row for row in a if row.experiment in shared]
    return max(rows, key=lambda row: row.started_ns).experiment if rows else ""


def _by_block(rows: Sequence[Round], experiment: str) -> dict[int, list[float]]:
    blocks: dict[int, list[float]] = {}
    for row in rows:
        in_block = row.experiment == experiment and row.block is not None and not row.duet
        if in_block and row.counts and row.median_ms and row.block is not None:
            blocks.setdefault(row.block, []).append(row.median_ms)
    return blocks


def other_computation(a: Record, b: Record) -> str:
    """Explain how the first losses contradict that both runs compute the same; else empty.

    Losses are compared if all keys that decide them are equal. The tolerance is that of the coarser
    precision: four times its unit roundoff, and at least 1e-4.
    """
    if a.timing is None or b.timing is None:
        return ""
    loss_a, loss_b = a.timing.loss_start, b.timing.loss_start
    if loss_a is None or loss_b is None or (math.isnan(loss_a) and math.isnan(loss_b)):
        return ""
    if any(
        a.spec.get(key) != b.spec.get(key)
        for key in {*a.spec, *b.spec}
        if key not in _FREE_OF_LOSS and not key.startswith("compile_")
    ):
        return ""
    roundoff = max(
        precision_named(str(record.spec.get("precision", "fp32"))).unit_roundoff
        for record in (a, b)
    )
    tolerance = max(_MIN_LOSS_ERROR, 4 * roundoff)
    error = abs(loss_b - loss_a) / max(abs(loss_a), 1e-12)
    if error <= tolerance:
        return ""
    return (
        f"the first step's loss is {significant(loss_a, 6)} in A and {significant(loss_b, 6)} "
        f"in B: {percent(error, 2)} apart, rounding explains only {percent(tolerance, 2)}"
    )
