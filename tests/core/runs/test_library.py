"""The index of the runs: rebuilt if it is not ours, left alone while it is in use."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sysbench.core import storage
from sysbench.core.runs import library
from sysbench.core.runs.library import Entry, Library
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.cli import main

PLAIN = "CREATE TABLE runs (id TEXT PRIMARY KEY, version TEXT, entry BLOB, search TEXT);"
ENDLESS_VIEW = (
    "CREATE VIEW runs AS WITH RECURSIVE endless(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM "
    "endless) SELECT x AS id, x AS version, x AS entry, x AS search FROM endless;"
)
TRIGGER = (
    "CREATE TRIGGER t AFTER INSERT ON runs BEGIN UPDATE runs SET entry = replace(CAST(entry AS "
    """TEXT), '"finished"', '"failed"') WHERE id = NEW.id; END;"""
)
LISTING = "from sysbench.core.runs.library import Library; print(Library().entries()[0].status)"


@pytest.fixture
def run(tiny_run: RunDirectory, sysbench_home: Path) -> RunDirectory:
    return RunDirectory(shutil.copytree(tiny_run.path, sysbench_home / "runs" / tiny_run.id))


@pytest.mark.parametrize(
    "planted",
    [ENDLESS_VIEW, PLAIN + TRIGGER, PLAIN + "CREATE TABLE more (a);", "CREATE TABLE runs (id);"],
    ids=["view", "trigger", "table", "columns"],
)
def test_an_index_that_is_not_ours_is_rebuilt(run: RunDirectory, planted: str) -> None:
    path = Library().path
    with closing(sqlite3.connect(path)) as database:
        database.executescript(planted)
    # In a process of its own: the view would never end.
    done = subprocess.run(
        [sys.executable, "-P", "-c", LISTING], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "finished\n", done.stderr
    with closing(sqlite3.connect(path)) as database:
        assert database.execute(
            "SELECT sql || ';' FROM sqlite_master WHERE sql > ''"
        ).fetchall() == [(PLAIN,)]


@pytest.mark.parametrize(
    "entry", ["{}", "[" * 100_000, None, 7], ids=["empty", "deep", "null", "int"]
)
def test_a_row_that_cannot_be_read_is_rebuilt(run: RunDirectory, entry: object) -> None:
    before = Library().entries()
    with closing(sqlite3.connect(Library().path)) as database, database:
        database.execute("UPDATE runs SET entry = ?", (entry,))
    assert Library().entries() == before


def test_an_index_in_use_is_left_alone(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "BUSY_SECONDS", 0.01)
    before = Library().entries()
    inode = Library().path.stat().st_ino
    with closing(sqlite3.connect(Library().path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert Library().entries() == before
        assert Library().entries("no such word") == []
        other.execute("DELETE FROM runs")
        other.execute("COMMIT")
    assert Library().path.stat().st_ino == inode
    assert Library().entries() == before


def test_a_home_that_cannot_be_written_is_listed(run: RunDirectory, tmp_path: Path) -> None:
    before = Library().entries()
    Library().path.unlink()
    Library().path.symlink_to(tmp_path / "no" / "such" / "folder")  # not even root writes there
    assert Library().entries() == before


def test_another_record_with_the_time_of_the_old_one_is_seen(run: RunDirectory) -> None:
    (before,) = Library().entries()
    written = run.record_path.stat()
    changed = run.record_path.read_bytes().replace(b'"finished"', b'"hung"', 1)
    run.record_path.write_bytes(changed)
    (run.path / "record.sha256").unlink()
    os.utime(run.record_path, ns=(written.st_atime_ns, written.st_mtime_ns))
    (after,) = Library().entries()
    assert (before.status, after.status) == ("finished", "hung")


def test_a_run_that_became_unreadable_is_reported_and_not_listed_from_memory(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    first: list[Entry] = Library().entries()
    assert first
    run.record_path.write_bytes(b"{")
    run.events_path.unlink()
    assert main(["list"]) == 0
    output = capsys.readouterr()
    assert "no runs" in output.out
    assert f"not listed: {run.id}: " in output.err


def test_runs_that_ended_are_listed_again_without_opening_any_of_their_files(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Library().entries()

    def opened(path: Path) -> None:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(storage, "open_regular", opened)
    assert Library().entries() == before
