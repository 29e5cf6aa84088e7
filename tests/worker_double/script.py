"""The other side of the double: what it shall do, what it did, a command that uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.runs import job_directory, worker_process
from tests import factories

DOUBLE = Path(__file__).with_name("double.py")
FOLDER_VARIABLE = "WORKER_DOUBLE"
PATIENCE_SECONDS = 60
WORKER = [sys.executable, "-S", "-E", str(DOUBLE)]
SUPERVISOR = f"""
import sys
from sysbench.core.runs import supervisor, worker_process
worker_process.python_child = lambda *_, **__: {WORKER}
sys.exit(supervisor.main())
"""
MAIN = f"""
import sys
from sysbench.core.runs import job_directory, worker_process
worker_process.python_child = lambda *_, **__: {WORKER}
job_directory.python_child = lambda _, run: [sys.executable, "-P", "-c", {SUPERVISOR!r}, run]
from sysbench.tui.cli import main
sys.exit(main(sys.argv[1:]))
"""
PROGRAM = [sys.executable, "-P", "-c", MAIN]
"""The command line, its workers replaced by the double."""


def replace_workers(patch: pytest.MonkeyPatch, folder: Path, *, steps: bool = False) -> Script:
    """Have runs that this process supervises or starts measured by the double.

    Args:
        steps: Its workers take the steps of their specs.
    """
    patch.setenv(FOLDER_VARIABLE, str(folder))
    patch.setattr(worker_process, "python_child", lambda *_, **__: WORKER)
    supervise = [sys.executable, "-P", "-c", SUPERVISOR]
    patch.setattr(job_directory, "python_child", lambda _, run: [*supervise, run])
    script = Script(folder)
    script.write(steps=steps)
    return script


class Script:
    """The folder of the workers' double."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.write()

    def write(
        self,
        *,
        hold: Sequence[int] = (),
        die: Sequence[int] = (),
        abort: Sequence[int] = (),
        fail: Sequence[int] = (),
        starve: Sequence[int] = (),
        seconds: float = 0.0,
        steps: bool = False,
    ) -> None:
        """Say what the workers do, by their number from 1.

        Args:
            hold: Measure for ever.
            die: Are killed by a signal.
            abort: End in C++ code that was refused memory.
            fail: End with an exception.
            starve: End out of memory.
            seconds: Length of the measured part of the others.
            steps: The others tell the steps of their specs, 20 ms each.
        """
        timing = msgspec.to_builtins(factories.timing(factories.spread(10.0)))
        ends = {"hold": hold, "die": die, "abort": abort, "fail": fail, "starve": starve}
        script = {**ends, "seconds": seconds, "steps": steps, "timing": timing}
        (self.folder / "script.json").write_text(json.dumps(script))

    def log(self) -> list[dict[str, Any]]:
        """The starts and ends of workers so far."""
        try:
            text = (self.folder / "rounds.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines()]

    def starts(self) -> list[dict[str, Any]]:
        """The starts so far."""
        return [line for line in self.log() if line["what"] == "start"]

    def wait_for_start(self, number: int) -> int:
        """The process id of the worker of that number, once it has started."""
        wait_until(lambda: len(self.starts()) >= number)
        return int(self.starts()[number - 1]["pid"])


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until it holds; the limit is a net under a hang, not a measurement."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.02)


def command(*words: str) -> subprocess.Popen[str]:
    """The command line, its workers replaced by the double."""
    return subprocess.Popen(
        [*PROGRAM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ,
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a command, once it has ended."""
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err
