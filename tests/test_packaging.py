"""What is shipped, and what may import what."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("core", "tui", "profiles")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WITHOUT_TORCH = (
    "sysbench.core.spec.spec",
    "sysbench.core.record.record",
    "sysbench.core.runs.supervisor",
    "sysbench.core.runs.library",
    "sysbench.core.runs.api",
    "sysbench.core.runs.run_directory",
    "sysbench.core.machine.doctor_checks",
    "sysbench.core.export.exports",
    "sysbench.core.predict.closed_form",
    "sysbench.core.machine.machine_reader",
    "sysbench.tui.cli",
    "sysbench.tui.app",
)


def texts_in(value: Any) -> Iterator[str]:
    """All texts in a TOML value, keys of tables included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_in(inner)


def modules_named_in(pyproject: dict[str, Any]) -> set[str]:
    """Dotted names under ``sysbench``, the modules of entry points included."""
    dotted = re.compile(r"sysbench(\.\w+)+")
    names = (text.partition(":")[0] for text in texts_in(pyproject))
    return {name for name in names if dotted.fullmatch(name)}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in memory after a statement, in a fresh interpreter."""
    code = f"{statement}; import sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    output = subprocess.run(
        [sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True
    ).stdout
    return set(output.split())


def test_every_folder_with_code_is_a_package() -> None:
    without = {path.parent for top in FOLDERS for path in (ROOT / top).rglob("*.py")} - {
        path.parent for top in FOLDERS for path in (ROOT / top).rglob("__init__.py")
    }
    assert not without


def test_every_data_file_is_matched_for_the_wheel() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["*"]
    suffixes = {pattern.rpartition("*")[2] for pattern in patterns}
    for top in FOLDERS:
        for path in (ROOT / top).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".py":
                assert path.suffix in suffixes or path.name in patterns, path


def test_no_bare_imports_of_our_top_level_folders() -> None:
    bare = re.compile(r"^\s*(?:from|import) (?:core|tui|profiles)\b", re.MULTILINE)
    for top in (*FOLDERS, "tests"):
        for path in (ROOT / top).rglob("*.py"):
            assert not bare.search(path.read_text()), path


@pytest.mark.parametrize("name", sorted(modules_named_in(PYPROJECT)))
def test_every_module_that_pyproject_names_exists(name: str) -> None:
    top, *parts = name.removeprefix("sysbench.").split(".")
    place = ROOT.joinpath(top, *parts)
    assert place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_only_the_worker_loads_torch(module: str) -> None:
    assert not {"torch", "pandas"} & loaded_by(f"import {module}")


def test_the_first_screen_loads_nothing_slow() -> None:
    loaded = loaded_by("import sysbench.tui.app, sysbench.tui.screens.run_screen")
    assert not {"email", "numpy", "psutil"} & loaded


def test_the_list_of_runs_loads_no_numpy() -> None:
    assert "numpy" not in loaded_by("import sysbench.core.runs.library")


def test_the_engine_loads_nothing_of_the_screens() -> None:
    loaded = loaded_by(
        "import sysbench.core.runs.api, sysbench.core.machine.doctor_checks;"
        "import sysbench.core.export.exports"
    )
    assert not {"textual", "rich"} & loaded


def test_constraints_pin_the_tested_torch() -> None:
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()


@pytest.mark.skipif(not shutil.which("make"), reason="make is not here")
def test_without_a_registry_everything_is_installed_from_a_folder() -> None:
    def said(*words: str) -> list[str]:
        command = ["make", "--dry-run", "--always-make", "VENV=elsewhere", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return [line for line in done.stdout.splitlines() if "pip " in line]

    offline = "--no-index --find-links folder"
    assert all(offline in line for line in said("run", "WHEELS=folder"))
    assert said("run") and not any("--no-index" in line for line in said("run"))
    (download,) = said("wheels", "FOR=3.12")
    assert "grep -v '^torch==' constraints.txt" in download
