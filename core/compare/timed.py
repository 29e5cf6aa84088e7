"""The timing block of one process, from the times that its clock read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from sysbench.core.compare.statistics import settled, spread
from sysbench.core.predict.closed_form import predict
from sysbench.core.record.events import StepsTimed
from sysbench.core.record.timing import Timing
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
    """The block of these steps, without losses and MFU.

    Args:
        spec: The spec that was timed, on one device.
        clock: The clock that timed the steps.
        warmup_ms: Each warm-up step, the first step included.
        batches: One or more batches of measured steps, in their order.
        reason: The words for why no more steps followed.
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
    """The block of a process that was stopped on request while it measured.

    It is not settled, whatever its interval: no rule of the spec ended it. None before the first
    step, and of several ranks, whose slowest is known only when all have ended.
    """
    if not batches or spec.ranks > 1:
        return None
    on_events = spec.on_cuda and spec.sync != "every-step"
    count = sum(len(batch.step_ms) for batch in batches)
    reason = f"stopped on request after {count} of its steps"
    block = timed_block(spec, "cuda-events" if on_events else "host", warmup_ms, batches, reason)
    losses = dict.fromkeys(("loss_start", "loss_first", "loss_last"), _NO_LOSS)
    return msgspec.structs.replace(block, settled=False, missing=block.missing | losses)
