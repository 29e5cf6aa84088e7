"""Start a user's command unchanged, and follow the steps of its processes.

The command belongs to the user: nothing here ends it, and it runs on if this process dies. The
marks of its processes are files in the run, which this process reads.
"""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.compare.statistics import half_width
from sysbench.core.errors import DamagedFileError, SpecError, SysbenchError
from sysbench.core.inspection.decoding import Decoding
from sysbench.core.record.events import (
    AnyEvent,
    DeviceDescribed,
    FirstStepTimed,
    Noticed,
    Outcome,
    PassEnded,
    PassStarted,
    ResultReported,
    StageEntered,
    StepsTimed,
    WarmupStepTimed,
)
from sysbench.core.record.job import JobRank, JobStep, JobWindow, step_phases
from sysbench.core.record.timing import Timing
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import EventLog, RunDirectory, create_run
from sysbench.core.runs.supervisor import POLL_SECONDS, Supervision, with_telemetry
from sysbench.core.runs.worker_process import signal_name
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import UNREADABLE_JSON
from sysbench.core.watch.hook.step_recorder import STEP_VARIABLE, WINDOW_VARIABLE
from sysbench.core.watch.host_facts import host_blocks, read_host_facts
from sysbench.core.watch.job_block import job_block, job_timing
from sysbench.core.watch.job_steps import StepFold
from sysbench.core.watch.marks import MarkFile
from sysbench.core.watch.windows import marks_folder

HOOK = Path(__file__).with_name("hook")
"""Folder whose ``sitecustomize`` starts the recorder in each Python of the command."""
FOLDER_VARIABLE = "SYSBENCH_WATCH"
LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "launch", "run", "bash", "sh", "env")
WARMUP_SHOWN = 5
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a shell for a command that cannot start."""


def job_name(command: Sequence[str]) -> str:
    """Return the script of a command, ``train.py``, else its program."""
    words = [Path(word).name for word in command if not word.startswith("-") and "=" not in word]
    scripts = [word for word in words if word.endswith((".py", ".sh", ".ipynb"))]
    name = (scripts or [word for word in words if word not in LAUNCHERS] or words or ["job"])[0]
    return "".join(char if char.isprintable() and char != ":" else "_" for char in name)[:60]


def create_job(command: Sequence[str]) -> RunDirectory:
    """Make the run of a command; raises SpecError if it is empty, too long or not UTF-8."""
    if not command:
        raise SpecError("command", "", "a command after --: watch -- python train.py")
    try:
        words = msgspec.json.encode(list(command)).decode()
    except UnicodeEncodeError as error:
        raise SpecError("command", repr(command), "words of UTF-8") from error
    spec = RunSpec(workload="job", model=job_name(command), command=words)
    return create_run(spec, ["timing"])


def supervise_job(
    run: RunDirectory, cancel: Cancellation, window: str = "", step_on: str = ""
) -> Iterator[AnyEvent]:
    """Run the command to its end, yielding each event as it is written.

    A cancellation sends SIGTERM to the command, once. The record has its exit code.

    Args:
        window: ``100:3`` traces three steps after the hundredth; empty for none.
        step_on: ``package.module:function`` whose calls are the steps; empty for optimizer steps.
    """
    with ExitStack() as held:
        held.enter_context(run.hold())
        log = held.enter_context(EventLog(run))
        supervision = Supervision(run, run.header(), log, cancel)
        yield from supervision.start()
        job = _WatchedCommand(supervision, window, step_on)
        yield from with_telemetry([supervision], job.follow())
        yield from supervision.end()


class _WatchedCommand:
    """The command's process, and the marks of all its processes."""

    def __init__(self, supervision: Supervision, window: str, step_on: str) -> None:
        self._supervision = supervision
        self._window = window
        self._step_on = step_on
        self._command: list[str] = msgspec.json.decode(supervision.header.spec.command)
        self._folder = marks_folder(supervision.run)
        self._files: dict[Path, tuple[MarkFile, StepFold]] = {}
        self._live = _LiveSteps()
        self._began = time.monotonic()
        self._described = False

    def follow(self) -> Iterator[AnyEvent]:
        emit = self._supervision.emit
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            process = self._start()
        except OSError as error:
            missing = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            yield from emit(PassStarted(name="timing", pid=0))
            yield from self._end(missing, "failed", f"{self._command[0]}: {error.strerror}")
            return
        yield from emit(PassStarted(name="timing", pid=process.pid))
        yield from emit(StageEntered(stage="import"))
        is_asked, code = False, None
        while code is None:
            if self._supervision.cancel.is_set() and not is_asked:
                is_asked = True
                process.send_signal(signal.SIGTERM)
            code = self._wait(process)
            yield from self._look()
        if code < 0:
            name = signal_name(-code)
            yield from self._end(code, "killed", f"the command was ended by {name}")
        else:
            outcome: Outcome = "failed" if code else "finished"
            yield from self._end(code, outcome, f"the command ended with code {code}")

    def _report_windows(
        self, windows: Sequence[JobWindow], timing: Timing | None
    ) -> Iterator[AnyEvent]:
        """Report the kernels of the last window, and keep its tables as a trace pass does."""
        supervision = self._supervision
        if not windows:
            return
        window = windows[-1]
        source = self._folder / window.trace
        try:
            # All steps that the profiler marked, so that the tables are per step.
            decoding = Decoding(source, steps=(0, window.count - 1))
            kernels = decoding.run(lambda progress: None).kernels
        except SysbenchError as error:
            yield from supervision.notice_once(f"the trace of {window.trace}: {error}")
            return
        if kernels is None:
            yield from supervision.notice_once(f"the trace of {window.trace} has no operators")
            return
        target = supervision.run.pass_folder("trace")
        shutil.copytree(decoding.entry.as_run.pass_folder("trace"), target, dirs_exist_ok=True)
        with source.open("rb") as plain, gzip.open(supervision.run.trace_path, "wb") as packed:
            shutil.copyfileobj(plain, packed)
        if timing is not None:
            slowed = kernels.step_ms / timing.step.median_ms
            kernels = msgspec.structs.replace(kernels, perturbation=slowed)
        data = msgspec.to_builtins(kernels)
        yield from supervision.emit(ResultReported(block="kernels", data=data))

    def _start(self) -> subprocess.Popen[bytes]:
        environ = dict(os.environ)
        before = [environ["PYTHONPATH"]] if environ.get("PYTHONPATH") else []
        environ["PYTHONPATH"] = os.pathsep.join([str(HOOK), *before])
        environ[FOLDER_VARIABLE] = str(self._folder)
        if self._window:
            environ[WINDOW_VARIABLE] = self._window
        if self._step_on:
            environ[STEP_VARIABLE] = self._step_on
        # Its streams, descriptors, group and terminal are this process's own.
        return subprocess.Popen(self._command, env=environ, close_fds=False)

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

    def _end(self, code: int, outcome: Outcome, detail: str) -> Iterator[AnyEvent]:
        supervision = self._supervision
        for _, fold in self._files.values():
            fold.finish()
        steps, ranks = self._steps(), self._ranks()
        seconds = time.monotonic() - self._began
        for rank in ranks:
            if rank.problem:
                message = f"process {rank.pid} was not recorded whole: {rank.problem}"
                yield from supervision.emit(Noticed(message=message))
        timing = job_timing(steps, detail)
        if timing is not None:
            data = msgspec.to_builtins(timing)
            yield from supervision.emit(ResultReported(block="timing", data=data))
        ended_by = max(0, -code)
        folds = [fold for _, fold in self._files.values()]
        loaders = [row for fold in folds for row in fold.loaders]
        windows = [row for fold in folds for row in fold.windows]
        yield from self._report_windows(windows, timing)
        code = 128 + ended_by if ended_by else code
        block = job_block(
            self._command, code, ended_by, 1e3 * seconds, ranks, steps, loaders, windows
        )
        try:
            facts = read_host_facts(self._folder, supervision.run.path)
        except (OSError, DamagedFileError, *UNREADABLE_JSON) as error:
            yield from supervision.notice_once(f"samples cannot be read: {error}")
            facts = {}
        pids = {rank.rank: rank.pid for rank in ranks}
        hosts = host_blocks(facts, pids, steps, block.warmup_steps)
        block = msgspec.structs.replace(block, hosts=hosts)
        yield from supervision.emit(ResultReported(block="job", data=msgspec.to_builtins(block)))
        supervision.outcomes.append(("timing", outcome))
        yield from supervision.emit(
            PassEnded(
                name="timing", outcome=outcome, detail=detail, seconds=seconds, exit_code=code
            )
        )


class _LiveSteps:
    """Reports the steps of one rank as a timing pass does: the warm-up, then batches."""

    def __init__(self) -> None:
        self._reported = 0
        self._samples: list[float] = []

    def take(self, steps: Sequence[JobStep]) -> Iterator[AnyEvent]:
        new = steps[self._reported :]
        if not new:
            return
        walls = [step.wall_ms for step in steps]
        if self._reported == 0:
            yield StageEntered(stage="warmup")
            yield FirstStepTimed(step_ms=walls[0])
        for number, step in enumerate(new, start=self._reported):
            if number < WARMUP_SHOWN:
                yield WarmupStepTimed(index=number, step_ms=step.wall_ms)
        measured = [*new][max(0, WARMUP_SHOWN - self._reported) :]
        self._reported = len(steps)
        if not measured:
            return
        if not self._samples:
            yield StageEntered(stage="measure")
        first = len(self._samples)
        self._samples += [step.wall_ms for step in measured]
        width = half_width(self._samples[-MAX_WINDOW:])
        parts = [step_phases(step) for step in measured]
        yield StepsTimed(
            first_index=first,
            step_ms=[step.wall_ms for step in measured],
            phases_ms={name: [part[name] for part in parts] for name in parts[0]},
            median_ms=sorted(self._samples[-MAX_WINDOW:])[len(self._samples[-MAX_WINDOW:]) // 2],
            half_width=width if width != float("inf") else None,
        )


MAX_WINDOW = 2000
"""Newest steps whose median is shown live."""
