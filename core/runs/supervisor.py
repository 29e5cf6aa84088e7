"""Runs the passes of one run one after another, and is the only writer of its events.

``python -P -m sysbench.core.runs.supervisor RUN_DIRECTORY`` is what the TUI starts detached; the
``run`` command consumes the same generator in its own process.
"""

from __future__ import annotations

import errno
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from ..errors import DamagedFileError, DeviceBusyError
from ..formatting import format_bytes
from ..machine.environment import describe_host
from ..machine.telemetry.sample import Sample
from ..machine.telemetry.sampler import Sampler
from ..record.blocks import PASSES, PassName
from ..record.events import (
    AnyEvent,
    Noticed,
    Outcome,
    OutOfMemory,
    PassEnded,
    PassStarted,
    ResultReported,
    RunEnded,
    RunStarted,
    StageEntered,
    TelemetrySampled,
    WorkerFailed,
)
from ..storage import home, locked
from .builder import RecordBuilder
from .directory import EventLog, Header, RunDirectory
from .job import Job
from .prediction_errors import keep_error
from .worker_process import WorkerProcess

HANG_VARIABLE = "SYSBENCH_HANG_SECONDS"
HANG_SECONDS = 300.0
COMPILE_HANG_SECONDS = 1800.0
POLL_SECONDS = 0.2


class Cancellation(threading.Event):
    """Set it, from any thread or a signal handler, to end the run as ``cancelled``."""


def supervise(
    run: RunDirectory, *, wait: bool = True, cancel: Cancellation | None = None
) -> Iterator[AnyEvent]:
    """Run every pass of the run, yielding each event as it is written.

    The last event is RunEnded, whatever happened. Closing the generator early ends the
    worker and leaves the run without an end, as a crash would.

    Args:
        run: A fresh run directory, from `create_run`.
        wait: Wait for the device if another run measures on it.
        cancel: Ends the run when set.

    Raises:
        DeviceBusyError: At the first step, if ``wait`` is false and the device is held.
    """
    header = run.header()
    cancel = cancel or Cancellation()
    with locked(run.lock_path, who=f"run {run.id}"), EventLog(run) as log:
        supervision = Supervision(run, header, log, cancel)
        yield from supervision.start()
        while not cancel.is_set():
            try:
                with _locked_devices(header.spec.devices):
                    yield from supervision.run_passes()
                    break
            except DeviceBusyError as busy:
                if not wait:
                    yield from supervision.end("cancelled")
                    raise
                yield from supervision.notice_once(f"waiting: {busy}")
                cancel.wait(POLL_SECONDS)
        yield from supervision.end()


@contextmanager
def _locked_devices(devices: Sequence[str]) -> Iterator[None]:
    """While inside ``with`` no other run measures on these devices."""
    with ExitStack() as stack:
        # Every run locks in the same order, so that no two wait for each other.
        for device in sorted(set(devices)):
            lock = home() / "locks" / f"{device.replace(':', '-')}.lock"
            stack.enter_context(locked(lock, who=device))
        yield


class Supervision:
    """One run under way."""

    def __init__(
        self, run: RunDirectory, header: Header, log: EventLog, cancel: Cancellation
    ) -> None:
        self.run = run
        self.header = header
        self.log = log
        self.cancel = cancel
        self.builder = RecordBuilder(run, header, describe_host())
        self.samples: queue.SimpleQueue[Sample] = queue.SimpleQueue()
        self.outcomes: list[Outcome] = []
        self.disk_full = False
        self._noticed: set[str] = set()

    def emit(self, event: AnyEvent) -> Iterator[AnyEvent]:
        """Write an event, fold it into the record, hand it on."""
        try:
            self.log.append(event)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            self.disk_full = True
        self.builder.add(event)
        yield event

    def notice_once(self, message: str) -> Iterator[AnyEvent]:
        """Log a message the first time only."""
        if message not in self._noticed:
            self._noticed.add(message)
            yield from self.emit(Noticed(message=message))

    def start(self) -> Iterator[AnyEvent]:
        """The run's first event, and its record before anything is measured."""
        spec = self.header.spec
        yield from self.emit(
            RunStarted(
                run=self.run.id,
                pid=os.getpid(),
                identity=spec.identity,
                passes=list(self.header.passes),
                spec=msgspec.to_builtins(spec),
            )
        )
        self._keep_record()

    def run_passes(self) -> Iterator[AnyEvent]:
        """Every pass in its own worker, while telemetry is recorded."""
        sampler = Sampler(self.samples.put)
        sampler.start()
        try:
            for name in self.header.passes:
                if self.cancel.is_set() or self.disk_full or not self._worth_running(name):
                    continue
                yield from self._run_pass(name)
                self._keep_record()
        finally:
            sampler.stop()
        if sampler.error is not None:
            yield from self.emit(Noticed(message=f"telemetry stopped: {sampler.error}"))

    def _worth_running(self, name: PassName) -> bool:
        """After a failure the other passes would fail alike; after an OOM some still inform."""
        if {"failed", "cuda-error", "disk-full"} & set(self.outcomes):
            return False
        return "oom" not in self.outcomes or PASSES[name].after_oom

    def _run_pass(self, name: PassName) -> Iterator[AnyEvent]:
        began = time.monotonic()
        folder = self.run.pass_folder(name)
        try:
            folder.mkdir(exist_ok=True)
            job = Job(spec=self.header.spec, name=name, folder=str(folder))
            worker = WorkerProcess(job, self.run.log_path(name))
        except OSError as error:
            self.outcomes.append(_outcome_of_os_error(error))
            yield from self.emit(_pass_ended(name, self.outcomes[-1], str(error), began, None))
            return
        try:
            yield from self.emit(PassStarted(name=name, pid=worker.pid))
            watch = _Watch()
            yield from self._follow(worker, watch)
            code = None if watch.forced else worker.wait()
        finally:
            worker.close()
        outcome, detail = watch.verdict(code)
        if self.disk_full:
            outcome, detail = "disk-full", "the disk is full: free space and run again"
        self.outcomes.append(outcome)
        yield from self.emit(_pass_ended(name, outcome, detail, began, code))

    def _follow(self, worker: WorkerProcess, watch: _Watch) -> Iterator[AnyEvent]:
        """Hand on the worker's events until it ends, hangs, or the run is cancelled."""
        while not worker.ended:
            try:
                for event in worker.events(POLL_SECONDS):
                    watch.see(event)
                    yield from self.emit(event)
            except DamagedFileError as error:
                watch.force("failed", f"the worker broke the protocol: {error}")
            while not self.samples.empty():
                sample = msgspec.to_builtins(self.samples.get())
                yield from self.emit(TelemetrySampled(sample=sample))
            if self.cancel.is_set():
                watch.force("cancelled", "stopped on request")
            elif self.disk_full:
                watch.force("disk-full", "the disk is full")
            elif not self.run.path.is_dir():
                watch.force("failed", "its directory was deleted")
            elif watch.is_silent():
                watch.force("hung", f"nothing was heard for {watch.patience():.0f} s "
                            f"in stage {watch.stage}")  # fmt: skip
            if watch.forced:
                worker.kill()
                return

    def end(self, status: Outcome | None = None) -> Iterator[AnyEvent]:
        """The run's last event and its final record."""
        if status is None:
            bad = [outcome for outcome in self.outcomes if outcome != "finished"]
            status = bad[0] if bad else "finished"
            if self.disk_full:
                status = "disk-full"
            elif self.cancel.is_set() and not bad:
                status = "cancelled"
        self.log.release_reserve()
        event = RunEnded(status=status)
        self.builder.add(event)
        self._keep_record()
        with suppress(OSError):  # the record has the end already
            self.log.append(event)
            keep_error(self.builder.record())
        yield event

    def _keep_record(self) -> None:
        if not self.run.path.is_dir():
            return  # the run was deleted
        try:
            self.run.write_record(self.builder.record())
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            self.disk_full = True


class _Watch:
    """The last facts of one worker, from which its outcome is judged."""

    def __init__(self) -> None:
        self.stage = "start"
        self.forced: Outcome | None = None
        self._detail = ""
        self._oom: OutOfMemory | None = None
        self._failure: WorkerFailed | None = None
        self._has_result = False
        self._heard = time.monotonic()

    def see(self, event: AnyEvent) -> None:
        self._heard = time.monotonic()
        match event:
            case StageEntered():
                self.stage = event.stage
            case OutOfMemory():
                self._oom = event
            case WorkerFailed():
                self._failure = event
            case ResultReported():
                self._has_result = True
            case _:
                pass

    def patience(self) -> float:
        """Seconds of silence that mean a hang; compiling may rightly be silent for long."""
        override = os.environ.get(HANG_VARIABLE)
        if override:
            return float(override)
        return COMPILE_HANG_SECONDS if self.stage == "compile" else HANG_SECONDS

    def is_silent(self) -> bool:
        return time.monotonic() - self._heard > self.patience()

    def force(self, outcome: Outcome, detail: str) -> None:
        """End the pass for this reason; the first one counts."""
        if self.forced is None:
            self.forced, self._detail = outcome, detail

    def verdict(self, code: int | None) -> tuple[Outcome, str]:
        """Outcome of the pass, and its sentence."""
        if self.forced is not None:
            return self.forced, self._detail
        if self._oom is not None:
            return "oom", _describe_oom(self._oom)
        if self._failure is not None:
            return _outcome_of_failure(self._failure), _describe_failure(self._failure)
        if code is not None and code < 0:
            return "killed", f"killed by {_signal_name(-code)} in stage {self.stage}"
        if code == 0 and self._has_result:
            return "finished", "finished"
        return "failed", f"the worker ended with code {code} and no result; see its log"


def _describe_oom(event: OutOfMemory) -> str:
    requested = "an unknown amount"
    if event.requested_bytes is not None:
        requested = format_bytes(event.requested_bytes)
    free = ""
    if event.free_bytes is not None:
        free = f", {format_bytes(event.free_bytes)} free"
    return f"{_of_rank(event.rank)}out of memory: {requested} asked for in {event.phase}{free}"


def _describe_failure(failure: WorkerFailed) -> str:
    first_line = failure.message.strip().splitlines()[0]
    kind = "" if failure.killed else f"{failure.kind}: "
    return f"{_of_rank(failure.rank)}{kind}{first_line}"


def _of_rank(rank: int | None) -> str:
    return "" if rank is None else f"rank {rank}: "


def _outcome_of_failure(failure: WorkerFailed) -> Outcome:
    if failure.killed:
        return "killed"
    if failure.is_cuda_error:
        return "cuda-error"
    # The worker names the errno in `kind`, since messages are translated.
    numbers = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if any(failure.kind.endswith(f"({number})") for number in numbers):
        return "disk-full"
    return "failed"


def _outcome_of_os_error(error: OSError) -> Outcome:
    return "disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "failed"


def _signal_name(number: int) -> str:
    hint = " (a person, or the kernel out of memory)" if number == signal.SIGKILL else ""
    return f"{signal.Signals(number).name}{hint}"


def _pass_ended(
    name: str, outcome: Outcome, detail: str, began: float, code: int | None
) -> PassEnded:
    seconds = time.monotonic() - began
    return PassEnded(name=name, outcome=outcome, detail=detail, seconds=seconds, exit_code=code)


def main() -> int:
    """Supervise the run directory named on the command line to its end, quietly."""
    cancel = Cancellation()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: cancel.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for _ in supervise(RunDirectory(Path(sys.argv[1])), cancel=cancel):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
