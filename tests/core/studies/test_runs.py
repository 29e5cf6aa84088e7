"""A study with real processes: killed in the middle, resumed, with a cell that has no memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.formatting import format_bytes
from sysbench.core.storage import HOME_VARIABLE
from sysbench.core.studies.study_directory import CellEntry, StudyDirectory, find_study, records_of
from sysbench.core.studies.study_grid import expand
from sysbench.core.studies.study_report import StudyReport, study_report

STUDY = """
title = "three sizes, the second one without the memory"
passes = ["memory"]
[fixed]
step = "inference"
device = "cpu"
threads = 1
warmup = 1
steps = 4
[axes]
size = [
    { label = "short", context = 32 },
    { label = "huge", batch = 32, context = 512, memory_limit = "300MiB" },
    { label = "long", context = 64 },
]
[[tables]]
name = "sizes"
columns = [
    { name = "Peak (MiB)", value = "memory.peak_allocated_bytes", unit = "MiB" },
    { name = "Parameters", value = "parameters" },
]
"""
PATIENCE_SECONDS = 90


def command(home: Path, *arguments: str) -> dict[str, Any]:
    """How to start the command line in a home, in a session of its own."""
    environment = {**os.environ, HOME_VARIABLE: str(home), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-P", "-m", "sysbench.tui.cli", "study", *arguments]
    return {"args": program, "env": environment, "start_new_session": True}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the study was killed after its first cell."""
    home = tmp_path_factory.mktemp("home")
    (home / "three.toml").write_text(STUDY)
    log = (home / "log").open("wb")
    process = subprocess.Popen(**command(home, str(home / "three.toml")), stdout=log, stderr=log)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(entry.status == "finished" for entry in entries(home).values()):
        assert process.poll() is None, (home / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    log.close()
    return home


def entries(home: Path) -> dict[str, CellEntry]:
    folders = [*(home / "studies").glob("three-*")]
    return StudyDirectory(folders[0]).entries() if folders else {}


@pytest.fixture(scope="module")
def killed(home: Path) -> dict[str, CellEntry]:
    """The state that the kill left."""
    return entries(home)


@pytest.fixture(scope="module")
def resumed(home: Path, killed: dict[str, CellEntry]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        **command(home, str(home / "three.toml"), "--json"), capture_output=True, check=False
    )


@pytest.fixture(scope="module")
def report(home: Path, resumed: subprocess.CompletedProcess[bytes]) -> StudyReport:
    return study_report(find_study("three", home))


def test_a_finished_cell_is_not_run_again(
    killed: dict[str, CellEntry], report: StudyReport, resumed: subprocess.CompletedProcess[bytes]
) -> None:
    assert resumed.returncode == 0, resumed.stderr.decode()
    finished = {name: entry for name, entry in killed.items() if entry.status == "finished"}
    assert len(finished) == 1
    for name, entry in finished.items():
        assert report.entries[name].run == entry.run
    assert report.progress.done == report.progress.total == 3


def test_the_cell_without_memory_says_so_and_its_neighbours_are_whole(report: StudyReport) -> None:
    (table,) = report.tables
    by_size = {row[0]: row for row in table.rows}
    at = table.columns.index("Peak (MiB)")
    asked = report.ooms[next(iter(report.ooms))].requested_bytes
    assert asked
    assert by_size["huge"][at] == f"OOM {format_bytes(asked)}"
    for size in ("short", "long"):
        assert isinstance(by_size[size][at], float)
        assert by_size[size][table.columns.index("Parameters")]
    assert any("ran out of memory" in sentence for sentence in report.sentences)


def numbers(home: Path, name: str) -> dict[str, tuple[object, ...]]:
    """By the size, what is the same whenever a cell is measured on this machine."""
    directory = find_study(name, home)
    cells = expand(directory.study())
    records = records_of(directory, cells)
    found: dict[str, tuple[object, ...]] = {}
    for cell in cells:
        record = records[cell.id]
        memory = record.memory
        if record.status == "finished":
            assert memory is not None
            found[cell.point["size"]] = (
                *(record.parameters, memory.peak_allocated_bytes, memory.ledger, memory.columns),
                *(memory.modules, memory.baseline_bytes),
            )
    return found


def test_the_neighbours_have_the_numbers_of_a_study_without_that_cell(
    home: Path, report: StudyReport, tmp_path: Path
) -> None:
    without = "".join(line for line in STUDY.splitlines(keepends=True) if "huge" not in line)
    (tmp_path / "two.toml").write_text(without)
    subprocess.run(**command(tmp_path, str(tmp_path / "two.toml")), capture_output=True, check=True)
    alone = numbers(tmp_path, "two")
    assert [*alone] == ["short", "long"]
    assert numbers(home, "three") == alone


def test_the_json_is_the_public_contract(
    report: StudyReport, resumed: subprocess.CompletedProcess[bytes]
) -> None:
    document = msgspec.json.decode(resumed.stdout)
    assert document["study"] == "three"
    assert all(len(row) == len(document["columns"]) for row in document["rows"])
    assert {cell["status"] for cell in document["cells"]} == {"finished", "oom"}
    identities = [cell.identity for cell in expand(report.study)]
    assert [cell["identity"] for cell in document["cells"]] == identities
    assert all(cell["run"] for cell in document["cells"])


def test_a_third_start_runs_nothing_and_gives_the_same_table(
    home: Path, report: StudyReport
) -> None:
    again = subprocess.run(
        **command(home, str(home / "three.toml"), "--json"), capture_output=True, check=True
    )
    rows = msgspec.json.decode(again.stdout)["rows"]
    assert [tuple(row) for row in rows] == [*report.tables[0].rows]
    runs = [*(home / "runs").iterdir()]
    killed_too = 4  # the cell that was under way when the study was killed left its run
    assert len(runs) in (3, killed_too)


def test_a_row_of_several_factors_is_a_caution(report: StudyReport) -> None:
    assert any("batch" in caution and "context" in caution for caution in report.cautions)
