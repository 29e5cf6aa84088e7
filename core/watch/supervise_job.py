"""Start a user's command unchanged, and follow the steps of its processes.

The command belongs to the user: nothing here ends it, and it runs on if this process dies. The
marks of its processes are files in the run, which this process reads.
"""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import psutil

from sysbench.core.compare.statistics import half_width, slowest_rank
from sysbench.core.errors import DamagedFileError, ForeignFileError, SpecError, SysbenchError
from sysbench.core.formatting import counted, format_duration
from sysbench.core.record.events import (
    AnyEvent,
    DeviceDescribed,
    FirstStepTimed,
    Noticed,
    Outcome,
    OutOfMemory,
    PassEnded,
    PassStarted,
    RankReading,
    RanksRead,
    ResultReported,
    StageEntered,
    StepsTimed,
    WarmupStepTimed,
)
from sysbench.core.record.job import JobRank, JobStep, JobWindow, step_phases
from sysbench.core.record.record import Kernels, Memory
from sysbench.core.record.timing import Timing
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import EventLog, RunDirectory, create_run
from sysbench.core.runs.supervised_run import POLL_SECONDS, PassPlace, Supervision, with_telemetry
from sysbench.core.runs.worker_process import signal_name
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import UNREADABLE_JSON
from sysbench.core.watch.job_block import (
    host_blocks,
    job_block,
    job_timing,
    rank_reading,
    read_host_facts,
)
from sysbench.core.watch.job_memory import (
    COUNT_FILES,
    counted_memory,
    read_counts,
    refused_request,
    refused_sentence,
    with_recorded_peak,
)
from sysbench.core.watch.job_steps import MarkFile, ProcessFacts, StepFold
from sysbench.core.watch.windows import NOTHING_ASKED, marks_folder

HOOK = Path(__file__).with_name("hook")
"""Folder whose ``sitecustomize`` starts the recorder in each Python of the command."""
FOLDER_VARIABLE = "SYSBENCH_WATCH"
LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "launch", "run", "bash", "sh", "env")
WARMUP_SHOWN = 5
LOOK_SECONDS = 1.0
"""Time between looks at the marks, which take processor time from the command."""
RUNS_ON = "the command runs on"
NO_HOLDERS = "the holders of memory are not known: {}"
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a shell for a command that cannot start."""


def job_name(command: Sequence[str]) -> str:
    """Return the script of a command, ``train.py``, else its program."""
    words = [Path(word).name for word in command if not word.startswith("-") and "=" not in word]
    scripts = [word for word in words if word.endswith((".py", ".sh", ".ipynb"))]
    name = (scripts or [word for word in words if word not in LAUNCHERS] or words or ["job"])[0]
    return "".join(char if char.isprintable() and char != ":" else "_" for char in name)[:60]


def create_job(command: Sequence[str], options: Sequence[str] = ()) -> RunDirectory:
    """Make the run of a command; raises SpecError as `job_spec`.

    Args:
        options: Of `watch`, as they were typed.
    """
    return create_run(job_spec(command), ["timing"], watch_options=options)


def job_spec(command: Sequence[str]) -> RunSpec:
    """Return the spec of a command; raises SpecError if it is empty, too long or not UTF-8."""
    if not command:
        raise SpecError("command", "", "a command after --: watch -- python train.py")
    try:
        words = msgspec.json.encode(list(command)).decode()
    except UnicodeEncodeError as error:
        raise SpecError("command", repr(command), "words of UTF-8") from error
    return RunSpec(workload="job", model=job_name(command), command=words)


Decode = Callable[[Path, int], tuple[Kernels | None, Path]]
"""Reads a trace of a number of marked steps; returns its kernels and the folder of its tables."""


def supervise_job(
    run: RunDirectory,
    cancel: Cancellation,
    decode: Decode,
    asked: Mapping[str, str] = NOTHING_ASKED,
    watch: Callable[[Supervision, Decode, Mapping[str, str]], WatchedCommand] | None = None,
) -> Iterator[AnyEvent]:
    """Run the command to its end, yielding each event as it is written.

    A cancellation sends SIGTERM to the command, once. The record has its exit code.

    Args:
        decode: Reads the trace of a window.
        asked: Variables of the environment that the recorder reads.
        watch: Makes what is followed, if it is not a command that is started here.
    """
    with ExitStack() as held:
        held.enter_context(run.hold())
        log = held.enter_context(EventLog(run))
        supervision = Supervision(run, run.header(), log, cancel)
        yield from supervision.start()
        job = (watch or WatchedCommand)(supervision, decode, asked)
        yield from with_telemetry([supervision], job.follow())
        yield from supervision.end()


class WatchedCommand:
    """The command's process, and the marks of all its processes.

    Attributes:
        number: Of the round; ``place`` is that in its experiment, if it has one.
    """

    def __init__(
        self,
        supervision: Supervision,
        decode: Decode | None = None,
        asked: Mapping[str, str] = NOTHING_ASKED,
        number: int = 1,
        place: PassPlace | None = None,
    ) -> None:
        self.number = number
        self.place = place or PassPlace()
        self._supervision = supervision
        self._decode = decode
        self._asked = asked
        self._command: list[str] = msgspec.json.decode(supervision.header.spec.command)
        self._folder = marks_folder(supervision.run, number)
        self._files: dict[Path, tuple[MarkFile, StepFold]] = {}
        self._live = _LiveSteps()
        self._began = time.monotonic()
        self._ended: float | None = None
        self._described = False
        self._looked = 0.0
        self._decoder = ThreadPoolExecutor(1)
        self._decoding: tuple[JobWindow, Future[Kernels]] | None = None
        self._taken: set[str] = set()
        self._counted: Memory | None = None

    def follow(self) -> Iterator[AnyEvent]:
        emit = self._supervision.emit
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            process = self._start()
        except OSError as error:
            missing = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            yield from self._began_as(0)
            yield from self._end(missing, "failed", f"{self._command[0]}: {error.strerror}")
            return
        yield from self._began_as(process.pid)
        yield from emit(StageEntered(stage="import"))
        is_asked, code = False, None
        while code is None:
            if self._supervision.cancel.is_set() and not is_asked:
                is_asked = True
                self._ask_to_end(process)
            code = self._wait(process)
            if code is not None or time.monotonic() - self._looked >= LOOK_SECONDS:
                self._looked = time.monotonic()
                yield from self._look()
                yield from self._take_windows()
                yield from self._take_counts()
        if code < 0:
            name = signal_name(-code)
            yield from self._end(code, "killed", f"the command was ended by {name}")
        else:
            outcome: Outcome = "failed" if code else "finished"
            yield from self._end(code, outcome, f"the command ended with code {code}")

    def _began_as(self, pid: int) -> Iterator[AnyEvent]:
        place = msgspec.structs.asdict(self.place)
        started = PassStarted(name="timing", pid=pid, round=self.number, **place)
        yield from self._supervision.emit(started)

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)

    def _take_windows(self, *, is_last: bool = False) -> Iterator[AnyEvent]:
        """Decode the newest window in a thread once its trace is there, then report its kernels.

        Args:
            is_last: Whether the command has ended: wait for the tables.
        """
        new = {name for _, fold in self._files.values() for name in fold.traces} - self._taken
        if new and self._decoding is None and self._decode is not None:
            self._taken |= new
            window = [row for row in self._windows() if row.trace in new][-1]
            source, run = self._folder / window.trace, self._supervision.run
            work = self._decoder.submit(_keep_tables, self._decode, source, window.count, run)
            self._decoding = (window, work)
        if self._decoding is None or not (is_last or self._decoding[1].done()):
            return
        window, work = self._decoding
        self._decoding = None
        try:
            kernels = work.result()
        except (OSError, SysbenchError) as error:
            yield from self._supervision.notice_once(f"the trace {window.trace}: {error}")
        else:
            yield from self._report_window(window, kernels, is_last=is_last)
        if is_last:
            yield from self._take_windows(is_last=True)

    def _report_window(
        self, window: JobWindow, kernels: Kernels, *, is_last: bool
    ) -> Iterator[AnyEvent]:
        """Report the kernels of a window, and while the command runs its steps so far."""
        supervision = self._supervision
        timing = job_timing(self._steps(), RUNS_ON)
        if not is_last:
            yield from self._report_steps(timing)
        if timing is not None:
            slowed = kernels.step_ms / timing.step.median_ms
            kernels = msgspec.structs.replace(kernels, perturbation=slowed)
        data = msgspec.to_builtins(kernels)
        yield from supervision.emit(ResultReported(block="kernels", data=data))
        if not is_last:
            supervision.keep_record()
        is_slowed = window.cost_ms is not None and window.cost_ms > 0
        cost = f", which took {format_duration(1e6 * (window.cost_ms or 0))}" if is_slowed else ""
        count = f"{counted(window.count, 'step')} of rank {window.rank}"
        message = f"traced {count} from step {window.step} on{cost}"
        yield from supervision.emit(Noticed(message=message))

    def _take_counts(self) -> Iterator[AnyEvent]:
        """Report the newest steps whose memory was counted; the snapshot is read at the end."""
        new = {path.name for path in self._folder.glob(COUNT_FILES)} - self._taken
        if not new:
            return
        self._taken |= new
        supervision = self._supervision
        try:
            files = [
                row for row in read_counts(self._folder, supervision.run.path) if not row.message
            ]
            newest = max(files, key=lambda file: file.time_ns, default=None)
            memory = self._counted = counted_memory(newest) if newest else None
        except (OSError, DamagedFileError) as error:
            yield from supervision.notice_once(NO_HOLDERS.format(error))
            return
        if memory is not None:
            yield from self._report_steps(job_timing(self._steps(), RUNS_ON))
            data = msgspec.to_builtins(memory)
            yield from supervision.emit(ResultReported(block="memory", data=data))
            supervision.keep_record()

    def _report_memory(self) -> Iterator[AnyEvent]:
        """Report the request that failed, and the last steps whose memory was counted."""
        supervision = self._supervision
        try:
            files = sorted(
                read_counts(self._folder, supervision.run.path), key=lambda file: file.time_ns
            )
            refused = [refused_request(file) for file in files if file.message]
            counted = [counted_memory(file) for file in files if not file.message][-1:]
        except (OSError, DamagedFileError) as error:
            yield from supervision.notice_once(NO_HOLDERS.format(error))
            return
        # The state when a request failed, else the history of the last counted steps.
        snapshots = [file for file in files if file.snapshot]
        if snapshots:
            kept = next((file for file in snapshots if file.message), snapshots[-1])
            try:
                history = [file for file in snapshots if not file.message][-1:]
                for file, memory in zip(history, counted, strict=False):
                    counted = [with_recorded_peak(memory, self._folder / file.snapshot_name)]
                supervision.run.snapshot_path.parent.mkdir(exist_ok=True)
                shutil.move(self._folder / kept.snapshot_name, supervision.run.snapshot_path)
            except (OSError, DamagedFileError) as error:
                yield from supervision.notice_once(f"the allocator's snapshot: {error}")
        for memory in counted:
            if memory != self._counted:  # not reported while the command ran, or without a peak
                data = msgspec.to_builtins(memory)
                yield from supervision.emit(ResultReported(block="memory", data=data))
        for event, alive in refused[:1]:
            yield from supervision.emit(event)
            data = msgspec.to_builtins(alive)
            yield from supervision.emit(ResultReported(block="oom", data=data))

    def _start(self) -> subprocess.Popen[bytes]:
        # Its streams, descriptors, group and terminal are this process's own.
        return subprocess.Popen(self._command, env=self._environ(), close_fds=False)

    def _environ(self) -> dict[str, str]:
        environ = dict(os.environ)
        before = [environ["PYTHONPATH"]] if environ.get("PYTHONPATH") else []
        environ["PYTHONPATH"] = os.pathsep.join([str(HOOK), *before])
        environ[FOLDER_VARIABLE] = str(self._folder)
        environ.update(self._asked)
        return environ

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def _look(self) -> Iterator[AnyEvent]:
        """Take new marks, and report the steps of the first rank."""
        emit, supervision = self._supervision.emit, self._supervision
        while not supervision.samples.empty():
            yield from emit(supervision.sampled(supervision.samples.get()))
        try:
            self._read_marks()
        except (OSError, DamagedFileError) as error:
            yield from supervision.notice_once(f"marks cannot be read: {error}")
        if not self._described and (facts := self._device_facts()):
            self._described = True
            yield from emit(DeviceDescribed(facts=facts))
        steps = self._steps()
        if steps:
            for event in self._live.take(steps[min(steps)]):
                yield from emit(event)
            slowest, late_ms = slowest_rank(steps) or (None, None)
            yield from emit(RanksRead(ranks=[*self._readings()], slowest=slowest, late_ms=late_ms))

    def _readings(self) -> Iterator[RankReading]:
        for file, fold in sorted(self._files.values(), key=lambda pair: pair[1].rank):
            if fold.steps and file.facts is not None:
                yield rank_reading(fold.steps, _resident_bytes(file.facts))

    def _read_marks(self) -> None:
        for path in sorted(self._folder.glob("*.jsonl")):
            if path not in self._files:
                file = MarkFile(path, self._supervision.run.path)
                marks = [*file.read()]
                if file.facts is None:
                    continue  # its first line is being written
                rank = file.facts.rank
                fold = StepFold(len(self._files) if rank is None else rank, file.facts.epoch_ns)
                self._files[path] = (file, fold)
            else:
                file, fold = self._files[path]
                marks = [*file.read()]
            for mark in marks:
                fold.take(mark)

    def _device_facts(self) -> dict[str, Any]:
        """Facts on torch and the device of the first process that reported them."""
        known = [file.facts for file, fold in self._files.values() if file.facts and fold.steps]
        if not known:
            return {}
        facts = known[0]
        device = {"device": {"name": facts.device_name}} if facts.device_name else {}
        return {
            "torch": {"version": facts.torch, "python": facts.python},
            "settings": {"device": facts.device},
            **device,
        }

    def _steps(self) -> dict[int, list[JobStep]]:
        return {
            fold.rank: fold.steps
            for _, fold in sorted(self._files.values(), key=lambda pair: pair[1].rank)
            if fold.steps
        }

    def _ranks(self) -> list[JobRank]:
        rows = []
        for file, fold in sorted(self._files.values(), key=lambda pair: pair[1].rank):
            if (facts := file.facts) is None:
                continue
            torn = f"{file.unreadable} of its lines cannot be read" if file.unreadable else ""
            rows.append(
                JobRank(
                    rank=fold.rank,
                    host=facts.host,
                    pid=facts.pid,
                    program=facts.program,
                    device=facts.device,
                    device_name=facts.device_name,
                    python=facts.python,
                    torch=facts.torch,
                    problem=file.problem or torn,
                )
            )
        return rows

    def _seconds(self) -> float:
        """Time since the command started, up to its end."""
        return (self._ended or time.monotonic()) - self._began

    def _timing(self, steps: Mapping[int, Sequence[JobStep]], detail: str) -> Timing | None:
        return job_timing(steps, detail)

    def _judged(self, timing: Timing | None, outcome: Outcome, detail: str) -> tuple[Outcome, str]:
        return outcome, detail

    def _end(
        self, code: int | None, outcome: Outcome, detail: str, **more: Any
    ) -> Iterator[AnyEvent]:
        """Report the steps and the end, whose code may be unknown.

        ``more`` are further facts of the event PassEnded.
        """
        supervision = self._supervision
        self._ended = self._ended or time.monotonic()
        for _, fold in self._files.values():
            fold.finish()
        steps = self._steps()
        for rank in self._ranks():
            if rank.problem:
                message = f"process {rank.pid} was not recorded whole: {rank.problem}"
                yield from supervision.emit(Noticed(message=message))
        timing = self._timing(steps, detail)
        outcome, detail = self._judged(timing, outcome, detail)
        yield from self._take_windows(is_last=True)
        for event in self._report_memory():
            if isinstance(event, OutOfMemory) and code:
                outcome, detail = "oom", f"{refused_sentence(event)}; {detail}"
            yield event
        yield from self._report_steps(timing, code)
        code = 128 - code if code is not None and code < 0 else code
        supervision.outcomes.append(("timing", outcome))
        yield from supervision.emit(
            PassEnded(
                name="timing",
                outcome=outcome,
                detail=detail,
                seconds=self._seconds(),
                exit_code=code,
                round=self.number,
                side=self.place.side,
                **more,
            )
        )

    def _windows(self) -> list[JobWindow]:
        return [row for _, fold in self._files.values() for row in fold.windows]

    def _report_steps(self, timing: Timing | None, code: int | None = None) -> Iterator[AnyEvent]:
        """Report the timing and the steps of a command that ended with a code, or runs on."""
        emit = self._supervision.emit
        if timing is not None:
            data = msgspec.to_builtins(timing)
            yield from emit(ResultReported(block="timing", data=data))
        ended_by = max(0, -(code or 0))
        ranks, steps = self._ranks(), self._steps()
        block = job_block(
            self._command,
            128 + ended_by if ended_by else code,
            ended_by,
            1e3 * self._seconds(),
            ranks,
            steps,
            [row for _, fold in self._files.values() for row in fold.loaders],
            self._windows(),
        )
        try:
            facts = read_host_facts(self._folder, self._supervision.run.path)
        except (OSError, DamagedFileError, *UNREADABLE_JSON) as error:
            yield from self._supervision.notice_once(f"samples cannot be read: {error}")
            facts = {}
        for pid, fact in facts.items():
            if fact.failure:
                message = f"the lines of process {pid} are not sampled: {fact.failure}"
                yield from self._supervision.notice_once(message)
        pids = {rank.rank: rank.pid for rank in ranks}
        hosts = host_blocks(facts, pids, steps, block.warmup_steps)
        block = msgspec.structs.replace(block, hosts=hosts)
        yield from emit(ResultReported(block="job", data=msgspec.to_builtins(block)))


def _keep_tables(decode: Decode, trace: Path, count: int, run: RunDirectory) -> Kernels:
    """Decode all steps that the profiler marked, and keep the tables as a trace pass does."""
    kernels, tables = decode(trace, count)
    if kernels is None:
        raise ForeignFileError("no operators")
    shutil.copytree(tables, run.pass_folder("trace"), dirs_exist_ok=True)
    with trace.open("rb") as plain, gzip.open(run.trace_path, "wb") as packed:
        shutil.copyfileobj(plain, packed)
    return kernels


def _resident_bytes(facts: ProcessFacts) -> int | None:
    """Return the memory of a process on this host; None of another host's or an ended one."""
    if facts.host != socket.gethostname():
        return None
    try:
        return psutil.Process(facts.pid).memory_info().rss
    except psutil.Error:
        return None


class _LiveSteps:
    """Reports the steps of one rank as a timing pass does: the warm-up, then batches."""

    def __init__(self) -> None:
        self._reported = 0
        self._samples: list[float] = []

    def take(self, steps: Sequence[JobStep]) -> Iterator[AnyEvent]:
        new = steps[self._reported :]
        if not new:
            return
        if self._reported == 0:
            yield StageEntered(stage="warmup")
            yield FirstStepTimed(step_ms=new[0].wall_ms)
        for number, step in enumerate(new, start=self._reported):
            if number < WARMUP_SHOWN:
                yield WarmupStepTimed(index=number, step_ms=step.wall_ms)
        measured = new[max(0, WARMUP_SHOWN - self._reported) :]
        self._reported = len(steps)
        if not measured:
            return
        if not self._samples:
            yield StageEntered(stage="measure")
        first = len(self._samples)
        self._samples += [step.wall_ms for step in measured]
        newest = self._samples[-MAX_WINDOW:]
        width = half_width(newest)
        parts = [step_phases(step) for step in measured]
        yield StepsTimed(
            first_index=first,
            step_ms=[step.wall_ms for step in measured],
            phases_ms={name: [part[name] for part in parts] for name in parts[0]},
            median_ms=statistics.median(newest),
            half_width=width if width != float("inf") else None,
        )


MAX_WINDOW = 2000
"""Newest steps whose median is shown live."""
