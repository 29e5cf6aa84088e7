"""Run a command once more as a round of an experiment, alone and in the background."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

import psutil

from sysbench.core.machine.host_sampler import ClockGuard, ProcessorUse, marked_processes
from sysbench.core.record.events import AnyEvent, ClockMoved, Outcome, StageEntered
from sysbench.core.record.job import JobStep, Metric
from sysbench.core.record.timing import Timing
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.runs.supervised_run import POLL_SECONDS, PassPlace, Supervision, with_telemetry
from sysbench.core.runs.supervisor import measure_round
from sysbench.core.storage import open_to_append
from sysbench.core.watch.job_block import NO_OPTIMIZER, NO_STEPS, wall_timing
from sysbench.core.watch.supervise_job import WatchedCommand

TERMINATE_SECONDS = 5.0
"""Seconds after SIGTERM until a command that is cancelled is killed."""
ROUND_VARIABLE = "SYSBENCH_ROUND"
"""Folder of a round, by which the processes that its command started are found."""


def add_command_round(
    run: RunDirectory,
    place: PassPlace,
    metric: Metric,
    folder: str,
    *,
    wait: bool = True,
    cancel: Cancellation | None = None,
) -> Iterator[AnyEvent]:
    """Run the command of a run once more, yielding each event as it is written.

    Its input is empty, and its output goes to the log of the round. It ends with everything that it
    has started. The recorder is in its processes only if ``metric`` is its steps; a round without a
    step has then failed, with exit code 0.

    Args:
        folder: Working directory of the command.

    Raises:
        SpecError, DeviceBusyError: As `sysbench.core.runs.supervisor.add_round`.
    """

    def measure(supervision: Supervision) -> Iterator[AnyEvent]:
        supervision.keep_record()
        command = _CommandRound(supervision, place, metric, folder)
        yield from with_telemetry([supervision], command.follow())

    yield from measure_round(run, measure, wait=wait, cancel=cancel)


class _CommandRound(WatchedCommand):
    """A command in a session of its own, without input."""

    def __init__(
        self, supervision: Supervision, place: PassPlace, metric: Metric, folder: str
    ) -> None:
        super().__init__(supervision, number=supervision.builder.next_round, place=place)
        self._metric = metric
        self._cwd = folder
        self._clock = ClockGuard()
        self._kill_at = math.inf
        self._session = 0
        self._facts: dict[str, Any] = {}
        self._is_measured = metric == "steps"

    def follow(self) -> Iterator[AnyEvent]:
        try:
            yield from super().follow()
        finally:
            if self._session:
                self._kill_left()

    def _start(self) -> subprocess.Popen[bytes]:
        environ = self._environ() if self._metric == "steps" else dict(os.environ)
        environ[ROUND_VARIABLE] = str(self._folder)
        with open_to_append(self._supervision.run.log_path("timing", self.number)) as output:
            self._began = time.monotonic()
            process = subprocess.Popen(
                self._command,
                env=environ,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._session = process.pid
        self._waiter = Thread(target=self._await_end, args=(process,), daemon=True)
        self._waiter.start()
        self._use = ProcessorUse(process.pid)
        self._use.enter("measure")
        return process

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        """Take the time of the end; the process stays, for the question of its processor time."""
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self._ended = time.monotonic()

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        self._waiter.join(POLL_SECONDS)
        if self._waiter.is_alive():
            if not self._supervision.run.path.is_dir():  # it was deleted
                self._supervision.cancel.set()
            if time.monotonic() > self._kill_at:
                self._kill_left()
            return None
        self._facts = self._use.facts()
        code = process.wait()
        self._kill_left()
        return code

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        self._kill_at = time.monotonic() + TERMINATE_SECONDS
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)

    def _kill_left(self) -> None:
        """Kill the command and what it started: it would disturb the rounds after it."""
        for _, process in marked_processes(ROUND_VARIABLE, str(self._folder), self._session):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _look(self) -> Iterator[AnyEvent]:
        if not self._is_measured:
            self._is_measured = True
            yield from self._supervision.emit(StageEntered(stage="measure"))
        if (moved := self._clock.moved_seconds()) is not None:
            yield from self._supervision.emit(ClockMoved(seconds=moved))
        yield from super()._look()

    def _timing(self, steps: Mapping[int, Sequence[JobStep]], detail: str) -> Timing | None:
        if self._metric == "steps":
            return super()._timing(steps, detail)
        if self._ended is None:
            return None  # it did not start
        return wall_timing([1e3 * self._seconds()], detail)

    def _judged(self, timing: Timing | None, outcome: Outcome, detail: str) -> tuple[Outcome, str]:
        if self._supervision.cancel.is_set():
            return "cancelled", "stopped on request"
        if outcome == "finished" and timing is None:
            why = NO_OPTIMIZER if self._files else NO_STEPS
            return "failed", f"no step was recorded ({why}); --metric wall compares wall times"
        return outcome, detail

    def _end(
        self, code: int | None, outcome: Outcome, detail: str, **more: Any
    ) -> Iterator[AnyEvent]:
        yield from super()._end(code, outcome, detail, **self._facts)
