"""Child processes that run a module of this package, and that end with their parent."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from sysbench.core.storage import open_to_append

_STOPPED = ("T", "t")
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the child subreaper: orphaned descendants are re-parented to this process, not init.

    Linux only; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(pid: int) -> None:
    """Kill all descendants of a process, but not the process itself."""
    import psutil  # lazy: commands import this module at start

    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for process in descendants:
        try:
            process.kill()
        except psutil.NoSuchProcess:  # it ended meanwhile
            continue


def stopped_process(pid: int) -> int | None:
    """A process that a signal or a debugger has stopped: this one, else one of its descendants.

    Cheap enough to ask while something is measured: it reads the entries of these processes only.
    Linux only; elsewhere, and where none is stopped, None.
    """
    waiting = [pid]
    while waiting:
        process = Path("/proc", str(waiting.pop()))
        try:
            # The state follows the name, which may hold blanks and brackets.
            state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            children = (process / "task" / process.name / "children").read_text().split()
        except (OSError, IndexError):  # it ended, or this is no Linux
            continue
        if state in _STOPPED:
            return int(process.name)
        waiting += map(int, children)
    return None


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, however it dies.

    Linux only; elsewhere the end of standard input has to serve.

    Args:
        parent: Id of the parent, passed on by it: this process may have been orphaned already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent died before the request was in place.
        os._exit(1)


def limit_data_memory(limit_bytes: int) -> None:
    """Let the data of this process grow by ``limit_bytes``; beyond them MemoryError is raised."""
    import psutil  # lazy: commands import this module at start

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = psutil.Process().memory_info().data + limit_bytes
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


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
