"""The timing pass: durations of steps without a profiler."""

from __future__ import annotations

import gc
import math
import statistics
import time
from contextlib import suppress
from typing import Literal, Protocol

import msgspec
import torch
from torch import nn

from sysbench.core.compare.rounds import timed_block
from sysbench.core.compare.statistics import half_width, settled, stop_reason
from sysbench.core.machine.children import private_pipe
from sysbench.core.machine.nvml import ThrottleTime, read_throttle_time, throttle_shares
from sysbench.core.record.events import (
    FirstStepTimed,
    ResultReported,
    StageEntered,
    StepsTimed,
    WarmupSettled,
    WarmupStepTimed,
)
from sysbench.core.record.record import Timing
from sysbench.core.record.timing import AUTO_WARMUP, Decode, with_step
from sysbench.core.runs.worker_process import FIRST_TURN, Job, Report
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.compile.apply import describe_compilation
from sysbench.core.worker.compile.warm import with_warm_seconds
from sysbench.core.worker.step_clock import MAX_BATCH_STEPS, Clock, clock_for
from sysbench.core.worker.workloads.make_workload import make_workload
from sysbench.core.worker.workloads.model_workload import report_own_model
from sysbench.core.worker.workloads.sdpa import report_sdpa_kernel
from sysbench.core.worker.workloads.stepped_workload import EnterPhase, SteppedWorkload, bytes_of

BATCH_SECONDS = 0.25
PAIR_TURNS = 5
"""Turns of each process of a pair, of `BATCH_SECONDS` each; docs/decisions/0015 has the reasons."""


class Steppable(Protocol):
    """Workload to time: steps of a spec, as a `SteppedWorkload` runs them."""

    spec: RunSpec

    def step(self, enter: EnterPhase) -> None: ...

    def loss_value(self) -> float | None: ...


def measure(job: Job, report: Report) -> None:
    """Build, warm up, time steps until the median is known; reports the timing block."""
    spec = job.spec
    report(StageEntered(stage="build"))
    workload = make_workload(spec)
    report_own_model(workload, report)
    clock = clock_for(workload.device, every_step=spec.sync == "every-step")
    timing = time_steps(workload, clock, report, Turns(job.turns))
    timing = with_cache(timing, workload)
    report_own_model(workload, report)  # its first step has named its loss
    report(ResultReported(block="timing", data=msgspec.to_builtins(timing)))
    if spec.compile == "off":
        report_sdpa_kernel(workload, report)
        return
    compilation = describe_compilation(spec, timing.first_step_ms)
    report(ResultReported(block="compile", data=msgspec.to_builtins(compilation)))
    report_sdpa_kernel(workload, report)
    if spec.compile_cache == "cold" and spec.compile_backend == "inductor":
        del workload, clock
        report(StageEntered(stage="compile"))
        compilation = with_warm_seconds(job, compilation)
        report(ResultReported(block="compile", data=msgspec.to_builtins(compilation)))


def with_cache(timing: Timing, workload: SteppedWorkload) -> Timing:
    """Add the serving figures of a step that has a cache."""
    spec, cache = workload.spec, workload.cache
    if cache is None:
        return timing
    tables = {id(one.weight) for one in workload.model.modules() if isinstance(one, nn.Embedding)}
    others = {
        id(one.weight) for one in workload.model.modules() if isinstance(one, nn.Linear)
    }  # a head can share the table
    decode = Decode(
        cache=cache.words,
        cache_bytes=workload.cached_bytes,
        weight_bytes=bytes_of(
            one for one in workload.model.parameters() if id(one) not in tables - others
        ),
        bytes_per_token=cache.bytes_per_token,
        prefill_ms=timing.step.median_ms if spec.step == "prefill" else None,
    )
    served = with_step(decode, timing.step, timing.tokens_per_second)
    return msgspec.structs.replace(timing, decode=served)


def time_steps(
    workload: Steppable, clock: Clock, report: Report, turns: Turns | None = None
) -> Timing:
    """Warm up, then time steps until the spec's stop rule holds, or all turns of a pair were taken.

    Args:
        turns: With a partner, the warm-up is the first turn, and each batch of steps another.
    """
    turns = turns or Turns()
    turns.take()
    warmup_ms, loss_start = _warm_up(workload, clock, report)
    loss_first = workload.loss_value()
    turns.give_way()
    report(StageEntered(stage="measure"))
    # Nothing built so far becomes garbage: frozen, it does not lengthen later collections.
    gc.collect()
    gc.freeze()
    before = _throttle_time(workload.spec)
    batches, reason = _measure_steps(workload, clock, report, turns, warmup_ms)
    after = _throttle_time(workload.spec)
    name: Literal["cuda-events", "host"] = "cuda-events" if clock.name == "cuda-events" else "host"
    timing = timed_block(workload.spec, name, warmup_ms, batches, reason)
    losses = {
        "loss_start": loss_start,
        "loss_first": loss_first,
        "loss_last": workload.loss_value(),
    }
    return _with_throttling(msgspec.structs.replace(timing, **losses), before, after)


def _throttle_time(spec: RunSpec) -> ThrottleTime | None:
    """The driver's counters of the GPU that is measured; None on the CPU."""
    if not spec.on_cuda:
        return None
    properties = torch.cuda.get_device_properties(torch.device(spec.device))
    return read_throttle_time(f"GPU-{properties.uuid}")


def _with_throttling(
    timing: Timing, before: ThrottleTime | None, after: ThrottleTime | None
) -> Timing:
    if before is None or after is None:
        return timing
    shares, why = throttle_shares(before, after)
    missing = {name: text for name, text in timing.missing.items() if name != "throttled"}
    if shares is None:
        missing["throttled"] = why
    return msgspec.structs.replace(timing, throttled=shares, missing=missing)


def _warm_up(workload: Steppable, clock: Clock, report: Report) -> tuple[list[float], float | None]:
    """Run single synchronised steps until they agree, or as many as the spec asks for.

    Returns their milliseconds, and the loss of the first one.
    """
    wanted = workload.spec.warmup
    times: list[float] = []
    loss_start = None
    compiles = workload.spec.compiles
    report(StageEntered(stage="compile" if compiles else "warmup"))
    while not _warm_enough(wanted, times):
        times.append(clock.time(workload.step, 1).wall_ms)
        if len(times) == 1:
            loss_start = workload.loss_value()
            report(FirstStepTimed(step_ms=times[0]))
            if compiles:
                report(StageEntered(stage="warmup"))
        report(WarmupStepTimed(index=len(times) - 1, step_ms=times[-1]))
    report(WarmupSettled(steps=len(times), settled=settled(times)))
    return times, loss_start


def _warm_enough(wanted: int | str, times: list[float]) -> bool:
    if isinstance(wanted, int):
        return len(times) >= wanted
    # The first step pays for things once and never counts towards agreement.
    least, most = AUTO_WARMUP
    return len(times) >= most or (len(times) >= least and settled(times[1:]))


def _measure_steps(
    workload: Steppable, clock: Clock, report: Report, turns: Turns, warmup_ms: list[float]
) -> tuple[list[StepsTimed], str]:
    """Batches of steps until the spec's stop rule holds; returns them and the rule's words."""
    spec = workload.spec
    batches: list[StepsTimed] = []
    samples: list[float] = []
    seconds = 0.0
    while True:
        known = samples or (warmup_ms[-1:] if turns.is_pair else [])
        count = _batch_steps(spec, known, len(samples), turns)
        if turns.is_pair and count > 1:
            # Not counted: the caches still hold the partner's data.
            clock.time(workload.step, 1)
        began = time.perf_counter()
        batch = clock.time(workload.step, count)
        seconds += time.perf_counter() - began
        samples += batch.step_ms
        width = half_width(samples)
        batches.append(
            StepsTimed(
                first_index=len(samples) - len(batch.step_ms),
                step_ms=batch.step_ms,
                phases_ms=batch.phases_ms,
                issue_ms=batch.issue_ms,
                wall_ms=batch.wall_ms,
                median_ms=statistics.median(samples),
                half_width=width if math.isfinite(width) else None,
            )
        )
        report(batches[-1])
        reason = stop_reason(
            samples,
            seconds,
            steps=spec.steps,
            until=spec.until,
            max_steps=spec.max_steps,
            max_seconds=spec.max_seconds,
            turns=(len(batches), PAIR_TURNS) if turns.is_pair else None,
        )
        if reason is not None:
            turns.finish()
            return batches, reason
        turns.give_way()


def _batch_steps(spec: RunSpec, known_ms: list[float], measured: int, turns: Turns) -> int:
    """Steps of about a quarter second: events come often, and the device's queue stays full."""
    if not known_ms:
        return 1
    most = spec.steps or spec.max_steps
    wanted = min(MAX_BATCH_STEPS, round(BATCH_SECONDS * 1e3 / statistics.median(known_ms)))
    if turns.is_pair:  # the limit of steps must not end the turns early
        wanted = min(wanted, most // PAIR_TURNS)
    return min(max(1, wanted), most - measured)


_NEXT, _LAST = FIRST_TURN, b"!"
"""Bytes that pass the turn; after the last one its sender takes no more turns."""


class Turns:
    """One process's share of the turns of two that are measured side by side: one runs while the
    other waits. A process without a partner never waits.

    Args:
        ends: Descriptors of two pipes, to read the turn from and to pass it on; None without a
            partner. A partner that dies closes them, and this process goes on alone.
    """

    def __init__(self, ends: tuple[int, int] | None = None) -> None:
        self.is_pair = ends is not None
        self._ends = ends and (private_pipe(ends[0], "rb"), private_pipe(ends[1], "wb"))
        self._is_alone = ends is None

    def take(self) -> None:
        """Wait, without using the processor, until it is this process's turn."""
        if self._ends is not None and not self._is_alone:
            self._is_alone = self._ends[0].read(1) in (_LAST, b"")

    def give_way(self) -> None:
        """Let the partner have its turn, and wait for the next one."""
        if self._ends is not None and not self._is_alone:
            self._pass(_NEXT)
            self.take()

    def finish(self) -> None:
        """Take no more turns; return when the partner takes none either, or died."""
        if self._ends is None:
            return
        self._pass(_LAST)
        while not self._is_alone:
            self.take()
        for end in self._ends:
            end.close()
        self._ends = None

    def _pass(self, byte: bytes) -> None:
        if self._ends is not None:
            with suppress(BrokenPipeError):  # the partner died: reading says so
                self._ends[1].write(byte)
