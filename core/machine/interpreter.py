"""The Python that workers run in: this program's own, or one of the user's with torch.

Models, torch and CUDA are in the interpreter that ``--python`` or ``SYSBENCH_PYTHON`` names.
`probe/ask.py` reports its contents before anything else is started in it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path

import msgspec

from sysbench.core.errors import InterpreterError
from sysbench.core.machine.children import PROBE, PYTHON_VARIABLE, child_environment
from sysbench.core.storage import UNREADABLE_JSON, home, make_folder, open_to_append, read_regular

NEEDED = {"torch": "2.9", "msgspec": "0.21", "numpy": "1.26", "psutil": "5.9"}
"""Minimum versions of the packages that workers import, as in pyproject.toml."""
REPORTED = (*NEEDED, "triton", "nvtx", "nvidia-ml-py")
OLDEST = (3, 11)
PROGRAM = "sysbench.core"
_OWN = Path(__file__).parents[1] / "__init__.py"
PATIENCE_SECONDS = 30.0
"""An interpreter on a cold network disk may take some seconds; it imports no torch."""
MAX_LINES = 2**10
MAX_LINE_BYTES = 2**20
"""Limits on the output of a program that may not be a Python."""
MARK = b"sysbench-tui: "
OPTION = "--python"
CHOSEN = "pythons.jsonl"
"""In the data folder: the interpreters that users chose, one JSON text a line."""


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """Facts reported by an interpreter.

    One that is too old reports ``version`` only. ``absent`` are required modules, ``missing``
    requested ones that it does not have; ``program`` and ``torch`` are paths of an ``__init__.py``,
    ``libraries`` versions of the requested imports. ``headers`` is where its ``Python.h`` would be.
    """

    version: str
    environment: str = ""
    search_path: list[str] = []
    absent: list[str] = []
    program: str = ""
    torch: str = ""
    has_pip: bool = False
    packages: dict[str, str] = {}
    libraries: dict[str, str] = {}
    missing: list[str] = []
    headers: str = ""


def named_python(text: str) -> str:
    """Return the absolute path of an interpreter, given its file, environment or command.

    Links are not resolved: a virtual environment's interpreter is a link. Raises InterpreterError.
    """
    path = Path(os.path.abspath(os.path.expanduser(text)))
    if path.is_dir():
        inside = path / "bin" / "python"
        if not inside.is_file():
            raise InterpreterError(text, f"a folder without {inside.relative_to(path)}")
        path = inside
    elif not path.exists() and "/" not in text and (command := shutil.which(text)):
        path = Path(command)
    if not path.exists():
        raise InterpreterError(text, "there is no such file")
    if not os.access(path, os.X_OK) or not path.is_file():
        raise InterpreterError(text, "it is not an executable")
    return str(path)


def chosen_python() -> str:
    """Return the interpreter of workers that start now; empty for this program's own.

    ``SYSBENCH_PYTHON`` names it, which ``--python`` sets. Without it the active virtual environment
    is used if it has torch and this interpreter has none. Raises InterpreterError.
    """
    configured = os.environ.get(PYTHON_VARIABLE, "")
    if configured:
        return _unless_own(named_python(configured))
    active = os.environ.get("VIRTUAL_ENV", "")
    if active and not _has_torch() and any(Path(active).glob("lib/python3*/*-packages/torch")):
        with suppress(InterpreterError):
            return _unless_own(named_python(active))
    return ""


def use_python(python: str) -> None:
    """Choose an interpreter for this process and its children; empty for this program's own."""
    os.environ[PYTHON_VARIABLE] = python or sys.executable


def ready_python(python: str | None = None) -> str:
    """Return an interpreter that workers can start in; empty for this program's own.

    Raises InterpreterError with the command that fixes it.
    """
    python = chosen_python() if python is None else python
    python = _unless_own(named_python(python)) if python else ""
    if python:
        if why := why_not_ready(python):
            raise InterpreterError(python, why)
    elif not _has_torch():
        raise InterpreterError(
            sys.executable,
            f"it has no torch; {OPTION} PATH or {PYTHON_VARIABLE} names a Python that has it, or "
            f"`{shlex.join([sys.executable, '-m', 'pip', 'install', 'torch'])}` installs it",
        )
    return python


def require_chosen(python: str) -> str:
    """Return the interpreter that a run's file names, if a user of this data folder chose it
    before.

    A run may come from another machine, so its file must not name an arbitrary program to start.
    Raises InterpreterError.
    """
    if python and python not in _chosen_ones():
        why = f"the run uses it, but it was never chosen here; choose it with {OPTION} PATH"
        raise InterpreterError(python, why)
    return python


def remember_python(python: str) -> str:
    """Remember an interpreter that the user chose, and return it; raises InterpreterError or
    OSError."""
    if python and python not in _chosen_ones():
        make_folder(home())
        with open_to_append(home() / CHOSEN) as file:
            file.write(json.dumps(python).encode() + b"\n")
    return python


def _chosen_ones() -> list[str]:
    path = home() / CHOSEN
    try:
        return [msgspec.json.decode(line, type=str) for line in read_regular(path).splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, *UNREADABLE_JSON) as error:
        why = f"the list of chosen interpreters cannot be read ({error}): delete it"
        raise InterpreterError(str(path), why) from error


def why_not_ready(python: str) -> str:
    """Return why workers cannot run in an interpreter, with the remedy; empty if they can."""
    facts = probe_python(python)
    if _numbers(facts.version) < OLDEST:
        return f"it is Python {facts.version}; workers need 3.11 or later"
    if not facts.program or not os.path.samefile(facts.program, _OWN):
        return "it ignores PYTHONPATH, which workers need to import sysbench"
    outdated = [
        f"{name} {version}"
        for name, least in NEEDED.items()
        if (version := facts.packages.get(name)) and _numbers(version) < _numbers(least)
    ]
    if not facts.absent and not outdated:
        return ""
    problems = [f"it has no {', '.join(facts.absent)}"] if facts.absent else []
    problems += [f"it has {', '.join(outdated)}, which is too old"] if outdated else []
    names = [*facts.absent, *(name.partition(" ")[0] for name in outdated)]
    command = _install(python, [f"{name}>={NEEDED[name]}" for name in names], facts.has_pip)
    return f"{' and '.join(problems)}: run `{command}` to fix this"


def missing_libraries(python: str, libraries: Sequence[str]) -> list[str]:
    """Return the imports, names without dots, that an interpreter does not find."""
    if python:
        return probe_python(python, libraries).missing
    return [
        name
        for name in sorted(libraries)
        # A module that was inserted by hand has no spec.
        if sys.modules.get(name) is None and importlib.util.find_spec(name) is None
    ]


def install_command(python: str, requirements: Sequence[str]) -> str:
    """Return the command that installs packages; ``python`` is empty for this program's own."""
    # `importlib.util.find_spec` would run setuptools' hook, which permanently gives this process
    # the standard distutils. Then setuptools cannot be imported, as torch's compiler does.
    has_pip = probe_python(python).has_pip if python else PathFinder.find_spec("pip") is not None
    return _install(python or sys.executable, requirements, has_pip)


def _install(python: str, requirements: Sequence[str], has_pip: bool) -> str:
    by_pip = shlex.join([python, "-m", "pip", "install", *requirements])
    if has_pip:
        return by_pip
    if shutil.which("uv"):
        return shlex.join(["uv", "pip", "install", "--python", python, *requirements])
    return f"{shlex.join([python, '-m', 'ensurepip'])} && {by_pip}"


def probe_python(python: str, libraries: Sequence[str] = ()) -> Interpreter:
    """Return what an interpreter has, cached until something is installed in it.

    ``libraries`` are imports whose versions are also wanted. InterpreterError if it cannot be
    started, hangs, or does not answer like a Python.
    """
    key = python, tuple(sorted(libraries))
    facts, changed = _known.get(key, (None, ()))
    if facts is None or changed != _change_times(python, facts):
        question = {
            "modules": [*NEEDED],
            "program": PROGRAM,
            "packages": REPORTED,
            "libraries": key[1],
        }
        facts = _ask(python, json.dumps(question))
        _known[key] = facts, _change_times(python, facts)
    return facts


_known: dict[tuple[str, tuple[str, ...]], tuple[Interpreter, tuple[int, ...]]] = {}


def _change_times(python: str, facts: Interpreter) -> tuple[int, ...]:
    paths = map(Path, (python, *facts.search_path))
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


def _ask(python: str, question: str) -> Interpreter:
    # Not `subprocess.run`: it would store all output of an endless program, and wait for children
    # that inherited the interpreter's output.
    try:
        process = subprocess.Popen(
            [python, str(PROBE / "ask.py"), question],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=child_environment(python, os.environ),
        )
    except OSError as error:
        raise InterpreterError(python, f"it cannot be started: {error.strerror}") from error
    timer = threading.Timer(PATIENCE_SECONDS, _kill_group, [process.pid])
    timer.start()
    line = last = b""
    with process:
        assert process.stdout is not None
        readline = process.stdout.readline
        for line in islice(iter(lambda: readline(MAX_LINE_BYTES), b""), MAX_LINES):
            last = line.strip() or last
            if line.startswith(MARK):
                break
        in_time = timer.is_alive()
        timer.cancel()
        _kill_group(process.pid)
    try:
        return msgspec.json.decode(line.removeprefix(MARK), type=Interpreter)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = last.decode("utf-8", "replace")
        answer = f"output {text[:80]!r}" if text else "no output"
        why = f"it does not answer like a Python: {answer}"
    if not in_time:
        why = f"it did not answer within {PATIENCE_SECONDS:g} s"
    raise InterpreterError(python, why)


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _unless_own(path: str) -> str:
    """Return the path; empty if it is this interpreter, in this environment."""
    is_own_folder = os.path.dirname(path) == os.path.dirname(sys.executable)
    return "" if is_own_folder and os.path.samefile(path, sys.executable) else path


def _has_torch() -> bool:
    spec = importlib.util.find_spec("torch")
    return spec is not None and spec.origin is not None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
