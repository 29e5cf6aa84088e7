"""The rounds of a run: how one process becomes a round, and rounds one timing block."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from sysbench.core.compare.statistics import spread
from sysbench.core.record.timing import Round, Spread, Timing

LEAST_FOR_INTERVAL = 6
"""Rounds from which on order statistics bound the median with 95 %: 1 - 2 / 2**6 = 97 %."""


def with_times(process: Round, timing: Timing | None) -> Round:
    """The round with the figures of its process's timing block; as it is without one."""
    if timing is None:
        return process
    step = timing.step
    return msgspec.structs.replace(
        process,
        median_ms=step.median_ms,
        ci_low_ms=step.ci_low_ms,
        ci_high_ms=step.ci_high_ms,
        steps=step.n,
        first_step_ms=timing.first_step_ms,
        settled=timing.settled,
        loss_first=timing.loss_first,
        loss_last=timing.loss_last,
        phases={name: phase.median_ms for name, phase in timing.phases.items()},
        samples_ms=timing.samples_ms,
    )


def counting(rounds: Iterable[Round]) -> list[Round]:
    """Rounds that finished and were not disturbed, in their order."""
    return [one for one in rounds if one.counts]


def middle(rounds: Sequence[Round]) -> Round | None:
    """The round that stands for all: of those that count, the one with the middle median, the lower
    of two and the earlier of equals.

    Without any that counts, the last that has a figure, or None.
    """
    able = counting(rounds)
    if able:
        median = statistics.median_low([one.median_ms for one in able if one.median_ms is not None])
        return next(one for one in able if one.median_ms == median)
    timed = [one for one in rounds if one.median_ms is not None]
    return timed[-1] if timed else None


def combined(rounds: Sequence[Round], timings: Mapping[int, Timing]) -> Timing | None:
    """The timing block of a run whose timing pass ran in these rounds; None if none has a figure.

    With two or more that count, ``step`` and each phase are `spread` over the medians of these
    rounds, in the order of measuring. Its interval is the 95 % order-statistic interval from six
    rounds on, and the full range below: five processes have no 95 % interval of their median. With
    one, or none, the block is that of the `middle` round with the rounds listed.

    Args:
        rounds: All rounds, in the order of starting.
        timings: The block that each process reported, by the index of its round.
    """
    standing = middle(rounds)
    if standing is None:
        return None
    block = msgspec.structs.replace(timings[standing.index], rounds=list(rounds))
    able = counting(rounds)
    if len(able) < 2:
        return block
    step = spread(_known(one.median_ms for one in able))
    slower = step.median_ms / block.step.median_ms if block.step.median_ms else 1.0
    shared = [name for name in block.phases if all(name in one.phases for one in able)]
    return msgspec.structs.replace(
        block,
        step=step,
        phases={name: spread([one.phases[name] for one in able]) for name in shared},
        interval_of="rounds",
        steps=spread([ms for one in able for ms in one.samples_ms]),
        tokens_per_second=_divided(block.tokens_per_second, slower),
        tflops=_divided(block.tflops, slower),
    )


def inside(timing: Timing) -> Spread:
    """The steps of one process: the whole of a single one, the middle round's of several."""
    if timing.interval_of == "steps" or not timing.samples_ms:
        return timing.step
    return spread(timing.samples_ms)


def rounds_counted(timing: Timing | None) -> int:
    """Processes that the step time rests on: 1 for a run of one process, 0 without a timing."""
    if timing is None:
        return 0
    return len(counting(timing.rounds)) if timing.rounds else 1


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _divided(rate: float | None, by: float) -> float | None:
    return None if rate is None else rate / by
