"""The Python that workers run in: this program's own, or one of the user's that has torch.

The screens may be installed anywhere; models, torch and CUDA live in the interpreter that
``--python`` or ``SYSBENCH_PYTHON`` names. It is asked what it has before anything is started in it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

import msgspec

from ..errors import InterpreterError
from ..storage import UNREADABLE_JSON, home, make_folder, open_to_append, read_regular
from .children import PYTHON_VARIABLE, TRAVEL, child_environment

NEEDED = {"torch": "2.9", "msgspec": "0.21", "numpy": "1.26", "psutil": "5.9"}
"""What workers import besides this package, with the oldest versions, those of pyproject.toml."""
TOLD = (*NEEDED, "triton", "nvtx", "nvidia-ml-py")
"""Packages whose versions are told of an interpreter."""
OLDEST = (3, 11)
PROGRAM = "sysbench.core"
_OWN = Path(__file__).parents[1] / "__init__.py"
PATIENCE_SECONDS = 30.0
"""An interpreter on a cold network disk may take some seconds; it imports no torch."""
MOST_BYTES = 2**20
MARK = b"\nsysbench-tui: "
OPTION = "--python"
CHOSEN = "pythons.jsonl"
"""In the home: the interpreters that were chosen, a JSON text a line."""


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """What an interpreter told of itself.

    Attributes:
        version: Of Python; one that is too old tells no more.
        environment: Name of the folder that it is installed in, such as a virtual environment's.
        search_path: Its import path.
        absent: Modules that workers need and that it does not have.
        program: Path of the ``__init__.py`` of `PROGRAM`, of which it may have another version.
        torch: Path of torch's ``__init__.py``; empty without torch.
        packages: Versions of `TOLD`.
        libraries: Versions that were asked for, by the name of the import.
        missing: Of these imports, those that it does not find.
        headers: Folder in which its ``Python.h`` would be.
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
    """The absolute path of an interpreter: of its file, its environment's folder, or its command.

    Links stay: that of a virtual environment is what makes it one.

    Raises:
        InterpreterError: There is none.
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
        raise InterpreterError(text, "it is no program that can be run")
    return str(path)


def chosen_python() -> str:
    """The interpreter of workers that start now; empty for this program's own.

    ``SYSBENCH_PYTHON`` names it, which ``--python`` sets. Without it the active virtual
    environment serves where it has torch and this interpreter has none.

    Raises:
        InterpreterError: The variable names none.
    """
    given = os.environ.get(PYTHON_VARIABLE, "")
    if given:
        return _unless_own(named_python(given))
    active = os.environ.get("VIRTUAL_ENV", "")
    if active and not _has_torch() and any(Path(active).glob("lib/python3*/*-packages/torch")):
        with suppress(InterpreterError):
            return _unless_own(named_python(active))
    return ""


def use_python(python: str) -> None:
    """Make an interpreter the chosen one of this process and of those that it starts.

    Args:
        python: Its path; empty for this program's own.
    """
    os.environ[PYTHON_VARIABLE] = python or sys.executable


def ready_python(python: str | None = None) -> str:
    """An interpreter that workers can start in; empty for this program's own.

    Args:
        python: Its path, or empty (default: the chosen one).

    Raises:
        InterpreterError: It cannot run workers; the message has the command that mends that.
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


def chosen_before(python: str) -> str:
    """The interpreter that a run's file names, if somebody chose it in this home before.

    A run may come from somebody else: without that, its file could name any program to be started.

    Raises:
        InterpreterError: Nobody did, or the list of those that were chosen cannot be read.
    """
    if python and python not in _chosen_ones():
        why = f"a run names it, and it was never chosen here; {OPTION} PATH chooses one"
        raise InterpreterError(python, why)
    return python


def note_chosen(python: str) -> str:
    """Remember an interpreter that the user chose; returns it.

    Raises:
        InterpreterError: The list of those that were chosen cannot be read.
        OSError: It cannot be written.
    """
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
        why = f"the list of those that were chosen cannot be read ({error}): delete it"
        raise InterpreterError(str(path), why) from error


def why_not_ready(python: str) -> str:
    """The reason why workers cannot run in an interpreter, with the remedy; empty if they can.

    Raises:
        InterpreterError: It does not answer as a Python does.
    """
    found = examined(python)
    if _numbers(found.version) < OLDEST:
        return f"it is Python {found.version}; workers need 3.11 or later"
    if not found.program or not os.path.samefile(found.program, _OWN):
        return "it does not heed PYTHONPATH, by which workers import this program"
    old = [
        f"{name} {version}"
        for name, least in NEEDED.items()
        if (version := found.packages.get(name)) and _numbers(version) < _numbers(least)
    ]
    if not found.absent and not old:
        return ""
    wrong = [f"it has no {', '.join(found.absent)}"] if found.absent else []
    wrong += [f"it has {', '.join(old)}, which is too old"] if old else []
    names = [*found.absent, *(name.partition(" ")[0] for name in old)]
    command = _install(python, [f"{name}>={NEEDED[name]}" for name in names], found.has_pip)
    return f"{' and '.join(wrong)}: `{command}` mends that"


def missing_libraries(python: str, libraries: Sequence[str]) -> list[str]:
    """Those of the imports that an interpreter does not find.

    Args:
        python: Its path; empty for this program's own.
        libraries: Names without dots.

    Raises:
        InterpreterError: It does not answer as a Python does.
    """
    if python:
        return examined(python, libraries).missing
    return [name for name in sorted(libraries) if not _is_found(name)]


def _is_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # a module that was put there by hand
        return True


def install_command(python: str, requirements: Sequence[str]) -> str:
    """The command that installs packages into an interpreter; empty for this program's own."""
    # Asked by `find_spec`, setuptools' hook would give this process the standard distutils for
    # good, with which setuptools itself cannot be imported any more: torch's compiler does that.
    has_pip = examined(python).has_pip if python else PathFinder.find_spec("pip") is not None
    return _install(python or sys.executable, requirements, has_pip)


def _install(python: str, requirements: Sequence[str], has_pip: bool) -> str:
    by_pip = shlex.join([python, "-m", "pip", "install", *requirements])
    if has_pip:
        return by_pip
    if shutil.which("uv"):
        return shlex.join(["uv", "pip", "install", "--python", python, *requirements])
    return f"{shlex.join([python, '-m', 'ensurepip'])} && {by_pip}"


def examined(python: str, libraries: Sequence[str] = ()) -> Interpreter:
    """What an interpreter has. It is asked again only after something was installed in it.

    Args:
        python: Its path.
        libraries: Names of imports whose versions are wanted, too.

    Raises:
        InterpreterError: It cannot be started, hangs, or does not answer as a Python does.
    """
    key = python, tuple(sorted(libraries))
    known = _known.get(key)
    if known is not None and known[0] == _changed_ns(python, known[1]):
        return known[1]
    question = {"modules": [*NEEDED], "program": PROGRAM, "packages": TOLD, "libraries": key[1]}
    found = _asked(python, json.dumps(question))
    _known[key] = _changed_ns(python, found), found
    return found


_known: dict[tuple[str, tuple[str, ...]], tuple[tuple[int, ...], Interpreter]] = {}


def _changed_ns(python: str, found: Interpreter) -> tuple[int, ...]:
    """When the interpreter and the folders of its import path changed."""
    return tuple(map(_mtime_ns, (python, *found.search_path)))


def _mtime_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _asked(python: str, question: str) -> Interpreter:
    try:
        process = subprocess.Popen(
            [python, str(TRAVEL / "ask.py"), question],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=child_environment(python, os.environ),
        )
    except OSError as error:
        raise InterpreterError(python, f"it cannot be started: {error.strerror}") from error
    try:
        said, ended = _said(process)
        if not ended:
            raise InterpreterError(python, f"it did not answer within {PATIENCE_SECONDS:g} s")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    try:
        return msgspec.json.decode(said.rpartition(MARK)[2].split(b"\n")[0], type=Interpreter)
    except (msgspec.DecodeError, UnicodeDecodeError):
        lines = said.decode("utf-8", "replace").strip().splitlines()
        last = f"it says {lines[-1].strip()[:80]!r}" if lines else "it says nothing"
        raise InterpreterError(python, f"it does not answer as a Python does: {last}") from None


def _said(process: subprocess.Popen[bytes]) -> tuple[bytes, bool]:
    """What it wrote up to its answer, and whether it came to an end in time."""
    assert process.stdout is not None
    deadline, said = time.monotonic() + PATIENCE_SECONDS, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(said) < MOST_BYTES:
            # A child that it has left behind may hold the pipe: its answer is the end.
            if said.endswith(b"\n") and MARK in said:
                break
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return said, False
            data = os.read(process.stdout.fileno(), 2**16)
            if not data:
                break
            said += data
    return said, True


def _unless_own(path: str) -> str:
    """The path; empty if it is this interpreter, in this environment."""
    own = os.path.dirname(path) == os.path.dirname(sys.executable)
    return "" if own and os.path.samefile(path, sys.executable) else path


def _has_torch() -> bool:
    """Whether this interpreter could import torch."""
    spec = importlib.util.find_spec("torch")
    return spec is not None and spec.origin is not None


def _numbers(version: str) -> tuple[int, ...]:
    """``(2, 9)`` of ``2.9.0+cu128``: enough for the bounds here."""
    parts = []
    for part in version.split(".")[:2]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        parts.append(int(digits or 0))
    return tuple(parts)
