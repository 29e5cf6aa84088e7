"""Child processes that run a module of this package and end with their parent."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sysbench.core.errors import DamagedFileError
from sysbench.core.formatting import format_bytes
from sysbench.core.record.events import MAX_LINE_BYTES
from sysbench.core.storage import open_to_append

STANDARD_INPUT = 0
PYTHON_VARIABLE = "SYSBENCH_PYTHON"
PROBE = Path(__file__).with_name("probe")
"""Folder through which another Python imports this package."""


def python_child(
    module: str, *arguments: str, unbuffered: bool = False, python: str = ""
) -> list[str]:
    """Return the command that runs a module in this interpreter, or in another.

    ``-P`` keeps the working directory off the import path, so that a user's file with the name of a
    module is not imported. Another interpreter needs `child_environment`.
    """
    options = ["-P", *(["-u"] if unbuffered else [])]
    return [python or sys.executable, *options, "-m", module, *arguments]


def child_environment(python: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a process in that interpreter; empty means this one.

    In another one this package comes first on the import path, without the rest of this
    installation. A child starts its own children in its own interpreter.
    """
    variables = {name: value for name, value in environ.items() if name != PYTHON_VARIABLE}
    if not python:
        return variables
    variables.pop("PYTHONHOME", None)  # of this interpreter
    before = [variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else []
    return {**variables, "PYTHONPATH": os.pathsep.join([str(PROBE), *before])}


def start_session(command: list[str], log: Path) -> int:
    """Start a command in a new session, so that it outlives the terminal, and return its id."""
    with open_to_append(log) as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process.pid


class LineReader:
    """Complete lines that a process writes into a pipe, as they arrive.

    ``ended`` is true once the process has ended, also if one that it started holds the pipe open.
    """

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self.ended = False
        self._descriptor = descriptor
        self._process = process
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def read(self, timeout_seconds: float) -> list[bytes]:
        """Return the lines that were completed within the timeout, without their ends."""
        # Before the read, which then has all that the process wrote: a pipe holds less.
        self.ended = self._process.poll() is not None
        if not self._poll.poll(0 if self.ended else 1e3 * timeout_seconds):
            return []
        data = os.read(self._descriptor, 2**20)
        self.ended = self.ended or not data
        first, *others = data.split(b"\n")
        self._pieces.append(first)
        self._bytes += len(first)
        if self._bytes > MAX_LINE_BYTES:
            raise DamagedFileError(f"a line has more than {format_bytes(MAX_LINE_BYTES)}")
        if not others:
            return []
        *lines, rest = b"".join(self._pieces), *others
        self._pieces, self._bytes = [rest], len(rest)
        return lines


class LineChild:
    """A process of a module that answers lines of JSON with lines of JSON."""

    def __init__(self, module: str, python: str, **variables: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            python_child(module, str(os.getpid()), python=python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            env=child_environment(python, os.environ) | variables,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._files = self.process.stdin, self.process.stdout, self._log
        self.lines = LineReader(self.process.stdout.fileno(), self.process)

    def send(self, line: bytes) -> None:
        """Send one line; raises BrokenPipeError if the process has ended."""
        self._files[0].write(line + b"\n")
        self._files[0].flush()

    def last_line(self) -> str:
        """Return ``: `` and the last line of the log; empty if it has none."""
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def kill(self) -> None:
        """Kill it and what it started, without waiting for its end."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        for file in self._files:
            with suppress(BrokenPipeError):
                file.close()


def private_pipe(descriptor: int, mode: str) -> io.FileIO:
    """Return an unbuffered file for a pipe that no program and no fork of this process inherits."""
    os.set_inheritable(descriptor, False)
    pipe = io.FileIO(descriptor, mode)
    os.register_at_fork(after_in_child=pipe.close)
    return pipe


def take_standard_input() -> io.FileIO:
    """Return standard input for this process only: all other code reads /dev/null from now on."""
    pipe = private_pipe(os.dup(STANDARD_INPUT), "rb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, STANDARD_INPUT)
    os.close(null)
    return pipe


def die_with(pipe: io.FileIO) -> None:
    """End this process when the pipe ends, whose other end the parent holds open."""
    threading.Thread(target=_exit_with, args=(pipe,), daemon=True).start()


def _exit_with(pipe: io.FileIO) -> None:
    with suppress(OSError, ValueError):  # other code closed the descriptor
        while pipe.read(4096):
            pass
        os._exit(1)
