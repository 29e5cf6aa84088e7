"""The data folder: whose it is."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from sysbench.core.runs.library import Library
from sysbench.core.runs.run_directory import create_run, runs_folder
from sysbench.core.spec.profiles import save_profile
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import home, locked, make_folder

SPEC = RunSpec(device="cpu")


def take_lock() -> None:
    with locked(home() / "locks" / "cpu.lock"):
        pass


def make_profile() -> None:
    save_profile("mine", SPEC)


def make_run() -> None:
    create_run(SPEC, ["timing"])


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("first", [take_lock, make_profile, make_run])
def test_a_new_data_folder_is_its_owners_only(
    sysbench_home: Path, first: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYSBENCH_HOME", str(sysbench_home / "deep" / "data"))
    before = os.umask(0o022)
    try:
        first()
    finally:
        os.umask(before)
    assert rights(home()) == 0o700


def test_a_data_folder_that_is_shared_on_purpose_stays_so(sysbench_home: Path) -> None:
    sysbench_home.mkdir(mode=0o755)
    sysbench_home.chmod(0o755)
    make_run()
    assert Library().entries()
    assert rights(sysbench_home) == 0o755


def test_a_folder_elsewhere_has_the_usual_rights(sysbench_home: Path, tmp_path: Path) -> None:
    make_folder(tmp_path / "other" / "runs")
    assert rights(tmp_path / "other") == rights(tmp_path / "other" / "runs")
    assert not runs_folder().exists()
