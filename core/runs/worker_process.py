"""Start a worker, read its events, end it, and say how its pass ended. Imports no torch."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from sysbench.core.errors import DamagedFileError
from sysbench.core.formatting import first_line, format_bytes
from sysbench.core.machine.children import LineReader, child_environment, python_child
from sysbench.core.machine.devices import in_bus_order
from sysbench.core.machine.host_sampler import (
    ProcessorUse,
    is_going,
    kill_descendants,
    marked_processes,
    stopped_process,
)
from sysbench.core.record.blocks import PassName
from sysbench.core.record.events import (
    AnyEvent,
    Outcome,
    OutOfMemory,
    ResultReported,
    StageEntered,
    WorkerFailed,
    decode_event,
)
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import last_bytes, open_to_append

Report = Callable[[AnyEvent], None]
"""Sends one event to the supervisor."""


CACHE_FOLDER = "inductor-cache"
"""Folder in a timing pass's folder: the compiler's cache of a run that starts with an empty one."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over one spec, whose device is resolved; its folder exists.

    With ``capture`` an outside profiler watches: emit NVTX ranges, mark the measured steps.
    ``turns`` are descriptors by which it takes turns with another process, to read and to write.
    """

    spec: RunSpec
    name: PassName
    folder: str
    capture: bool = False
    turns: tuple[int, int] | None = None

    @property
    def path(self) -> Path:
        return Path(self.folder)


EVENT_FD_VARIABLE = "SYSBENCH_EVENT_FD"
PARENT_VARIABLE = "SYSBENCH_PARENT_PID"
WORKER_VARIABLE = "SYSBENCH_WORKER"
"""Name of one worker, by which the processes that it started are found."""
FIRST_TURN = b"."
"""What a process reads when it may take its turn; see `Turns` in the timing pass."""
CLOSED_PIPE_CODE = 74
"""Exit code of a worker whose pipe of events was closed by the code that it measured (EX_IOERR)."""
TERMINATE_SECONDS = 2.0
LOOK_SECONDS = 0.05
STACKS_SIGNAL = signal.SIGUSR1
"""Makes the worker write the stacks of its threads into its log."""
STACKS_SECONDS = 2.0
WARNINGS, NOTHING = "2", "99"
"""Minimum severity that torch's profiler logs. If CUPTI refuses it, it logs a warning and continues
without kernels; on the CPU its warnings are about CUDA.
"""
TERMINATED = re.compile(r"terminat(?:e|ing)\b.*\b(?:std::bad_alloc|c10::OutOfMemoryError)\b.*")
"""What the C++ runtimes of GCC and LLVM write after an uncaught failed allocation."""
LAST_BYTES = 2**16
UNKNOWN = (
    *("requested_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "largest_free_bytes"),
    *("capacity_bytes", "op", "expression"),
)
"""Fields of an `OutOfMemory` that its worker could not report."""
NATIVE_END = "an allocation failed in native code and ended the process, without details"


class WorkerProcess:
    """One pass that is being measured.

    Events come over a dedicated pipe; the worker's output goes to ``log``. The pass ends when this
    process ends, and the processes that it started are ended then.
    """

    def __init__(self, job: Job, log: Path, python: str = "") -> None:
        read_end, write_end = os.pipe()
        self._name = uuid.uuid4().hex
        try:
            with open_to_append(log) as output:
                self._begin = os.fstat(output.fileno()).st_size
                self.process = subprocess.Popen(
                    python_child("sysbench.core.worker", unbuffered=True, python=python),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(write_end, *(job.turns or ())),
                    start_new_session=True,
                    env={
                        **in_bus_order(child_environment(python, os.environ)),
                        EVENT_FD_VARIABLE: str(write_end),
                        PARENT_VARIABLE: str(os.getpid()),
                        WORKER_VARIABLE: self._name,
                        "KINETO_LOG_LEVEL": WARNINGS if job.spec.on_cuda else NOTHING,
                    },
                )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self.pid = self.process.pid
        self._log = log
        self._pipe = read_end
        self._lines = LineReader(read_end, self.process)
        self.ended = False
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(job) + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            # It died at once: `wait` reports this end like any other.
            self.ended = True

    def events(self, timeout_seconds: float) -> Iterator[AnyEvent]:
        """Yield events that arrived within the timeout; set ``ended`` at the end of the worker.

        Raises DamagedFileError for a line that is not an event.
        """
        for line in self._lines.read(timeout_seconds):
            yield decode_event(line)
        self.ended = self._lines.ended

    def where(self, model_file: str) -> str:
        """Return the current line of a user's model as ``, at model.py:12 in make``; empty for
        others.
        """
        place = place_in_code(self.pid, self._log, Path(model_file).parent) if model_file else ""
        return place and f", at {place}"

    def wait(self) -> int | None:
        """Return the exit code of an ended worker; minus the signal's number if killed.

        None if it goes on without its pipe, and is killed here.
        """
        try:
            return self.process.wait(TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
            return None

    def end_left_processes(self) -> list[str]:
        """Kill the processes that outlive the ended worker; return their names.

        Many end by themselves when they notice its end, and have some time for that.
        """
        deadline = time.monotonic() + TERMINATE_SECONDS
        while left := self._left_processes():
            if time.monotonic() > deadline:
                names = [name for name, _ in left]
                self._kill_left_processes()
                return names
            time.sleep(LOOK_SECONDS)
        return []

    def _left_processes(self) -> list[tuple[str, psutil.Process]]:
        return marked_processes(WORKER_VARIABLE, self._name, self.pid)

    def _kill_left_processes(self) -> None:
        """Kill them and wait for their end, which frees what they hold of the device.

        A dying process has no environment any more: a search does not find it again.
        """
        deadline = time.monotonic() + TERMINATE_SECONDS
        killed = set[psutil.Process]()
        while time.monotonic() < deadline:
            left = {process for _, process in self._left_processes()}
            if not left and not any(map(is_going, killed)):
                return
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            killed |= left
            time.sleep(LOOK_SECONDS)

    def refusal(self, stage: str, spec: RunSpec) -> OutOfMemory | None:
        """Return an out-of-memory event if uncaught C++ bad_alloc ended the worker; else None."""
        if self.process.returncode != -signal.SIGABRT:
            return None
        try:
            written = self._log.stat().st_size - self._begin
            message = uncaught_refusal(last_bytes(self._log, min(LAST_BYTES, max(0, written))))
        except (OSError, DamagedFileError):
            return None  # the log was deleted or replaced
        if not message:
            return None
        # CUDA's limit is that of its allocator: the host's memory has none.
        limit = None if spec.on_cuda else spec.memory_limit or None
        return OutOfMemory(
            phase=stage,
            message=message,
            stack=[],
            requested_bytes=None,
            free_bytes=None,
            allocated_bytes=None,
            limit_bytes=limit,
            capacity_bytes=limit,
            missing=dict.fromkeys(UNKNOWN, NATIVE_END),
        )

    def kill(self) -> None:
        if self.process.poll() is None:  # else its number may be another process's
            kill_descendants(self.pid)
            self.process.kill()
        self._kill_left_processes()

    def close(self) -> None:
        self.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        os.close(self._pipe)


def uncaught_refusal(written: bytes) -> str:
    """Return the line of the C++ runtime on an uncaught failed allocation; empty without one."""
    match = TERMINATED.search(written.decode("utf-8", "replace"))
    return match[0] if match else ""


def signal_name(number: int) -> str:
    """Return ``SIGSEGV``; for SIGKILL also who may have sent it."""
    hint = " (by a user, or by the kernel out of memory)" if number == signal.SIGKILL else ""
    return f"{signal.Signals(number).name}{hint}"


def place_in_code(pid: int, log: Path, folder: Path) -> str:
    """Return the innermost line under a folder that a worker is running: ``model.py:12 in make``.

    The worker writes the stacks of all its threads into its log for that. Empty if no thread is in
    code of that folder.
    """
    begin = log.stat().st_size
    os.kill(pid, STACKS_SIGNAL)
    deadline = time.monotonic() + STACKS_SECONDS
    frame = re.compile(rf'File "{re.escape(str(folder))}/([^"]+)", line (\d+) in (.+)')
    while time.monotonic() < deadline:
        written = log.read_bytes()[begin:].decode("utf-8", "replace")
        if match := frame.search(written):
            return f"{match[1]}:{match[2]} in {match[3]}"
        time.sleep(0.05)
    return ""


HANG_VARIABLE = "SYSBENCH_HANG_SECONDS"
HANG_SECONDS = 300.0
COMPILE_HANG_SECONDS = 1800.0
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MAX_DETAIL = 500
"""Characters of an exception's message in the sentence on a pass; its event has more."""


class PassWatch:
    """The events of one worker, and the outcome of its pass that follows from them.

    ``partner`` is that of the process that it takes turns with, ``ended`` are facts for the end.
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
