"""Child processes that run a module of this package and end with their parent."""

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
PROBE = Path(__file__).with_name("probe")
"""Folder through which another Python imports this package."""


def python_child(
    module: str, *arguments: str, unbuffered: bool = False, python: str = ""
) -> list[str]:
    """Return the command that runs a module in this interpreter, or in another.

    ``-P`` keeps the working directory off the import path, so that a user's file with the name of a
    module is not imported.

    Args:
        python: Path of another interpreter; its process needs `child_environment`.
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
    """Start a command in a new session, so that it outlives the terminal, and return its id.

    Args:
        log: File to which the process's output is appended.
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
    """End this process when its standard input closes, which the parent holds open."""
    threading.Thread(target=_exit_with_input, daemon=True).start()


def _exit_with_input() -> None:
    while os.read(STANDARD_INPUT, 4096):
        pass
    os._exit(1)
