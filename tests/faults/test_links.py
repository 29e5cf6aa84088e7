"""Links in a run of somebody else, and in a shared folder: none leads to a file of the user."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sysbench.core.errors import DamagedFileError, SpecError
from sysbench.core.export.exports import write_export
from sysbench.core.record.events import Noticed, RunEnded
from sysbench.core.runs.run_directory import RunDirectory, create_run, load_record
from sysbench.core.runs.supervisor import add_round, disturb_round, supervise
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import locked, open_regular
from sysbench.tui.cli import main

SECRET = "-----BEGIN PRIVATE KEY-----\nnobody's business\n"


@pytest.fixture
def run(tiny_run: RunDirectory, sysbench_home: Path) -> RunDirectory:
    """A copy of a finished run, to be made hostile."""
    return RunDirectory(shutil.copytree(tiny_run.path, sysbench_home / "runs" / tiny_run.id))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the user outside every run."""
    path = tmp_path / "secret"
    path.write_text(SECRET)
    return path


def to_be_read(path: Path, target: Path) -> None:
    """Put a link in the place of a file."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("name", ["out.json.gz", "out.json"])
def test_no_trace_is_exported_from_outside_the_run(
    run: RunDirectory, tiny_run: RunDirectory, tmp_path: Path, name: str
) -> None:
    to_be_read(run.trace_path, tiny_run.trace_path)
    with pytest.raises(DamagedFileError, match="points out of"):
        write_export(run, "perfetto", tmp_path / name)
    assert not (tmp_path / name).exists()


def test_no_snapshot_is_exported_from_outside_the_run(run: RunDirectory, tmp_path: Path) -> None:
    outside = tmp_path / "weights.pickle"
    outside.write_bytes(b"\x80\x04N.")
    to_be_read(run.snapshot_path, outside)
    with pytest.raises(DamagedFileError, match="points out of"):
        write_export(run, "memory-viz", tmp_path / "s.pickle")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_no_table_is_shown_from_outside_the_run(
    run: RunDirectory, tiny_run: RunDirectory, tmp_path: Path, kind: str
) -> None:
    folder, theirs = run.pass_folder("trace"), tiny_run.pass_folder("trace")
    if kind == "folder":
        shutil.rmtree(folder)
        folder.symlink_to(theirs)
    else:
        to_be_read(folder / "kernels.json", theirs / "kernels.json")
    with pytest.raises(DamagedFileError, match="points out of"):
        write_export(run, "html", tmp_path / "page.html")


def test_no_log_is_read_from_outside_the_run(
    run: RunDirectory, secret: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of a log is part of a record that is rebuilt, and that goes into every report."""
    to_be_read(run.log_path("timing"), secret)
    run.record_path.unlink()
    assert "s business" not in str(load_record(run))
    for arguments in (["--section", "log"], ["--section", "log", "--json"], ["--json"]):
        assert main(["show", run.id, *arguments]) == 0
    assert main(["export", run.id, "md", "-o", str(tmp_path / "r.md")]) == 0
    output = capsys.readouterr().out
    assert "s business" not in output + (tmp_path / "r.md").read_text()
    assert "points out of" in output


def test_a_link_inside_the_run_is_followed(run: RunDirectory, tmp_path: Path) -> None:
    whole = run.trace_path.read_bytes()
    kept = run.trace_path.rename(run.path / "kept.gz")
    to_be_read(run.trace_path, kept)
    (out,) = write_export(run, "perfetto", tmp_path / "t.json.gz")
    assert out.read_bytes() == whole


@pytest.mark.parametrize("place", ["t.json.gz", "."], ids=["file", "folder"])
def test_a_link_that_appears_after_the_check_is_not_followed(
    run: RunDirectory, secret: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folder = run.path / "trace"
    (secret.parent / "t.json.gz").write_text(SECRET)
    (folder / "t.json.gz").write_bytes(b"mine")
    check = os.path.realpath

    def swap_after_check(path: Path) -> str:
        checked = check(path)
        if path == folder / "t.json.gz":
            (folder / place).rename(run.path / "moved")
            (folder / place).symlink_to(secret.parent / place)
        return checked

    monkeypatch.setattr(os.path, "realpath", swap_after_check)
    with pytest.raises((DamagedFileError, OSError)):
        open_regular(folder / "t.json.gz", inside=run.path)


def a_round(run: RunDirectory) -> None:
    list(add_round(run))


def a_mark(run: RunDirectory) -> None:
    disturb_round(run, 1, "for a test")


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("supervisor.lock", a_mark),
        ("events.jsonl", a_mark),
        (".reserve", a_mark),
        ("timing/log.2.txt", a_round),
    ],
)
def test_nothing_is_written_through_a_link_in_a_run(
    run: RunDirectory, secret: Path, name: str, work: Callable[[RunDirectory], None]
) -> None:
    to_be_read(run.path / name, secret)
    try:
        work(run)
    except DamagedFileError as error:
        assert "link" in str(error)
    assert secret.read_text() == SECRET


def test_a_lock_that_is_a_link_is_not_emptied(sysbench_home: Path, secret: Path) -> None:
    """Users of a shared data folder can create one for any device."""
    run = create_run(RunSpec(device="cpu"), ["timing"])
    to_be_read(sysbench_home / "locks" / "cpu.lock", secret)
    events = list(supervise(run))
    assert secret.read_text() == SECRET
    assert isinstance(events[-1], RunEnded)
    assert events[-1].status == "failed"
    assert any(isinstance(event, Noticed) and "link" in event.message for event in events)
    with pytest.raises(DamagedFileError, match="link"), locked(sysbench_home / "locks/cpu.lock"):
        pass


@pytest.mark.parametrize("kind", ["json", "csv", "html"])
def test_an_export_replaces_a_link_and_not_what_it_leads_to(
    run: RunDirectory, secret: Path, tmp_path: Path, kind: str
) -> None:
    target = tmp_path / f"out.{kind}"
    for leads_to in (secret, tmp_path / "nowhere"):
        to_be_read(target, leads_to)
        with pytest.raises(SpecError, match="--force"):
            write_export(run, kind, target)
        assert target.is_symlink()
        write_export(run, kind, target, force=True)
        assert not target.is_symlink()
    assert secret.read_text() == SECRET
    assert not (tmp_path / "nowhere").exists()


def test_an_experiment_names_runs_and_no_paths(run: RunDirectory, sysbench_home: Path) -> None:
    from sysbench.core.experiments.experiment import ExperimentDirectory

    folder = sysbench_home / "experiments" / "e"
    folder.mkdir(parents=True)
    plan = {"id": "e", "created_ns": 1, "a": f"../runs/{run.id}", "b": str(run.path), "seed": 1}
    (folder / "experiment.json").write_text(json.dumps(plan))
    with pytest.raises(DamagedFileError, match="not a run's id"):
        ExperimentDirectory(folder).run("A")
    with pytest.raises(DamagedFileError, match="not a run's id"):
        ExperimentDirectory(folder).run("B")
