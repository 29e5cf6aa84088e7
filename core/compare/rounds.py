"""Convert processes to rounds, and combine rounds into one timing block."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from sysbench.core.compare.statistics import settled, spread
from sysbench.core.predict.closed_form import predict
from sysbench.core.record.events import StepsTimed
from sysbench.core.record.timing import Round, Spread, Timing, with_step
from sysbench.core.spec.spec import RunSpec

_NO_FORM = "there is no closed form of this model: `estimate` counts the products of its step"
_NO_LOSS = "the process was ended before it reported one"


def timed_block(
    spec: RunSpec,
    clock: Literal["cuda-events", "host"],
    warmup_ms: Sequence[float],
    batches: Sequence[StepsTimed],
    reason: str,
) -> Timing:
    """Build the timing block of steps on one device, without losses and MFU.

    The warm-up includes the first step; ``reason`` says why measuring stopped.
    """
    samples = [ms for batch in batches for ms in batch.step_ms]
    names = list(batches[0].phases_ms)
    phases = {name: [ms for batch in batches for ms in batch.phases_ms[name]] for name in names}
    issue = [ms for batch in batches for ms in batch.issue_ms]
    walls = [batch.wall_ms for batch in batches if batch.wall_ms is not None]
    step = spread(samples)
    flops = predict(spec).step_flops
    missing = {"mfu": "follows from the device's peak, in the record"}
    missing["throttled"] = "its counters were not read" if spec.on_cuda else "a CPU has no counters"
    if spec.is_own:
        missing |= dict.fromkeys(("mfu", "model_flops", "tflops"), _NO_FORM)
    if not spec.tokens_per_step:
        missing["tokens_per_second"] = "the model takes no batch or no context"
    if not issue:
        missing["issue"] = "on the CPU issuing and running are one"
    return Timing(
        clock=clock,
        step=step,
        phases={name: spread(times) for name, times in phases.items()},
        issue=spread(issue) if issue else None,
        wall_ms=sum(walls) / len(samples) if len(walls) == len(batches) else None,
        first_step_ms=(list(warmup_ms) or samples)[0],
        warmup_ms=list(warmup_ms),
        warmup_settled=settled(warmup_ms[1:]),
        samples_ms=samples,
        batch_steps=[len(batch.step_ms) for batch in batches],
        phase_samples_ms=phases,
        stop_reason=reason,
        settled=step.half_width <= spec.until,
        tokens_per_second=spec.tokens_per_step / step.median_ms * 1e3 or None,
        model_flops=None if spec.is_own else flops,
        tflops=None if spec.is_own else flops / step.median_ms * 1e3 / 1e12,
        mfu=None,
        missing=missing,
    )


def partial_block(
    spec: RunSpec, warmup_ms: Sequence[float], batches: Sequence[StepsTimed]
) -> Timing | None:
    """Build the timing block of a process that was stopped on request while it measured.

    It is not settled, whatever its interval: no rule of the spec ended it. None before the first
    step, and for several ranks, whose slowest is known only when all have ended.
    """
    if not batches or spec.ranks > 1:
        return None
    on_events = spec.on_cuda and spec.sync != "every-step"
    count = sum(len(batch.step_ms) for batch in batches)
    reason = f"stopped on request after {count} of its steps"
    block = timed_block(spec, "cuda-events" if on_events else "host", warmup_ms, batches, reason)
    losses = dict.fromkeys(("loss_start", "loss_first", "loss_last"), _NO_LOSS)
    return msgspec.structs.replace(block, settled=False, missing=block.missing | losses)


MIN_FOR_INTERVAL = 6
"""Minimum rounds for order statistics to bound the median with 95 %: 1 - 2 / 2**6 = 97 %."""


def with_times(process: Round, timing: Timing | None) -> Round:
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
        turn_steps=timing.batch_steps if process.duet else [],
    )


def counting(rounds: Iterable[Round]) -> list[Round]:
    return [one for one in rounds if one.counts]


def middle(rounds: Sequence[Round]) -> Round | None:
    """The representative round: of those that count, the one with the middle median, the lower of
    two and the earlier of equals.

    If none counts, the last that has a figure, or None.
    """
    able = counting(rounds)
    if able:
        median = statistics.median_low([one.median_ms for one in able if one.median_ms is not None])
        return next(one for one in able if one.median_ms == median)
    timed = [one for one in rounds if one.median_ms is not None]
    return timed[-1] if timed else None


def combined(rounds: Sequence[Round], timings: Mapping[int, Timing]) -> Timing | None:
    """Combine the timing blocks of a run's rounds, by their index; None if none has a figure.

    With two or more that count, ``step`` and each phase are `spread` over the medians of these
    rounds, in the order of measuring. Its interval is the 95 % order-statistic interval from six
    rounds on, and the full range below: five processes have no 95 % interval of their median. With
    one, or none, the block is that of the `middle` round with the rounds listed.
    """
    standing = middle(rounds)
    if standing is None:
        return None
    block = msgspec.structs.replace(timings[standing.index], rounds=list(rounds))
    able = counting(rounds)
    if len(able) < 2:
        return block
    step = spread([one.median_ms for one in able if one.median_ms is not None])
    slower = step.median_ms / block.step.median_ms if block.step.median_ms else 1.0
    tokens_per_second = _divided(block.tokens_per_second, slower)
    shared = [name for name in block.phases if all(name in one.phases for one in able)]
    return msgspec.structs.replace(
        block,
        step=step,
        phases={name: spread([one.phases[name] for one in able]) for name in shared},
        interval_of="rounds",
        steps=spread([ms for one in able for ms in one.samples_ms]),
        tokens_per_second=tokens_per_second,
        decode=with_step(block.decode, step, tokens_per_second),
        tflops=_divided(block.tflops, slower),
    )


def inside(timing: Timing) -> Spread:
    if timing.interval_of == "steps" or not timing.samples_ms:
        return timing.step
    return spread(timing.samples_ms)


def rounds_counted(timing: Timing | None) -> int:
    """Processes that the step time rests on: 1 for a run of one process, 0 without a timing."""
    if timing is None:
        return 0
    return len(counting(timing.rounds)) if timing.rounds else 1


def _divided(rate: float | None, by: float) -> float | None:
    return None if rate is None else rate / by
