"""Run the passes of one run, each in a worker that it watches, and write its events.

The TUI starts ``python -P -m sysbench.core.runs.supervisor RUN_DIRECTORY`` detached; the ``run``
command consumes the same generator in its own process.
"""

from __future__ import annotations

import errno
import os
import queue
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.errors import (
    ClusterError,
    DamagedFileError,
    DeviceBusyError,
    NotFoundError,
    SpecError,
)
from sysbench.core.formatting import format_bytes
from sysbench.core.machine.devices import nvml_index
from sysbench.core.machine.host_sampler import ClockGuard, ProcessorUse
from sysbench.core.machine.interpreter import require_chosen
from sysbench.core.machine.node import device_lock, hosts_of, shares
from sysbench.core.machine.processes import stopped_process
from sysbench.core.machine.read_environment import describe_host
from sysbench.core.machine.sample import Sample
from sysbench.core.machine.sampler import Sampler
from sysbench.core.record.blocks import PassName, why_left_out
from sysbench.core.record.events import (
    AnyEvent,
    ClockMoved,
    Noticed,
    Outcome,
    OutOfMemory,
    PassEnded,
    PassStarted,
    ResultReported,
    RoundDisturbed,
    RunEnded,
    RunStarted,
    StageEntered,
    TelemetrySampled,
    WorkerFailed,
)
from sysbench.core.runs.builder import RecordBuilder, known_environment
from sysbench.core.runs.job_directory import Cancellation, work_until_signal
from sysbench.core.runs.kept_rates import measured_facts
from sysbench.core.runs.prediction_errors import save_error
from sysbench.core.runs.run_directory import EventLog, Header, RunDirectory
from sysbench.core.runs.worker_process import CACHE_FOLDER, Job, WorkerProcess, signal_name
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import locked

HANG_VARIABLE = "SYSBENCH_HANG_SECONDS"
HANG_SECONDS = 300.0
COMPILE_HANG_SECONDS = 1800.0
POLL_SECONDS = 0.2
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STOPPED = "its process was stopped for a time, by a signal or a debugger"


class PassPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A round's place in the comparison that it is measured for; see `Round`."""

    experiment: str = ""
    block: int | None = None
    position: int | None = None
    side: str = ""


def supervise(
    run: RunDirectory, *, wait: bool = True, cancel: Cancellation | None = None
) -> Iterator[AnyEvent]:
    """Run every pass of the run, yielding each event as it is written.

    The last event is always RunEnded. Closing the generator early ends the worker and leaves the
    run without an end, as a crash would.

    Raises:
        DeviceBusyError: At the first step, if ``wait`` is false and the device is held.
        InterpreterError: At the first step, if the run names a Python that was never chosen here.
    """
    header = run.header()
    require_chosen(header.python)
    cancel = cancel or Cancellation()
    with run.hold(), EventLog(run) as log:
        supervision = Supervision(run, header, log, cancel)
        yield from supervision.start()
        yield from _on_devices(supervision, supervision.run_passes, wait=wait)


def add_round(
    run: RunDirectory,
    place: PassPlace | None = None,
    *,
    wait: bool = True,
    cancel: Cancellation | None = None,
) -> Iterator[AnyEvent]:
    """Time the run's spec once more in a fresh process, yielding each event as it is written.

    The round has the next number; its record is the run's, with the figures of all rounds. A run
    that was not measured yet gets its first. Neither earlier rounds nor the status of a run that
    had ended change. A round whose supervisor was killed is in the record as ``killed``, and the
    next one continues.

    Args:
        run: A run whose passes have ``timing``; ended, killed or fresh.

    Raises:
        SpecError: The run has no timing pass, or names a Python that was never chosen here.
        DeviceBusyError: At the first step, if the run has a supervisor, or if ``wait`` is false and
            the device is held.
    """
    header = run.header()
    if "timing" not in header.passes:
        raise SpecError("passes", ",".join(header.passes), "only the timing pass has rounds")
    require_chosen(header.python)
    cancel = cancel or Cancellation()
    with run.hold(), EventLog(run) as log:
        supervision = Supervision(run, header, log, cancel)
        supervision.resume()
        if not supervision.builder.started:
            yield from supervision.start()
        yield from _on_devices(supervision, lambda: supervision.run_round(place), wait=wait)


def disturb_round(run: RunDirectory, index: int, why: str) -> None:
    """Exclude a round because of ``why``; an empty reason includes it again.

    Raises:
        NotFoundError: The run has no such round.
        DeviceBusyError: The run has a supervisor.
    """
    with run.hold(), EventLog(run) as log:
        supervision = Supervision(run, run.header(), log, Cancellation())
        supervision.resume()
        if not 1 <= index < supervision.builder.next_round:
            raise NotFoundError(f"run {run.id} has no round {index}")
        for _ in supervision.emit(RoundDisturbed(round=index, why=why)):
            pass
        for _ in supervision.end():
            pass


def _on_devices(
    supervision: Supervision, work: Callable[[], Iterator[AnyEvent]], *, wait: bool
) -> Iterator[AnyEvent]:
    cancel = supervision.cancel
    while not cancel.is_set():
        with ExitStack() as held:
            try:
                held.enter_context(_locked_for(supervision.header.spec))
            except DeviceBusyError as busy:
                if not wait:
                    yield from supervision.end("cancelled")
                    raise
                yield from supervision.notice_once(f"waiting: {busy}")
                cancel.wait(POLL_SECONDS)
                continue
            except (OSError, DamagedFileError, ClusterError) as error:
                yield from supervision.notice_once(f"the device cannot be locked: {error}")
                yield from supervision.end(_outcome_of_os_error(error))
                return
            yield from work()
            break
    yield from supervision.end()


def locked_devices(devices: Sequence[str]) -> AbstractContextManager[None]:
    """Exclude other runs from these devices inside ``with``."""
    return _locked({device_lock(device): device for device in devices})


def _locked_for(spec: RunSpec) -> AbstractContextManager[None]:
    """Exclude other runs from the devices of the spec's ranks, on all nodes, inside ``with``."""
    hosts = hosts_of(spec.ranks)
    return _locked(
        {
            device_lock(device, node=host): f"{device} of {host}" if hosts else device
            for host, share in zip(hosts or (None,), shares(spec.ranks, len(hosts)), strict=True)
            for device in spec.devices[:share]
        }
    )


@contextmanager
def _locked(locks: Mapping[Path, str]) -> Iterator[None]:
    with ExitStack() as stack:
        # Every run locks in the same order, so that no two wait for each other.
        for path, device in sorted(locks.items()):
            stack.enter_context(locked(path, who=device))
        yield


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

    def start(self) -> Iterator[AnyEvent]:
        """Write the run's first event, and its record before anything is measured."""
        spec = self.header.spec
        yield from self.emit(
            RunStarted(
                run=self.run.id,
                pid=os.getpid(),
                identity=spec.identity,
                passes=list(self.header.passes),
                spec=msgspec.to_builtins(spec),
                repeat=self.header.repeat,
                environment=self.builder.environment,
            )
        )
        self._keep_record()

    def resume(self) -> None:
        self.builder.take_in(self.run.tail())
        self.builder.resume()

    def run_passes(self) -> Iterator[AnyEvent]:
        """Run every pass in its own worker, the rounds of the timing pass one after another."""
        yield from self._with_telemetry(self._passes())

    def run_round(self, place: PassPlace | None) -> Iterator[AnyEvent]:
        """Run one more round of the timing pass, during which the record is ``running``."""
        self._keep_record()
        yield from self._with_telemetry(self._run_pass("timing", self.builder.next_round, place))

    def _passes(self) -> Iterator[AnyEvent]:
        for name in self.header.passes:
            for number in range(1, 1 + (self.header.repeat if name == "timing" else 1)):
                if self.cancel.is_set() or self.disk_full:
                    break
                if why := why_left_out(name, self.outcomes):
                    if number == 1:
                        yield from self.emit(Noticed(message=f"{name} pass left out: {why}"))
                    break
                yield from self._run_pass(name, number)
                self._keep_record()

    def _with_telemetry(self, passes: Iterator[AnyEvent]) -> Iterator[AnyEvent]:
        sampler = Sampler(self.samples.put)
        sampler.start()
        try:
            yield from passes
        finally:
            sampler.stop()
        if sampler.error is not None:
            yield from self.emit(Noticed(message=f"telemetry stopped: {sampler.error}"))

    def _run_pass(
        self, name: PassName, number: int = 1, place: PassPlace | None = None
    ) -> Iterator[AnyEvent]:
        began = time.monotonic()
        folder = self.run.round_folder(number) if number > 1 else self.run.pass_folder(name)
        try:
            folder.mkdir(exist_ok=True, parents=True)
            job = Job(spec=self.header.spec, name=name, folder=str(folder))
            worker = WorkerProcess(job, self.run.log_path(name, number), self.header.python)
        except (OSError, DamagedFileError) as error:
            outcome = _outcome_of_os_error(error)
            self.outcomes.append((name, outcome))
            yield from self.emit(_pass_ended(name, outcome, str(error), began, None, round=number))
            return
        try:
            place_fields = msgspec.structs.asdict(place) if place else {}
            yield from self.emit(
                PassStarted(name=name, pid=worker.pid, round=number, **place_fields)
            )
            watch = _Watch(worker.pid if name == "timing" else None)
            yield from self._follow(worker, watch, number if name == "timing" else None)
            code = None if watch.forced else worker.wait()
            if (refused := worker.refusal(watch.stage, self.header.spec)) is not None:
                watch.see(refused)
                yield from self.emit(refused)
        finally:
            worker.close()
        outcome, detail = watch.verdict(code)
        if self.disk_full:
            outcome, detail = "disk-full", "the disk is full: free space and run again"
        self.outcomes.append((name, outcome))
        if number > 1:
            # Only the first round's cache is of use, to the trace pass.
            shutil.rmtree(folder / CACHE_FOLDER, ignore_errors=True)
            with suppress(OSError):  # ranks write their logs into it
                folder.rmdir()
        yield from self.emit(
            _pass_ended(name, outcome, detail, began, code, round=number, **watch.ended)
        )

    def _follow(
        self, worker: WorkerProcess, watch: _Watch, round_number: int | None
    ) -> Iterator[AnyEvent]:
        """Yield the worker's events until it ends, hangs, or the run is cancelled."""
        clock = ClockGuard()
        while not worker.ended:
            try:
                for event in worker.events(POLL_SECONDS):
                    watch.see(event)
                    yield from self.emit(event)
            except DamagedFileError as error:
                watch.force("failed", f"the worker broke the protocol: {error}")
            while not self.samples.empty():
                yield from self.emit(self.sampled(self.samples.get()))
            if (seconds := clock.moved_seconds()) is not None:
                yield from self.emit(ClockMoved(seconds=seconds))
            if (stopped := watch.newly_stopped(worker.pid)) is not None:
                yield from self.emit(Noticed(message=_describe_stop(stopped)))
                if round_number is not None:
                    yield from self.emit(RoundDisturbed(round=round_number, why=STOPPED))
            if self.cancel.is_set():
                watch.force("cancelled", "stopped on request")
            elif self.disk_full:
                watch.force("disk-full", "the disk is full")
            elif not self.run.path.is_dir():
                watch.force("failed", "its directory was deleted")
            elif watch.is_silent():
                watch.force("hung", watch.silence() + worker.where(self.header.spec.model_file))
            if watch.forced:
                worker.kill()
                return

    def sampled(self, sample: Sample) -> TelemetrySampled:
        """Return the sample without serial numbers, and the index of the measured device.

        The index depends on this process's environment variables, which a later reader does not
        have.
        """
        index = nvml_index(self.header.spec.device, sample.devices)
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
        self._keep_record()
        with suppress(OSError):  # the record has the end already
            self.log.append(event)
            save_error(self.builder.record())
        yield event

    def _keep_record(self) -> None:
        if not self.run.path.is_dir():
            return  # the run was deleted
        with self._surviving_full_disk():
            self.run.write_record(self.builder.record())


class _Watch:
    def __init__(self, timed_pid: int | None = None) -> None:
        self.stage = "start"
        self.ended: dict[str, Any] = {}
        self._beside = None if timed_pid is None else ProcessorUse(timed_pid)
        self.forced: Outcome | None = None
        self._detail = ""
        self._oom: OutOfMemory | None = None
        self._asked_bytes: int | None = None
        self._failure: WorkerFailed | None = None
        self._has_result = False
        self._stopped: int | None = None
        self._heard = time.monotonic()

    def see(self, event: AnyEvent) -> None:
        self._heard = time.monotonic()
        match event:
            case StageEntered():
                self.stage = event.stage
                if self._beside is not None:
                    self._beside.enter(event.stage)
            case OutOfMemory():
                self._oom = event
            case WorkerFailed():
                self._failure = event
            case ResultReported(block="oom"):
                self._asked_bytes = event.data.get("requested_bytes")
            case ResultReported():
                self._has_result = True
                if event.block == "timing" and self._beside is not None:
                    self.ended = self._beside.facts()
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
        return text if self._stopped is None else f"{text}: {_describe_stop(self._stopped)}"

    def is_silent(self) -> bool:
        return time.monotonic() - self._heard > self.patience()

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
        if code == 0 and self._has_result:
            return "finished", "finished"
        return "failed", f"the worker ended with code {code} and no result; see its log"


def _describe_stop(pid: int) -> str:
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
    first_line = failure.message.strip().splitlines()[0]
    parts = [failure.place, "" if failure.killed else failure.kind, first_line]
    return _of_rank(failure.rank) + ": ".join(part for part in parts if part)


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


def _outcome_of_os_error(error: Exception) -> Outcome:
    return "disk-full" if getattr(error, "errno", 0) in DISK_FULL else "failed"


def _pass_ended(
    name: str, outcome: Outcome, detail: str, began: float, code: int | None, **more: Any
) -> PassEnded:
    seconds = time.monotonic() - began
    return PassEnded(
        name=name, outcome=outcome, detail=detail, seconds=seconds, exit_code=code, **more
    )


def main() -> int:
    return work_until_signal(lambda path, cancel: supervise(RunDirectory(path), cancel=cancel))


if __name__ == "__main__":
    sys.exit(main())
