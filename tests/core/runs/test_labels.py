"""Names and notes of runs: never in the record, and shown in the list."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sysbench.core.errors import DamagedFileError, SpecError
from sysbench.core.runs.library import (
    FILE,
    UNLABELLED,
    Label,
    Library,
    label_known,
    label_of,
    write_label,
)
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.cli import main

LABEL = Label(name="before the fix", note="clocks locked at 1,410 MHz")


@pytest.fixture
def run(tiny_run: RunDirectory, sysbench_home: Path) -> RunDirectory:
    return RunDirectory(shutil.copytree(tiny_run.path, sysbench_home / "runs" / tiny_run.id))


def test_a_name_is_listed_and_searched_and_leaves_the_record_alone(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run.record_path.read_bytes()
    (before,) = Library().entries()
    write_label(run.path, LABEL)
    (entry,) = Library().entries("fix locked")
    assert (entry.name, entry.note) == (LABEL.name, LABEL.note)
    assert (run.record_path.read_bytes(), run.is_record_as_written()) == (record, True)
    assert main(["list"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert "name" in head.split() and LABEL.name in row
    write_label(run.path, UNLABELLED)
    assert not (run.path / FILE).exists()
    assert Library().entries() == [before]


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[2J", "x" * 41])
def test_a_name_is_one_printable_line(run: RunDirectory, name: str) -> None:
    with pytest.raises(SpecError, match="printable characters"):
        write_label(run.path, Label(name=name))
    assert label_of(run.path) == UNLABELLED


@pytest.mark.parametrize("text", ["[]", "{", '{"name": 7}', '{"name": "' + 41 * "x" + '"}'])
def test_a_run_whose_label_is_damaged_is_listed_without(run: RunDirectory, text: str) -> None:
    (run.path / FILE).write_text(text)
    with pytest.raises(DamagedFileError, match="not a label"):
        label_of(run.path)
    assert label_known(run.path) == UNLABELLED
    assert [entry.name for entry in Library().entries()] == [""]


def test_what_a_stranger_wrote_into_a_label_is_shown_as_text(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.path / FILE).write_text('{"name": "\\u001b[2J", "note": "a\\u202eb"}')
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert r"\x1b[2J" in out and all(char.isprintable() or char == "\n" for char in out)
