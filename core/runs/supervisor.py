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
from collections import ChainMap
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
from sysbench.core.formatting import first_line, format_bytes
from sysbench.core.machine.devices import find_cuda, nvml_index
from sysbench.core.machine.host_sampler import ClockGuard, ProcessorUse
from sysbench.core.machine.interpreter import require_chosen
from sysbench.core.machine.node import device_lock, hosts_of, shares
from sysbench.core.machine.processes import stopped_process
from sysbench.core.machine.read_environment import describe_host
from sysbench.core.machine.sample import Sample
from sysbench.core.machine.sampler import Sampler
from sysbench.core.record.blocks import PassName, why_left_out
from sysbench.core.record.environment import left_out_gpu
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
from sysbench.core.runs.worker_process import (
    CACHE_FOLDER,
    CLOSED_PIPE_CODE,
    FIRST_TURN,
    Job,
    WorkerProcess,
    signal_name,
)
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import locked

HANG_VARIABLE = "SYSBENCH_HANG_SECONDS"
HANG_SECONDS = 300.0
COMPILE_HANG_SECONDS = 1800.0
POLL_SECONDS = 0.2
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MAX_DETAIL = 500
"""Characters of an exception's message in the sentence on a pass; its event has more."""
CLOSED_PIPE = "the measured code closed the pipe by which its worker reports events"
STOPPED = "its process was stopped for a time, by a signal or a debugger"


class PassPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A round's place in the comparison that it is measured for; see `Round`."""

    experiment: str = ""
    block: int | None = None
    position: int | None = None
    side: str = ""
    duet: bool = False


def supervise(
    run: RunDirectory, *, wait: bool = True, cancel: Cancellation | None = None
) -> Iterator[AnyEvent]:
    """Run every pass of the run, yielding each event as it is written.

    The last event is always RunEnded. Closing the generator early ends the worker and leaves the
    run without an end, as a crash would.

    Raises:
        DeviceBusyError: At the first step, if ``wait`` is false and the device is held.
        InterpreterError: At the first step, if the run names a Python that was never chosen here.
        SpecError: At the first step, if the run is of a watched command.
    """
    header = run.header()
    _require_worker(header)
    cancel = cancel or Cancellation()
    with run.hold(), EventLog(run) as log:
        supervision = Supervision(run, header, log, cancel)
        yield from supervision.start()
        yield from _on_devices([supervision], supervision.run_passes, wait=wait)


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
    _require_worker(run.header())
    yield from measure_round(run, lambda held: held.run_round(place), wait=wait, cancel=cancel)


def measure_round(
    run: RunDirectory,
    measure: Callable[[Supervision], Iterator[AnyEvent]],
    *,
    wait: bool = True,
    cancel: Cancellation | None = None,
) -> Iterator[AnyEvent]:
    """Hold a run and its device while ``measure`` adds a round; raises as `add_round`."""
    with ExitStack() as held:
        supervision = held.enter_context(_resumed(run, cancel or Cancellation()))
        yield from supervision.start_unless_started()
        yield from _on_devices([supervision], lambda: measure(supervision), wait=wait)


def add_pair(
    runs: tuple[RunDirectory, RunDirectory],
    places: tuple[PassPlace, PassPlace],
    *,
    wait: bool = True,
    cancel: Cancellation | None = None,
) -> Iterator[AnyEvent]:
    """Time two specs in two fresh processes that live side by side and take turns.

    Only one of them steps at a time; the first begins. Each run gets a round as by `add_round`. If
    one process is lost, the other one is ended as ``cancelled``.

    Args:
        runs: Two runs whose passes have ``timing``, in the order of the turns.

    Raises:
        SpecError, DeviceBusyError: As for `add_round`.
    """
    cancel = cancel or Cancellation()
    for run in runs:
        _require_worker(run.header())
    with ExitStack() as held:
        pair = [held.enter_context(_resumed(run, cancel)) for run in runs]
        for supervision in pair:
            yield from supervision.start_unless_started()
        yield from _on_devices(pair, lambda: _run_pair(pair, places), wait=wait)


@contextmanager
def _resumed(run: RunDirectory, cancel: Cancellation) -> Iterator[Supervision]:
    """Hold a run that can have another round; raises as `add_round`."""
    header = run.header()
    if "timing" not in header.passes:
        raise SpecError("passes", ",".join(header.passes), "only the timing pass has rounds")
    with run.hold(), EventLog(run) as log:
        supervision = Supervision(run, header, log, cancel)
        supervision.resume()
        yield supervision


def _require_worker(header: Header) -> None:
    if header.spec.is_job:
        raise SpecError("workload", "job", f"run again as `{header.command_line()}`")
    require_chosen(header.python)


LOST_PARTNER = "the other process of its pair was lost"


def _run_pair(
    pair: Sequence[Supervision], places: tuple[PassPlace, PassPlace]
) -> Iterator[AnyEvent]:
    processes = []
    for supervision, place in zip(pair, places, strict=True):
        supervision.keep_record()
        number = supervision.builder.next_round
        processes.append(_PassProcess(supervision, "timing", number, place))
    yield from with_telemetry(pair, _follow_pair(processes))


def _follow_pair(processes: Sequence[_PassProcess]) -> Iterator[AnyEvent]:
    first, second = processes
    to_first, to_second = os.pipe(), os.pipe()
    try:
        try:
            yield from first.launch((to_first[0], to_second[1]))
            yield from second.launch((to_second[0], to_first[1]))
            os.write(to_first[1], FIRST_TURN)
        finally:
            # Only the workers may hold the ends: the death of one then wakes the other.
            for end in (*to_first, *to_second):
                os.close(end)
        yield from first.begin(second)
        yield from second.begin(first)
        while running := [process for process in processes if process.is_running]:
            if any(process.is_lost for process in processes):
                for process in running:
                    process.give_up(LOST_PARTNER)
                break
            for process in running:
                yield from process.poll(POLL_SECONDS / len(running))
        for process in processes:
            yield from process.finish()
    finally:
        for process in processes:
            process.close()
    for process in processes:
        yield from process.end()


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
    supervisions: Sequence[Supervision], work: Callable[[], Iterator[AnyEvent]], *, wait: bool
) -> Iterator[AnyEvent]:
    """Work with the devices of all these runs locked, and end the runs."""
    cancel = supervisions[0].cancel
    status: Outcome | None = None
    while not cancel.is_set():
        with ExitStack() as held:
            try:
                locks = [_locks_of(supervision.header.spec) for supervision in supervisions]
                held.enter_context(_locked(dict(ChainMap(*locks))))
            except DeviceBusyError as busy:
                if not wait:
                    for supervision in supervisions:
                        yield from supervision.end("cancelled")
                    raise
                for supervision in supervisions:
                    yield from supervision.notice_once(f"waiting: {busy}")
                cancel.wait(POLL_SECONDS)
                continue
            except (OSError, DamagedFileError, ClusterError) as error:
                status = _outcome_of_os_error(error)
                for supervision in supervisions:
                    yield from supervision.notice_once(f"the device cannot be locked: {error}")
            else:
                yield from work()
            break
    for supervision in supervisions:
        yield from supervision.end(status)


def locked_devices(devices: Sequence[str]) -> AbstractContextManager[None]:
    """Exclude other runs from these devices inside ``with``."""
    return _locked({device_lock(device): device for device in devices})


def _locks_of(spec: RunSpec) -> dict[Path, str]:
    """The locks of the devices of the spec's ranks, on all nodes, and their names.

    Those of every device of this host for a command, which may use any.
    """
    if spec.is_job:
        devices = ["cpu", *(f"cuda:{number}" for number in range(len(find_cuda().devices)))]
        return {device_lock(device): device for device in devices}
    hosts = hosts_of(spec.ranks)
    return {
        device_lock(device, node=host): f"{device} of {host}" if hosts else device
        for host, share in zip(hosts or (None,), shares(spec.ranks, len(hosts)), strict=True)
        for device in spec.devices[:share]
    }


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

    def run_passes(self) -> Iterator[AnyEvent]:
        """Run every pass in its own worker, the rounds of the timing pass one after another."""
        yield from with_telemetry([self], self._passes())

    def run_round(self, place: PassPlace | None) -> Iterator[AnyEvent]:
        """Run one more round of the timing pass, during which the record is ``running``."""
        self.keep_record()
        number = self.builder.next_round
        yield from with_telemetry([self], self._run_pass("timing", number, place))

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
                self.keep_record()

    def _run_pass(
        self, name: PassName, number: int = 1, place: PassPlace | None = None
    ) -> Iterator[AnyEvent]:
        process = _PassProcess(self, name, number, place)
        try:
            yield from process.launch()
            yield from process.begin()
            while process.is_running:
                yield from process.poll(POLL_SECONDS)
            yield from process.finish()
        finally:
            process.close()
        yield from process.end()

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


class _PassProcess:
    """One pass in its worker: launched, followed until it ends, hangs or is cancelled, closed."""

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
        self.watch = _Watch()

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
            yield from self._ended(_outcome_of_os_error(error), str(error))

    def begin(self, partner: _PassProcess | None = None) -> Iterator[AnyEvent]:
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
            yield from supervision.emit(Noticed(message=_describe_stop(stopped)))
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
                yield from self._supervision.emit(Noticed(message=_describe_left(left)))
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


class _Watch:
    """What was heard of a worker.

    Attributes:
        use: Of the processors, in the timing pass.
        partner: Of the process that it takes turns with.
        ended: Facts for the end of the pass.
    """

    def __init__(self) -> None:
        self.stage = "start"
        self.ended: dict[str, Any] = {}
        self.use: ProcessorUse | None = None
        self.partner: _Watch | None = None
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
        return text if self._stopped is None else f"{text}: {_describe_stop(self._stopped)}"

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


def _describe_left(names: Sequence[str]) -> str:
    processes = "1 process" if len(names) == 1 else f"{len(names)} processes"
    listed = ", ".join(sorted(set(names)))
    return f"the worker left {processes} running, which the supervisor ended: {listed}"


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


def _outcome_of_os_error(error: Exception) -> Outcome:
    return "disk-full" if getattr(error, "errno", 0) in DISK_FULL else "failed"


def main() -> int:
    return work_until_signal(lambda path, cancel: supervise(RunDirectory(path), cancel=cancel))


if __name__ == "__main__":
    sys.exit(main())
