"""Start the recorder in a Python process that runs already, and follow its steps.

Python 3.14 and later run a script in another process of the same version (`sys.remote_exec`). The
process's own interpreter is asked to do so, since this program may run on an older one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from sysbench.core.errors import NotFoundError, SpecError
from sysbench.core.machine.host_sampler import is_going
from sysbench.core.record.events import AnyEvent, StageEntered
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.runs.supervised_run import POLL_SECONDS
from sysbench.core.storage import write_atomically
from sysbench.core.watch.supervise_job import (
    FOLDER_VARIABLE,
    HOOK,
    Decode,
    WatchedCommand,
    create_job,
    supervise_job,
)
from sysbench.core.watch.windows import NOTHING_ASKED, marks_folder

FIRST_VERSION = (3, 14)
PYTHON = re.compile(r"python(\d+(\.\d+)?t?)?")
ASK_SECONDS = 20.0
ATTACH_SECONDS = 60.0
"""Seconds until the process must have run the script: its main thread does so between two lines."""
ATTACHED = "attached"
"""File that the script makes once the recorder is in the process."""
RECORDER = "_sysbench_recorder"
"""Name of the recorder's module in a watched process, as in its ``sitecustomize``."""
SCRIPT = """\
import importlib.util, os, sys
if {recorder!r} not in sys.modules:
    spec = importlib.util.spec_from_file_location({recorder!r}, {path!r})
    module = sys.modules[{recorder!r}] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    os.environ.update({environ!r})
    module.start_recorder({folder!r})
    for name in {environ!r}:
        del os.environ[name]
open({attached!r}, "w").close()
"""
REMOTE_EXEC = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"


class RunningPython(NamedTuple):
    """A process that can be attached to: its interpreter and its command line."""

    pid: int
    interpreter: str
    command: list[str]


def running_python(pid: int) -> RunningPython:
    """Return a process of this user in which a script can be run.

    Raises:
        NotFoundError: There is no such process.
        SpecError: It belongs to another user, is no Python, is watched already, or its Python is
            older than `FIRST_VERSION`.
    """
    try:
        process = psutil.Process(pid)
        if process.uids().effective != os.geteuid():
            raise SpecError(
                "--pid", pid, f"a process of this user: it belongs to {process.username()}"
            )
        interpreter, command = process.exe(), process.cmdline()
        environ = process.environ()
    except psutil.NoSuchProcess as error:
        raise NotFoundError(f"there is no process {pid}") from error
    except psutil.AccessDenied as error:
        raise SpecError("--pid", pid, "a process that this user may read") from error
    if not PYTHON.fullmatch(Path(interpreter).name):
        name = Path(interpreter).name or process.name()
        raise SpecError("--pid", pid, f"a Python process: it runs {name}")
    if environ.get(FOLDER_VARIABLE):
        raise SpecError("--pid", pid, "a process that is not watched already")
    version = _version(interpreter)
    if version < FIRST_VERSION:
        raise SpecError(
            "--pid",
            pid,
            f"Python 3.14 or later: it runs {version[0]}.{version[1]}, which takes no script from "
            f"outside. Start it with `sysbench-tui watch -- {shlex.join(command)}`",
        )
    return RunningPython(pid, interpreter, command)


def _version(interpreter: str) -> tuple[int, int]:
    done = _ask(interpreter, "import sys; print(*sys.version_info[:2])")
    try:
        major, minor = map(int, done.stdout.split())
    except ValueError as error:
        raise SpecError("--pid", interpreter, "an interpreter that prints its version") from error
    return major, minor


def _ask(interpreter: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [interpreter, "-I", "-S", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=ASK_SECONDS,
        stdin=subprocess.DEVNULL,
    )


def execute_in(process: RunningPython, script: Path) -> None:
    """Let the process run a script at its next line; raises SpecError if it does not allow it."""
    done = _ask(process.interpreter, REMOTE_EXEC, str(process.pid), str(script))
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SpecError(
            "--pid",
            process.pid,
            f"a process that allows it ({why}). It needs the right to trace processes, and no "
            "PYTHON_DISABLE_REMOTE_DEBUG. Start it with "
            f"`sysbench-tui watch -- {shlex.join(process.command)}`",
        )


def attach_process(
    process: RunningPython,
    cancel: Cancellation,
    decode: Decode,
    asked: Mapping[str, str] = NOTHING_ASKED,
) -> tuple[RunDirectory, Iterator[AnyEvent]]:
    """Start the recorder in a process; return its run and the events until it ends.

    A cancellation ends the run; the process goes on, with the recorder in it. Other arguments are
    those of `supervise_job`.

    Raises:
        SpecError: The process does not allow it.
    """
    run = create_job(process.command)
    folder = marks_folder(run)
    folder.mkdir(parents=True)
    text = SCRIPT.format(
        recorder=RECORDER,
        path=str(HOOK / "step_recorder.py"),
        environ=dict(asked),
        folder=str(folder),
        attached=str(folder / ATTACHED),
    )
    script = folder / "attach.py"
    write_atomically(script, text.encode())
    try:
        execute_in(process, script)
    except SpecError:
        shutil.rmtree(run.path)
        raise
    return run, supervise_job(run, cancel, decode, asked, partial(_AttachedProcess, process.pid))


class _AttachedProcess(WatchedCommand):
    """A process that this one did not start: only its parent gets its exit code."""

    def __init__(self, pid: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pid = pid

    def follow(self) -> Iterator[AnyEvent]:
        supervision = self._supervision
        yield from self._began_as(self._pid)
        yield from supervision.emit(StageEntered(stage="import"))
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._pid)
            while is_going(process):
                if supervision.cancel.wait(POLL_SECONDS):
                    break
                yield from self._look()
                yield from self._take_windows()
                is_late = time.monotonic() - self._began > ATTACH_SECONDS
                if is_late and not (self._folder / ATTACHED).exists():
                    yield from supervision.notice_once(
                        f"process {self._pid} has not run the recorder's script yet: its main "
                        "thread is in native code, or waits"
                    )
        yield from self._look()
        if supervision.cancel.is_set():
            yield from self._end(None, "cancelled", "watching was stopped; the process goes on")
        else:
            yield from self._end(None, "finished", "the process ended")
