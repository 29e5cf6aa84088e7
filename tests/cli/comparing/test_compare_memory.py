"""`compare` lists memory differences, also without timing."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from sysbench.core.record.record import LedgerRow, Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import HOME_VARIABLE
from sysbench.tui.cli import main


@pytest.fixture
def two_runs(tiny_run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two copies of the run in a home of their own; the second holds 1 MiB more."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    ids = []
    for name, more in (("aaaa", 0), ("bbbb", 2**20)):
        run_id = tiny_run.id[:-4] + name
        folder = tmp_path / "runs" / run_id
        shutil.copytree(tiny_run.path, folder)
        header = folder / "run.json"
        header.write_text(header.read_text().replace(tiny_run.id, run_id))
        run = RunDirectory(folder)
        run.write_record(_with_more(run.record(), run_id, more))
        ids.append(run_id)
    return ids


def _with_more(record: Record, run_id: str, more: int) -> Record:
    assert record.memory is not None
    rows = [
        LedgerRow(row.name, row.bytes + more * (row.name == "parameters"))
        for row in record.memory.ledger
    ]
    memory = msgspec.structs.replace(record.memory, ledger=rows)
    return msgspec.structs.replace(record, id=run_id, timing=None, memory=memory)


def test_the_rows_that_differ_are_listed(
    two_runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *two_runs]) == 0
    text = capsys.readouterr().out
    assert "no timing in" in text
    assert "Medians" not in text
    part = text[text.index("The peak of memory, row by row") :]
    assert "1.00 MiB" in part
    assert "parameters" in part
    assert "Stacks at the two peaks" not in text


def test_the_json_has_every_change(two_runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *two_runs, "--json"]) == 0
    memory = msgspec.json.decode(capsys.readouterr().out)["memory"]
    (row,) = memory["rows"]
    assert row["name"] == "parameters"
    assert row["b_bytes"] - row["a_bytes"] == 2**20
