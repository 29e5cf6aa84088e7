"""A run that is being measured: its events, its record, and its passes in their workers."""

from __future__ import annotations

import os
import queue
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from sysbench.core.errors import DamagedFileError
from sysbench.core.machine.devices import nvml_index
from sysbench.core.machine.host_sampler import ClockGuard, ProcessorUse
from sysbench.core.machine.machine_reader import Sampler
from sysbench.core.machine.read_environment import describe_host
from sysbench.core.machine.sample import Sample
from sysbench.core.record.blocks import PassName
from sysbench.core.record.environment import left_out_gpu
from sysbench.core.record.events import (
    AnyEvent,
    ClockMoved,
    Noticed,
    Outcome,
    PassEnded,
    PassStarted,
    RoundDisturbed,
    RunEnded,
    RunStarted,
    TelemetrySampled,
)
from sysbench.core.runs.builder import RecordBuilder, known_environment
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.kept_rates import measured_facts
from sysbench.core.runs.prediction_errors import save_error
from sysbench.core.runs.run_directory import EventLog, Header, RunDirectory
from sysbench.core.runs.worker_process import (
    CACHE_FOLDER,
    CLOSED_PIPE_CODE,
    DISK_FULL,
    Job,
    PassWatch,
    WorkerProcess,
    describe_left,
    describe_stop,
    outcome_of_os_error,
)

POLL_SECONDS = 0.2


class Supervision:
    """A run that is being measured, or resumed for another round."""

    def __init__(
        self, run: RunDirectory, header: Header, log: EventLog, cancel: Cancellation
    ) -> None:
        self.run = run
        self.header = header
        self.log = log
        self.cancel = cancel
        environment = known_environment(run) or (
            describe_host(header.python, header.spec.ranks) | measured_facts(header.spec.device)
        )
        self.builder = RecordBuilder(run, header, environment)
        self.samples: queue.SimpleQueue[Sample] = queue.SimpleQueue()
        self.outcomes: list[tuple[PassName, Outcome]] = []
        self.disk_full = False
        self._noticed: set[str] = set()

    def emit(self, event: AnyEvent) -> Iterator[AnyEvent]:
        with self._surviving_full_disk():
            self.log.append(event)
        self.builder.add(event)
        yield event

    @contextmanager
    def _surviving_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self.disk_full = True

    def notice_once(self, message: str) -> Iterator[AnyEvent]:
        if message not in self._noticed:
            self._noticed.add(message)
            yield from self.emit(Noticed(message=message))

    def start_unless_started(self) -> Iterator[AnyEvent]:
        if not self.builder.started:
            yield from self.start()

    def start(self) -> Iterator[AnyEvent]:
        """Write the run's first event, and its record before anything is measured."""
        spec = self.header.spec
        yield from self.emit(
            RunStarted(
                run=self.run.id,
                pid=os.getpid(),
                identity=spec.identity,
                passes=list(self.header.passes),
                spec=spec.known(),
                repeat=self.header.repeat,
                environment=self.builder.environment,
            )
        )
        if not spec.on_cuda and (why := left_out_gpu(self.builder.environment)):
            yield from self.emit(Noticed(message=f"on the CPU: the GPU cannot be used: {why}"))
        self.keep_record()

    def resume(self) -> None:
        self.builder.take_in(self.run.tail())
        self.builder.resume()

    def sampled(self, sample: Sample) -> TelemetrySampled:
        """Return the sample without serial numbers, and the index of the measured device.

        The index depends on this process's environment variables, which a later reader does not
        have.
        """
        index = nvml_index(self.builder.device, sample.devices)
        devices = [msgspec.structs.replace(device, uuid="") for device in sample.devices]
        sample = msgspec.structs.replace(sample, devices=devices)
        return TelemetrySampled(sample=msgspec.to_builtins(sample), device_index=index)

    def end(self, status: Outcome | None = None) -> Iterator[AnyEvent]:
        if self.builder.resumed:
            status = self.builder.status_of_all()
        elif status is None:
            bad = [outcome for _, outcome in self.outcomes if outcome != "finished"]
            status = bad[0] if bad else "finished"
            if self.disk_full:
                status = "disk-full"
            elif self.cancel.is_set() and not bad:
                status = "cancelled"
        self.log.release_reserve()
        event = RunEnded(status=status)
        self.builder.add(event)
        self.keep_record()
        with suppress(OSError):  # the record has the end already
            self.log.append(event)
            save_error(self.builder.record())
        yield event

    def keep_record(self) -> None:
        if not self.run.path.is_dir():
            return  # the run was deleted
        with self._surviving_full_disk():
            self.run.write_record(self.builder.record())


def with_telemetry(
    supervisions: Sequence[Supervision], passes: Iterator[AnyEvent]
) -> Iterator[AnyEvent]:
    """Sample the devices during the passes, once for all these runs."""

    def take(sample: Sample) -> None:
        for supervision in supervisions:
            supervision.samples.put(sample)

    sampler = Sampler(take)
    sampler.start()
    try:
        yield from passes
    finally:
        sampler.stop()
    if sampler.error is not None:
        for supervision in supervisions:
            yield from supervision.emit(Noticed(message=f"telemetry stopped: {sampler.error}"))


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
