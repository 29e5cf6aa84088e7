"""One virtual environment a row: the tested set of its Python, and the row's versions over it.

A Python's tested set is installed once. Rows begin as copies of it by hard links, so that a row
costs the packages in which it differs; pip replaces files and never writes into one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.compat.combinations import ROOT, Row, constraints, dependencies, package_of
from tests.compat.cuda_stand_ins import LIST, add_stand_ins, remove_stand_ins

OF_CUDA = ("nvidia-", "cuda-", "triton")
LAST_LINES = 12


class NotInstallable(Exception):
    """What pip, or the import of torch, said."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def says(self, code: str) -> str:
        """What a program prints.

        Raises:
            NotInstallable: It failed.
        """
        return _output([str(self.python), "-P", "-c", code])

    def pip_install(self, *arguments: str) -> None:
        """``pip install``.

        Raises:
            NotInstallable: pip refused.
        """
        if arguments:
            quiet = ["--quiet", "--no-input", "--disable-pip-version-check"]
            _output([str(self.python), "-m", "pip", "install", *quiet, *arguments])

    def versions(self) -> dict[str, str]:
        """Installed versions by package, our own left out."""
        code = (
            "import json, importlib.metadata as m;"
            "print(json.dumps({d.name.lower(): d.version for d in m.distributions()}))"
        )
        found: dict[str, str] = json.loads(self.says(code))
        return {name: found[name] for name in sorted(found) if name != "sysbench-tui"}

    def torch_build(self) -> str:
        """In words: for the CPU, or for which CUDA, and with which libraries."""
        code = "import json, torch; print(json.dumps([torch.version.cuda, torch.__file__]))"
        cuda, file = json.loads(self.says(code))
        if cuda is None:
            return "CPU build"
        stand_ins = Path(file).parent / "lib" / LIST
        libraries = "stand-ins for its libraries" if stand_ins.exists() else "its libraries"
        return f"CUDA {cuda} build with {libraries}"


def interpreter(version: str) -> Path | None:
    """A ``pythonX.Y`` on PATH or of pyenv that runs and can make environments."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    kept = sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
    for candidate in (*([Path(on_path)] if on_path else []), *kept):
        code = "import sys, ensurepip, sqlite3, ssl; print('%d.%d' % sys.version_info[:2])"
        try:
            if _output([str(candidate), "-P", "-c", code]).strip() == version:
                return candidate
        except NotInstallable:
            continue
    return None


def make_base(python: Path, folder: Path) -> Environment:
    """The tested set under one Python; taken as it is where an earlier call ended it.

    Raises:
        NotInstallable: pip refused, or torch cannot be imported.
    """
    base, ended = Environment(folder), folder / "ended"
    if ended.exists():
        return base
    shutil.rmtree(folder, ignore_errors=True)
    _output([str(python), "-m", "venv", str(folder)])
    pins = ROOT / "constraints.txt"
    torch = next(line for line in constraints() if package_of(line) == "torch")
    install_torch(base, torch, pins)
    base.pip_install("-c", str(pins), *_without_torch(dependencies()), *dependencies("test"))
    base.pip_install("--no-deps", "-e", str(ROOT))
    ended.touch()
    return base


def make_row(base: Environment, folder: Path, row: Row) -> Environment:
    """A copy of the base with a row's versions.

    Raises:
        NotInstallable: pip refused, or torch cannot be imported.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base.folder, folder, symlinks=True, copy_function=_link)
    made = Environment(folder)
    pins = folder / "constraints-of-row.txt"
    kept = [line for line in constraints() if package_of(line) not in row.lifted]
    pins.write_text("\n".join(kept), encoding="utf-8")
    promised = {package_of(requirement): requirement for requirement in dependencies()}
    newest = [promised[name] for name in row.newest]
    for requirement in (*row.pins, *newest):
        if package_of(requirement) == "torch":
            install_torch(made, requirement, pins)
    # All of them, so that pip refuses a combination that a package rules out.
    together = [*_without_torch(row.pins), *_without_torch(promised.values())]
    made.pip_install("-c", str(pins), *together, *dependencies("test"))
    if upgraded := _without_torch(newest):
        made.pip_install("-c", str(pins), "--upgrade", *upgraded)
    return made


def install_torch(environment: Environment, requirement: str, pins: Path) -> None:
    """torch as the index has it, with NVIDIA's libraries only where stand-ins do not do.

    Raises:
        NotInstallable: pip refused, or torch cannot be imported.
    """
    environment.pip_install("--no-deps", "--upgrade", requirement)
    code = "import json, importlib.metadata as m; print(json.dumps(m.requires('torch') or []))"
    needed: list[str] = json.loads(environment.says(code))
    usual = [one for one in needed if not one.startswith(OF_CUDA) and "extra ==" not in one]
    environment.pip_install("-c", str(pins), *usual)
    if _imports_torch(environment):
        return
    site = environment.says("import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    libraries = Path(site) / "torch" / "lib"
    try:
        add_stand_ins(libraries)
    except RuntimeError as error:
        print(f"  no stand-ins for CUDA's libraries: {error}")
    if not _imports_torch(environment):
        remove_stand_ins(libraries)
        environment.pip_install("--upgrade", requirement)
        environment.says("import torch")


def _imports_torch(environment: Environment) -> bool:
    try:
        environment.says("import torch; torch.ones(2).sum()")
    except NotInstallable:
        return False
    return True


def _without_torch(requirements: Iterable[str]) -> list[str]:
    return [one for one in requirements if package_of(one) != "torch"]


def _link(source: str, target: str) -> str:
    """A hard link, or a copy where the file system has none."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
    return target


def _output(command: list[str]) -> str:
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        wrong = [line for line in said if line.startswith("ERROR")]
        raise NotInstallable("\n".join((wrong or said)[-LAST_LINES:]))
    return done.stdout
