"""Deleting runs: to the trash and back, never a live one, never in silence where it is needed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sysbench.core.errors import DamagedFileError, NotFoundError
from sysbench.core.experiments.baselines import save_baseline
from sysbench.core.experiments.experiment import create_experiment
from sysbench.core.runs.run_directory import RunDirectory, create_run, list_runs
from sysbench.core.runs.trash import (
    KeptRunError,
    empty_trash,
    find_trashed,
    list_trash,
    restore,
    trash_run,
)
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import locked
from sysbench.core.studies.study_directory import CellEntry as CellEntry
from sysbench.core.studies.study_directory import StudyDirectory, uses_of
from sysbench.tui.cli import main

SPEC = RunSpec(device="cpu")


@pytest.fixture
def run(tiny_run: RunDirectory, sysbench_home: Path) -> RunDirectory:
    return RunDirectory(shutil.copytree(tiny_run.path, sysbench_home / "runs" / tiny_run.id))


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "supervisor.lock"
    }


def test_a_deleted_run_comes_back_as_it_was(run: RunDirectory) -> None:
    before = files_of(run.path)
    trashed = trash_run(run)
    assert list_runs() == [] and [row.id for row in list_trash()] == [run.id]
    assert restore(find_trashed("last")).id == run.id == trashed.id
    assert files_of(run.path) == before
    assert list_trash() == []


def test_the_trash_is_emptied_for_good(run: RunDirectory) -> None:
    trashed = trash_run(run)
    assert [row.id for row in empty_trash()] == [run.id]
    assert not Path(trashed.path).exists()
    with pytest.raises(NotFoundError):
        restore(trashed)
    assert empty_trash() == []


def test_a_live_run_is_not_deleted(run: RunDirectory) -> None:
    with locked(run.lock_path), pytest.raises(KeptRunError, match="sysbench-tui stop"):
        trash_run(run)
    with pytest.raises(KeptRunError):  # made just now: its supervisor is on the way
        trash_run(create_run(SPEC, ["timing"]))
    assert len(list_runs()) == 2 and list_trash() == []


def test_a_run_of_a_live_experiment_is_not_deleted_between_two_rounds(run: RunDirectory) -> None:
    experiment = create_experiment(SPEC, SPEC.changed(seed=1))
    side = experiment.run("A")
    side.events_path.touch()  # it began, and nobody holds it now
    with locked(experiment.lock_path), pytest.raises(KeptRunError):
        trash_run(side)
    assert uses_of(side.id) == [f"experiment {experiment.id}, which loses the rounds of a side"]
    assert trash_run(side).id == side.id


def test_only_what_lies_in_the_library_is_deleted(run: RunDirectory, tmp_path: Path) -> None:
    elsewhere = RunDirectory(shutil.copytree(run.path, tmp_path / run.id))
    linked = run.path.with_name("linked")
    linked.symlink_to(elsewhere.path)
    for other in (elsewhere, RunDirectory(linked), RunDirectory(tmp_path / "no-run")):
        with pytest.raises(NotFoundError, match="nothing is deleted"):
            trash_run(other)
    assert elsewhere.record_path.exists()


def test_a_run_does_not_come_back_over_another(run: RunDirectory) -> None:
    trashed = trash_run(run)
    shutil.copytree(trashed.path, run.path)
    with pytest.raises(DamagedFileError, match="stays in the trash"):
        restore(trashed)
    assert Path(trashed.path).is_dir()


def test_the_command_says_what_needs_a_run_before_it_deletes_it(
    run: RunDirectory, sysbench_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_baseline("main", run.record())
    study = StudyDirectory(sysbench_home / "studies" / "mine-0123")
    study.path.mkdir(parents=True)
    study.study_path.write_text("{}")
    study.append(CellEntry(cell="c", status="finished", run=run.id))
    assert main(["rm", run.id]) == 1
    said = capsys.readouterr().err
    assert "study mine-0123" in said and "baseline main" in said and "--force" in said
    assert [one.id for one in list_runs()] == [run.id]

    assert main(["rm", run.id, "--force", "--json"]) == 0
    out = capsys.readouterr()
    assert json.loads(out.out)["rows"] == [{"id": run.id}] and "study mine-0123" in out.err
    assert main(["list", "--trash"]) == 0
    assert run.id in capsys.readouterr().out
    assert main(["rm", "--restore", "last"]) == 0
    assert main(["rm", "--empty"]) == 0
    assert "the trash is empty" in capsys.readouterr().out
    assert [one.id for one in list_runs()] == [run.id]


@pytest.mark.parametrize("words", [["rm"], ["rm", "--restore"], ["rm", "--empty", "last"]])
def test_what_to_delete_is_named(words: list[str], sysbench_home: Path) -> None:
    assert main(words) == 2
