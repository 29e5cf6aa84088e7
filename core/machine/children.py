"""Child processes that run a module of this package, and the ties that end them with a parent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

STANDARD_INPUT = 0


def python_child(module: str, *arguments: str, unbuffered: bool = False) -> list[str]:
    """The command that runs a module in this interpreter.

    ``-P`` keeps the working directory off the import path: a file of the user's named like a
    module of ours must not be imported.
    """
    return [sys.executable, "-P", *(["-u"] if unbuffered else []), "-m", module, *arguments]


def start_detached(command: list[str], log: Path) -> int:
    """Start a command in a session of its own, so that it outlives the terminal.

    Args:
        log: Gets all that the process prints; appended to.

    Returns:
        The process id.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process.pid


def die_with_input() -> None:
    """End this process when its standard input does: the parent holds the other end."""
    threading.Thread(target=_exit_with_input, daemon=True).start()


def _exit_with_input() -> None:
    while os.read(STANDARD_INPUT, 4096):
        pass
    os._exit(1)
