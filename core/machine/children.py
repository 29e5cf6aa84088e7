"""Child processes that run a module of this package, and that end with their parent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from sysbench.core.storage import open_to_append

STANDARD_INPUT = 0
PYTHON_VARIABLE = "SYSBENCH_PYTHON"
"""Names the Python that workers run in."""
PROBE = Path(__file__).with_name("probe")
"""The folder by which another Python imports this package."""


def python_child(
    module: str, *arguments: str, unbuffered: bool = False, python: str = ""
) -> list[str]:
    """The command that runs a module in this interpreter, or in another.

    ``-P`` keeps the working directory off the import path, where a user's file with the name of a
    module would be imported in its place.

    Args:
        python: Path of another interpreter; its process needs `child_environment`.
    """
    options = ["-P", *(["-u"] if unbuffered else [])]
    return [python or sys.executable, *options, "-m", module, *arguments]


def child_environment(python: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process in that interpreter; empty is this one.

    In another one this package comes first on the import path, and nothing else of this
    installation. A child starts its own children in its own interpreter, whatever was chosen here.
    """
    kept = {name: value for name, value in environ.items() if name != PYTHON_VARIABLE}
    if not python:
        return kept
    kept.pop("PYTHONHOME", None)  # of this interpreter
    before = [kept["PYTHONPATH"]] if kept.get("PYTHONPATH") else []
    return {**kept, "PYTHONPATH": os.pathsep.join([str(PROBE), *before])}


def start_session(command: list[str], log: Path) -> int:
    """Start a command in a new session, so that it outlives the terminal.

    Args:
        log: File to which the process's output is appended.

    Returns:
        The process id.
    """
    with open_to_append(log) as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process.pid


def die_with_input() -> None:
    """End this process with its standard input, whose other end the parent holds."""
    threading.Thread(target=_exit_with_input, daemon=True).start()


def _exit_with_input() -> None:
    while os.read(STANDARD_INPUT, 4096):
        pass
    os._exit(1)
