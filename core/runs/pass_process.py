"""One pass in its worker: launched, followed until it ends, hangs or is cancelled, and closed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from sysbench.core.errors import DamagedFileError
from sysbench.core.machine.host_sampler import ClockGuard, ProcessorUse
from sysbench.core.record.blocks import PassName
from sysbench.core.record.events import (
    AnyEvent,
    ClockMoved,
    Noticed,
    Outcome,
    PassEnded,
    PassStarted,
    RoundDisturbed,
)
from sysbench.core.runs.supervised_run import Supervision
from sysbench.core.runs.worker_process import (
    CACHE_FOLDER,
    CLOSED_PIPE_CODE,
    Job,
    PassWatch,
    WorkerProcess,
    describe_left,
    describe_stop,
    outcome_of_os_error,
)

CLOSED_PIPE = "the measured code closed the pipe by which its worker reports events"
STOPPED = "its process was stopped for a time, by a signal or a debugger"


class PassPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A round's place in the comparison that it is measured for; see `Round`."""

    experiment: str = ""
    block: int | None = None
    position: int | None = None
    side: str = ""
    duet: bool = False


class PassProcess:
    def __init__(
        self, supervision: Supervision, name: PassName, number: int, place: PassPlace | None
    ) -> None:
        self._supervision = supervision
        self._name = name
        self._number = number
        self._place = place
        self._began = time.monotonic()
        run = supervision.run
        self._folder = run.round_folder(number) if number > 1 else run.pass_folder(name)
        self._worker: WorkerProcess | None = None
        self._clock = ClockGuard()
        self._code: int | None = None
        self._failed: Exception | None = None
        self.watch = PassWatch()

    def launch(self, turns: tuple[int, int] | None = None) -> Iterator[AnyEvent]:
        """Start the worker, or end the pass because it cannot start."""
        supervision = self._supervision
        spec, run = supervision.header.spec, supervision.run
        try:
            self._folder.mkdir(exist_ok=True, parents=True)
            job = Job(spec=spec, name=self._name, folder=str(self._folder), turns=turns)
            log = run.log_path(self._name, self._number)
            self._worker = WorkerProcess(job, log, supervision.header.python)
        except (OSError, DamagedFileError) as error:
            self._failed = error
            yield from self._ended(outcome_of_os_error(error), str(error))

    def begin(self, partner: PassProcess | None = None) -> Iterator[AnyEvent]:
        """Watch the worker from its first event on."""
        if self._worker is None:
            return
        facts = msgspec.structs.asdict(self._place) if self._place else {}
        pids = [self._worker.pid]
        if partner is not None and partner._worker is not None:
            pids.append(partner._worker.pid)
            facts["partner_pid"] = partner._worker.pid
            self.watch.partner = partner.watch
        if self._name == "timing":
            self.watch.use = ProcessorUse(*pids)
        yield from self._supervision.emit(
            PassStarted(name=self._name, pid=pids[0], round=self._number, **facts)
        )

    @property
    def is_running(self) -> bool:
        return self._worker is not None and not self._worker.ended and not self.watch.forced

    @property
    def is_lost(self) -> bool:
        """Whether it ended without a result."""
        return not self.is_running and not self.watch.has_result

    def poll(self, seconds: float) -> Iterator[AnyEvent]:
        """Yield the worker's events of some seconds; end it if it hangs or must not go on."""
        supervision, worker, watch = self._supervision, self._worker, self.watch
        if worker is None:
            return
        try:
            for event in worker.events(seconds):
                watch.see(event)
                yield from supervision.emit(event)
        except DamagedFileError as error:
            watch.force("failed", f"the worker broke the protocol: {error}")
        while not supervision.samples.empty():
            yield from supervision.emit(supervision.sampled(supervision.samples.get()))
        if (moved := self._clock.moved_seconds()) is not None:
            yield from supervision.emit(ClockMoved(seconds=moved))
        if (stopped := watch.newly_stopped(worker.pid)) is not None:
            yield from supervision.emit(Noticed(message=describe_stop(stopped)))
            if self._name == "timing":
                yield from supervision.emit(RoundDisturbed(round=self._number, why=STOPPED))
        if supervision.cancel.is_set():
            watch.force("cancelled", "stopped on request")
        elif supervision.disk_full:
            watch.force("disk-full", "the disk is full")
        elif not supervision.run.path.is_dir():
            watch.force("failed", "its directory was deleted")
        elif watch.is_silent():
            model_file = supervision.header.spec.model_file
            watch.force("hung", watch.silence() + worker.where(model_file))
        if watch.forced:
            worker.kill()

    def give_up(self, why: str) -> None:
        """End the worker, if it still runs, because its partner is lost."""
        if self._worker is not None and self.is_running:
            self.watch.force("cancelled", why)
            self._worker.kill()

    def finish(self) -> Iterator[AnyEvent]:
        """Take the end of a worker that ended, and end what it left running."""
        if self._worker is None:
            return
        if not self.watch.forced:
            self._code = self._worker.wait()
            if self._code in (None, CLOSED_PIPE_CODE):
                self.watch.force("failed", CLOSED_PIPE)
            elif left := self._worker.end_left_processes():
                yield from self._supervision.emit(Noticed(message=describe_left(left)))
        spec = self._supervision.header.spec
        if (refused := self._worker.refusal(self.watch.stage, spec)) is not None:
            self.watch.see(refused)
            yield from self._supervision.emit(refused)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()

    def end(self) -> Iterator[AnyEvent]:
        """Report how the pass ended, once its worker is closed."""
        if self._failed is not None:
            return  # its end was reported
        outcome, detail = self.watch.verdict(self._code)
        if self._supervision.disk_full:
            outcome, detail = "disk-full", "the disk is full: free space and run again"
        if self._number > 1:
            # Only the first round's cache is of use, to the trace pass.
            shutil.rmtree(self._folder / CACHE_FOLDER, ignore_errors=True)
            with suppress(OSError):  # ranks write their logs into it
                self._folder.rmdir()
        yield from self._ended(outcome, detail, **self.watch.ended)

    def _ended(self, outcome: Outcome, detail: str, **more: Any) -> Iterator[AnyEvent]:
        self._supervision.outcomes.append((self._name, outcome))
        yield from self._supervision.emit(
            PassEnded(
                name=self._name,
                outcome=outcome,
                detail=detail,
                seconds=time.monotonic() - self._began,
                exit_code=self._code,
                round=self._number,
                side=self._place.side if self._place else "",
                **more,
            )
        )
