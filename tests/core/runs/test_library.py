"""The index of the runs: rebuilt if it is not ours."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO

import pytest

from sysbench.core import storage
from sysbench.core.runs.library import Entry, Library
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.cli import main


@pytest.fixture
def run(tiny_run: RunDirectory, sysbench_home: Path) -> RunDirectory:
    return RunDirectory(shutil.copytree(tiny_run.path, sysbench_home / "runs" / tiny_run.id))


@pytest.mark.parametrize(
    "planted",
    [b"", b"{", b"7", b"[" * 100_000, b'{"a": {"version": "", "entry": {}}}'],
    ids=["empty", "torn", "number", "deep", "entry"],
)
def test_an_index_that_is_not_ours_is_rebuilt(run: RunDirectory, planted: bytes) -> None:
    before = Library().entries()
    written = Library().path.read_bytes()
    Library().path.write_bytes(planted)
    assert Library().entries() == before
    assert Library().path.read_bytes() == written


def test_a_row_under_the_id_of_another_run_is_rebuilt(run: RunDirectory) -> None:
    before = Library().entries()
    path = Library().path
    path.write_bytes(path.read_bytes().replace(b'"id":"', b'"id":"other-'))
    assert Library().entries() == before


def test_a_home_that_cannot_be_written_is_listed(run: RunDirectory) -> None:
    before = Library().entries()
    assert Library().entries("no such word") == []
    Library().path.unlink()
    Library().path.mkdir()  # not even root writes there
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

    open_index = storage.open_regular

    def opened(path: Path, inside: Path | None = None) -> IO[bytes]:
        assert path == Library().path, f"{path} was opened"
        return open_index(path, inside)

    monkeypatch.setattr(storage, "open_regular", opened)
    assert Library().entries() == before
