"""Clocks of steps and phases: host time or CUDA events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import msgspec
import torch

MAX_BATCH_STEPS = 10


class TimedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of steps, in milliseconds.

    Attributes:
        phases_ms: One entry per step, by phase.
        issue_ms: Host time to enqueue a step, only for steps that began on an idle device: the
            launch queue holds about 1,024 launches, and then the host waits. Empty when host and
            device are one.
        wall_ms: Host time of the whole batch with the synchronisation after it.
    """

    step_ms: list[float]
    phases_ms: dict[str, list[float]]
    issue_ms: list[float]
    wall_ms: float


class Clock(Protocol):
    """Runs steps and measures how long each phase took."""

    name: str

    def time(self, step: Callable[[Callable[[str], None]], None], count: int) -> TimedSteps:
        """Run ``count`` steps, without synchronisation between them by default."""
        ...


class HostClock:
    """Host clock, for the CPU: work is done when the call returns."""

    name = "host"

    def time(self, step: Callable[[Callable[[str], None]], None], count: int) -> TimedSteps:
        marks: list[tuple[str, int]] = []
        now = time.perf_counter_ns

        def enter(phase: str) -> None:
            marks.append((phase, now()))

        for _ in range(count):
            step(enter)
        return _from_marks(marks)


class CudaClock:
    """CUDA events at phase boundaries, one synchronisation per batch.

    With ``every_step`` the host synchronises after each step and measures it itself, as in the
    published loops.
    """

    name = "cuda-events"

    def __init__(self, device: torch.device, *, every_step: bool) -> None:
        self.device = device
        self.every_step = every_step
        if every_step:
            self.name = "host"
        self._pool: list[torch.cuda.Event] = []

    def time(self, step: Callable[[Callable[[str], None]], None], count: int) -> TimedSteps:
        stream = torch.cuda.current_stream(self.device)
        marks: list[tuple[str, torch.cuda.Event]] = []

        def enter(phase: str) -> None:
            # Events are reused: creating one within a measured step takes time.
            if len(marks) == len(self._pool):
                self._pool.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            event = self._pool[len(marks)]
            event.record(stream)
            marks.append((phase, event))

        issue_ms, host_ms = [], []
        torch.cuda.synchronize(self.device)
        began = time.perf_counter_ns()
        for index in range(count):
            step_began = time.perf_counter_ns()
            step(enter)
            if self.every_step or index == 0:
                issue_ms.append((time.perf_counter_ns() - step_began) / 1e6)
            if self.every_step:
                torch.cuda.synchronize(self.device)
                host_ms.append((time.perf_counter_ns() - step_began) / 1e6)
        torch.cuda.synchronize(self.device)
        wall_ms = (time.perf_counter_ns() - began) / 1e6
        first = marks[0][1]
        timed = _from_marks(
            [(name, round(first.elapsed_time(event) * 1e6)) for name, event in marks]
        )
        return TimedSteps(
            step_ms=host_ms or timed.step_ms,
            phases_ms=timed.phases_ms,
            issue_ms=issue_ms,
            wall_ms=wall_ms,
        )


def clock_for(device: torch.device, *, every_step: bool) -> Clock:
    if device.type == "cuda":
        return CudaClock(device, every_step=every_step)
    return HostClock()


def _from_marks(marks: list[tuple[str, int]]) -> TimedSteps:
    """Compute durations from (phase, nanoseconds) marks; an empty phase ends a step.

    A phase that a step enters several times, once for each micro-batch, counts with their sum.
    """
    step_ms: list[float] = []
    phases_ms: dict[str, list[float]] = {}
    of_step: Counter[str] = Counter()
    began = marks[0][1]
    for (phase, start), (following, end) in pairwise(marks):
        if phase:
            of_step[phase] += end - start
            if not following:
                step_ms.append((end - began) / 1e6)
                for name, spent_ns in of_step.items():
                    phases_ms.setdefault(name, []).append(spent_ns / 1e6)
                of_step.clear()
        else:
            # The interval between an empty phase and the next phase lies between two steps.
            began = end
    wall_ms = (marks[-1][1] - marks[0][1]) / 1e6
    return TimedSteps(step_ms=step_ms, phases_ms=phases_ms, issue_ms=[], wall_ms=wall_ms)
