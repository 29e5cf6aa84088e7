"""Child processes that run a module of this package, and that end with their parent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from ..storage import open_to_append

STANDARD_INPUT = 0


def python_child(module: str, *arguments: str, unbuffered: bool = False) -> list[str]:
    """The command that runs a module in this interpreter.

    ``-P`` keeps the working directory off the import path, where a user's file with the name of a
    module would be imported in its place.
    """
    return [sys.executable, "-P", *(["-u"] if unbuffered else []), "-m", module, *arguments]


def start_detached(command: list[str], log: Path) -> int:
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
