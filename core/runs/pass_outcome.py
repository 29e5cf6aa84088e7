"""How a pass ends: what its worker reported, how long it may be silent, and the sentence for it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from typing import Any

from sysbench.core.formatting import first_line, format_bytes
from sysbench.core.machine.host_sampler import ProcessorUse
from sysbench.core.machine.processes import stopped_process
from sysbench.core.record.events import (
    AnyEvent,
    Outcome,
    OutOfMemory,
    ResultReported,
    StageEntered,
    WorkerFailed,
)
from sysbench.core.runs.worker_process import signal_name

HANG_VARIABLE = "SYSBENCH_HANG_SECONDS"
HANG_SECONDS = 300.0
COMPILE_HANG_SECONDS = 1800.0
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MAX_DETAIL = 500
"""Characters of an exception's message in the sentence on a pass; its event has more."""


class PassWatch:
    """The events of one worker, and the outcome of its pass that follows from them.

    Attributes:
        use: Of the processors, in the timing pass.
        partner: Of the process that it takes turns with.
        ended: Facts for the end of the pass.
    """

    def __init__(self) -> None:
        self.stage = "start"
        self.ended: dict[str, Any] = {}
        self.use: ProcessorUse | None = None
        self.partner: PassWatch | None = None
        self.forced: Outcome | None = None
        self._detail = ""
        self._oom: OutOfMemory | None = None
        self._asked_bytes: int | None = None
        self._failure: WorkerFailed | None = None
        self.has_result = False
        self._stopped: int | None = None
        self._heard = time.monotonic()

    def see(self, event: AnyEvent) -> None:
        self._heard = time.monotonic()
        match event:
            case StageEntered():
                self.stage = event.stage
                if self.use is not None:
                    self.use.enter(event.stage)
            case OutOfMemory():
                self._oom = event
            case WorkerFailed():
                self._failure = event
            case ResultReported(block="oom"):
                self._asked_bytes = event.data.get("requested_bytes")
            case ResultReported():
                self.has_result = True
                if event.block == "timing" and self.use is not None:
                    self.ended = self.use.facts()
            case _:
                pass

    def patience(self) -> float:
        """Seconds of silence that mean a hang; compiling may be silent for long."""
        override = os.environ.get(HANG_VARIABLE)
        if override:
            return float(override)
        return COMPILE_HANG_SECONDS if self.stage == "compile" else HANG_SECONDS

    def newly_stopped(self, pid: int) -> int | None:
        """Return a process of the worker that is stopped, once for each time; else None."""
        before, self._stopped = self._stopped, stopped_process(pid)
        return self._stopped if self._stopped != before else None

    def silence(self) -> str:
        text = f"no event for {self.patience():.0f} s in stage {self.stage}"
        return text if self._stopped is None else f"{text}: {describe_stop(self._stopped)}"

    def is_silent(self) -> bool:
        """Whether nothing was heard for too long; a process may be waiting for its partner."""
        watches = [self] if self.partner is None else [self, self.partner]
        heard = max(watch._heard for watch in watches)
        return time.monotonic() - heard > max(watch.patience() for watch in watches)

    def force(self, outcome: Outcome, detail: str) -> None:
        """End the pass for this reason; the first one counts."""
        if self.forced is None:
            self.forced, self._detail = outcome, detail

    def verdict(self, code: int | None) -> tuple[Outcome, str]:
        """Return the outcome of the pass, and its sentence."""
        if self.forced is not None:
            return self.forced, self._detail
        if self._oom is not None:
            return "oom", _describe_oom(self._oom, self._asked_bytes)
        if self._failure is not None:
            return _outcome_of_failure(self._failure), _describe_failure(self._failure)
        if code is not None and code < 0:
            return "killed", f"killed by {signal_name(-code)} in stage {self.stage}"
        if code == 0 and self.has_result:
            return "finished", "finished"
        return "failed", f"the worker ended with code {code} and no result; see its log"


def describe_left(names: Sequence[str]) -> str:
    processes = "1 process" if len(names) == 1 else f"{len(names)} processes"
    listed = ", ".join(sorted(set(names)))
    return f"the worker left {processes} running, which the supervisor ended: {listed}"


def describe_stop(pid: int) -> str:
    return f"process {pid} is stopped by a signal or a debugger; `kill -CONT {pid}` continues it"


def _describe_oom(event: OutOfMemory, asked_bytes: int | None) -> str:
    """Return the sentence; ``asked_bytes`` from the recording is more exact than the event's."""
    asked_bytes = event.requested_bytes if asked_bytes is None else asked_bytes
    requested = "an unknown amount" if asked_bytes is None else format_bytes(asked_bytes)
    bounds = []
    if event.free_bytes is not None:
        bounds.append(f"{format_bytes(event.free_bytes)} free")
    if event.limit_bytes is not None:
        bounds.append(f"limit {format_bytes(event.limit_bytes)}")
    elif event.capacity_bytes is not None:
        bounds.append(f"capacity {format_bytes(event.capacity_bytes)}")
    known = f" ({', '.join(bounds)})" if bounds else ""
    head = f"{_of_rank(event.rank)}out of memory in {event.phase}"
    return f"{head}: tried to allocate {requested}{known}"


def _describe_failure(failure: WorkerFailed) -> str:
    message = first_line(failure.message)
    if len(message) > MAX_DETAIL:
        message = f"{message[:MAX_DETAIL]}…"
    parts = [failure.place, "" if failure.killed else failure.kind, message]
    return _of_rank(failure.rank) + ": ".join(dict.fromkeys(part for part in parts if part))


def _of_rank(rank: int | None) -> str:
    return "" if rank is None else f"rank {rank}: "


def _outcome_of_failure(failure: WorkerFailed) -> Outcome:
    if failure.killed:
        return "killed"
    if failure.is_cuda_error:
        return "cuda-error"
    # The worker names the errno in `kind`, since messages are translated.
    if any(failure.kind.endswith(f"({number})") for number in DISK_FULL):
        return "disk-full"
    return "failed"


def outcome_of_os_error(error: Exception) -> Outcome:
    return "disk-full" if getattr(error, "errno", 0) in DISK_FULL else "failed"
