"""A study whose state somebody changed: no cell gets the figures of another spec."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.forecast import Forecaster, cell_kind, past_entries
from sysbench.core.studies.study_directory import (
    CellEntry,
    StudyDirectory,
    progress_in,
    records_of,
)
from sysbench.core.studies.study_grid import Cell
from sysbench.tui.cli import main


@pytest.fixture
def run(tiny_run: RunDirectory, sysbench_home: Path) -> RunDirectory:
    return RunDirectory(shutil.copytree(tiny_run.path, sysbench_home / "runs" / tiny_run.id))


@pytest.fixture
def study(sysbench_home: Path) -> StudyDirectory:
    """A study's folder with nothing in it but its state."""
    directory = StudyDirectory(sysbench_home / "studies" / "s-0")
    directory.path.mkdir(parents=True)
    directory.study_path.write_bytes(b"{}")
    return directory


def cell_of(spec: RunSpec) -> Cell:
    return Cell(point={"a": "b"}, spec=spec, identity="i", passes=("timing",))


def test_a_cell_has_its_own_run_and_no_other(run: RunDirectory, study: StudyDirectory) -> None:
    own = cell_of(run.header().spec)
    study.append(CellEntry(cell=own.id, status="finished", run=run.id))
    assert [record.id for record in records_of(study, [own]).values()] == [run.id]
    other = cell_of(run.header().spec.changed(batch=7))
    assert records_of(study, [other]) == {}


@pytest.mark.parametrize("where", ["../runs/{}", "{home}/runs/{}", "./{}", ".."])
def test_a_line_names_a_run_and_no_path(
    run: RunDirectory, study: StudyDirectory, sysbench_home: Path, where: str
) -> None:
    cell = cell_of(run.header().spec)
    entry = CellEntry(cell=cell.id, status="finished", run=where.format(run.id, home=sysbench_home))
    study.append(entry)
    assert study.run_of(entry) is None
    assert records_of(study, [cell]) == {}
    assert progress_in(study, [cell]).statuses == {cell.id: "waiting"}


def plant_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("plant", [os.mkfifo, plant_folder])
def test_a_study_that_cannot_be_read_stops_no_other(
    study: StudyDirectory, plant: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    plant(study.cells_path)
    assert past_entries() == []
    assert main(["study", "list"]) == 0
    assert main(["study", "attention", "--variant", "small", "--dry-run"]) == 0
    assert "attention" in capsys.readouterr().out


@pytest.mark.parametrize(("median_ms", "start"), [(-1.0, 1.0), (0.0, 1.0), (1.0, -1.0)])
def test_times_that_cannot_be_teach_no_forecast(median_ms: float, start: float) -> None:
    spec = RunSpec(device="cpu", model="tiny")
    entries = [
        CellEntry(
            cell="c",
            status="finished",
            median_ms=median_ms,
            kind=cell_kind(spec),
            work=float(work),
            passes=("timing",),
            start_seconds=start,
        )
        for work in (1, 10**18)
    ]
    assert Forecaster(entries).forecast(cell_of(spec)).seconds is None


def test_a_study_that_an_earlier_version_began_is_read(study: StudyDirectory) -> None:
    column: dict[str, object] = {
        "name": "Overhead",
        "value": "distributed.exposed.mean_ms / distributed.step.mean_ms",
        "where": {},
        "unit": "",
        "format": "{mean:.2f} ± {std:.2f}",
        "ratio": None,
        "is_label": False,
    }
    table = {"name": "t", "title": "", "rows": [], "columns": [column], "lines": []}
    old = {"name": "s", "title": "t", "axes": [], "tables": [table]}
    study.study_path.write_text(json.dumps(old, ensure_ascii=False))
    (read,) = study.study().tables[0].columns
    assert (read.value, read.format) == ("measures.exposed_fraction", "{:.2f}")
    assert not read.is_label
