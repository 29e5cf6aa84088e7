"""The Python of the workers: real interpreters, some of them in a shell script's clothes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from sysbench.core.errors import InterpreterError, SpecError
from sysbench.core.machine import interpreter
from sysbench.core.machine.children import PYTHON_VARIABLE, child_environment, python_child
from sysbench.core.machine.devices import torch_facts
from sysbench.core.machine.interpreter import (
    NEEDED,
    chosen_python,
    named_python,
    probe_python,
    ready_python,
    why_not_ready,
)
from sysbench.core.machine.read_environment import describe_host

ROOT = Path(__file__).parents[3]
TORCH = "__version__ = \"2.12.0+cu130\"\ncuda: Optional[str] = '13.0'\n"


def program(path: Path, *lines: str) -> str:
    """A shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return str(path)


def interpreter_with(folder: Path, *packages: str, options: str = "-S") -> str:
    """This Python without its packages, and with packages that have a version and no content."""
    site = folder / "site-packages"
    for name in packages:
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").touch()
        described = site / f"{name}-99.0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n")
    own = f'export PYTHONPATH="$PYTHONPATH:{site}"'
    return program(folder / "bin" / "python", own, f'exec {sys.executable} {options} "$@"')


def test_a_virtual_environment_with_another_torch_can_run_workers(tmp_path: Path) -> None:
    python = interpreter_with(tmp_path / "ml", *NEEDED)
    site = tmp_path / "ml" / "site-packages"
    (site / "torch" / "version.py").write_text(TORCH)
    (site / "lib-1.5.dist-info").mkdir()
    (site / "lib-1.5.dist-info" / "METADATA").write_text("Name: lib\nVersion: 1.5\n")
    assert named_python(str(tmp_path / "ml")) == python
    assert why_not_ready(python) == ""
    assert torch_facts(python) == {
        "version": "2.12.0+cu130",
        "cuda": "13.0",
        "hip": None,
        "path": str(site / "torch"),
    }
    assert probe_python(python, ["lib", "none"]).libraries == {"lib": "1.5"}
    facts = describe_host(python)
    assert facts["torch"] == {"version": "2.12.0+cu130", "cuda": "13.0"}
    assert facts["packages"]["torch"] == "99.0", "not that of this Python"
    assert set(facts["python"]) == {"environment"}
    assert str(tmp_path) not in repr(facts)


def test_what_is_missing_is_reported_with_the_command_that_fixes_it(tmp_path: Path) -> None:
    python = interpreter_with(tmp_path, "pip", "torch", "numpy")
    site = tmp_path / "site-packages"
    old = site / "numpy-99.0.dist-info" / "METADATA"
    old.write_text(old.read_text().replace("99.0", "1.9.1"))
    with pytest.raises(InterpreterError) as raised:
        ready_python(python)
    wanted = "'msgspec>=0.21' 'psutil>=5.9' 'numpy>=1.26'"
    assert "it has no msgspec, psutil and it has numpy 1.9.1, which is too old" in str(raised.value)
    assert f"`{python} -m pip install {wanted}` to fix this" in str(raised.value)
    old.write_text(old.read_text().replace("1.9.1", "1.26"))
    for name in ("msgspec", "psutil"):
        (site / name).mkdir()
        (site / name / "__init__.py").touch()
    assert ready_python(python) == python, "asked again after something was installed"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (("echo hello",), "does not answer like a Python: output 'hello'"),
        (("yes",), "does not answer like a Python: output 'y'"),
        (("while :; do :; done",), "it did not answer within 0.3 s"),
        (('echo; echo \'sysbench-tui: {"version": "3.10.2"}\'',), "it is Python 3.10.2; workers"),
        ((f'exec {sys.executable} -E -S "$@"',), "it ignores PYTHONPATH"),
    ],
    ids=["no Python", "endless", "hanging", "old", "isolated"],
)
def test_what_cannot_run_workers_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: tuple[str, ...], why: str
) -> None:
    if "hanging" in os.environ["PYTEST_CURRENT_TEST"]:
        monkeypatch.setattr(interpreter, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(SpecError, match=re.escape(why)):
        ready_python(program(tmp_path / "python", *script))


def test_a_path_without_a_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("text")
    for name, why in {
        "none": "there is no such file",
        "plain": "it is not an executable",
        ".": "a folder without bin/python",
    }.items():
        with pytest.raises(InterpreterError, match=why):
            named_python(str(tmp_path / name))
    (tmp_path / "plain").chmod(0o755)
    with pytest.raises(InterpreterError, match="it cannot be started: Exec format error"):
        ready_python(str(tmp_path / "plain"))


def test_the_variable_comes_before_the_active_environment_and_that_after_a_torch_of_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = program(tmp_path / "named" / "bin" / "python", "exit")
    active = program(tmp_path / "active" / "bin" / "python", "exit")
    (tmp_path / "active" / "lib" / "python3.13" / "site-packages" / "torch").mkdir(parents=True)
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    assert chosen_python() == "", "this Python has torch"
    # A Python without torch, as the screens may be installed in.
    (tmp_path / "bare").mkdir()
    spec = find_spec("msgspec")
    assert spec is not None and spec.origin is not None
    (tmp_path / "bare" / "msgspec").symlink_to(Path(spec.origin).parent)
    bare = {**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tmp_path / 'bare'}"}
    code = (
        "import sysbench.core.machine.interpreter as it\n"
        "print(it.chosen_python())\n"
        "del it.os.environ['VIRTUAL_ENV']\n"
        "print(it.chosen_python())\n"
        "try: it.ready_python()\n"
        "except it.InterpreterError as error: print(error)\n"
    )
    command = [sys.executable, "-S", "-P", "-c", code]
    bare = child_environment(sys.executable, bare)
    said = subprocess.run(command, env=bare, capture_output=True, text=True, check=True).stdout
    first, second, why = said.splitlines()
    assert (first, second) == (active, "")
    assert "it has no torch; --python PATH or SYSBENCH_PYTHON names a Python that has it" in why
    monkeypatch.setenv(PYTHON_VARIABLE, str(tmp_path / "named"))
    assert chosen_python() == named
    monkeypatch.setenv(PYTHON_VARIABLE, sys.executable)
    assert chosen_python() == ""


def test_a_command_that_installs_leaves_setuptools_as_it_was() -> None:
    """Before Python 3.12 its hook changes permanently when pip is requested, and then torch's
    compiler cannot import it."""
    code = (
        "import sys; from sysbench.core.machine.interpreter import install_command; "
        "assert '-m pip install some' in install_command('', ['some']); import setuptools"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_workers_need_is_what_is_promised() -> None:
    """A worker's first modules need only `NEEDED`, torch not among them yet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = dict(re.split(">=|,", text)[:2] for text in project["dependencies"])
    assert {name: bounds[name] for name in NEEDED} == NEEDED
    assert project["requires-python"] == f">={'.'.join(map(str, interpreter.OLDEST))}"
    code = "import sys, sysbench.core.worker.__main__; print(*sys.modules)"
    command = [sys.executable, "-P", "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    others = {re.split(r"[>=<\[]", text)[0] for text in project["dependencies"]} - set(NEEDED)
    assert not {*others, "pynvml"} & {name.partition(".")[0] for name in loaded}


def test_a_worker_there_finds_this_package_and_nothing_beside_it() -> None:
    environ = child_environment("/other/python", {"PYTHONPATH": "/x", "PYTHONHOME": "/y"})
    folder, rest = environ["PYTHONPATH"].split(os.pathsep)
    assert rest == "/x" and "PYTHONHOME" not in environ
    assert {path.name for path in Path(folder).glob("[!_]*")} == {"ask.py", "sysbench.py"}
    code = "import sysbench.core, sysbench.profiles as p; print(sysbench.core.__path__[0])"
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code],
        env={"PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).samefile(ROOT / "core")
    assert python_child("a.b", python="/other/python")[0] == "/other/python"
    assert PYTHON_VARIABLE not in child_environment("", {PYTHON_VARIABLE: "/other"})
