"""Run directories of somebody else: nothing hangs, nothing is believed, no other run is hidden."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sysbench.core.errors import DamagedFileError
from sysbench.core.record import events
from sysbench.core.record.events import EventTail, Noticed, encode_event
from sysbench.core.runs.builder import load_record, replay
from sysbench.core.runs.directory import RunDirectory
from sysbench.core.runs.library import Library
from sysbench.tui.cli import main

DEEP = b'{"event":"ResultReported","t_ns":1,"block":"timing","data":{"a":' + b"[" * 200_000
PATIENCE_SECONDS = 60


@pytest.fixture
def run(tiny_run: RunDirectory, sysbench_home: Path) -> RunDirectory:
    """A copy of a finished run, to be made hostile; another whole one is beside it."""
    shutil.copytree(tiny_run.path, sysbench_home / "runs" / "20260101-000000-whole-0000")
    return RunDirectory(shutil.copytree(tiny_run.path, sysbench_home / "runs" / tiny_run.id))


def listed(home: Path) -> str:
    """What a fresh process lists; it may hang."""
    code = "import sys; from sysbench.tui.cli import main; sys.exit(main(['list', '--json']))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "SYSBENCH_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name", ["record.json", "events.jsonl", "supervisor.lock", "record.sha256", "timing/log.txt"]
)
def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(
    run: RunDirectory, name: str, sysbench_home: Path
) -> None:
    if name in ("events.jsonl", "timing/log.txt"):
        run.record_path.unlink()
    (run.path / name).unlink(missing_ok=True)
    os.mkfifo(run.path / name)
    assert "20260101-000000-whole-0000" in listed(sysbench_home)


def write_deep_record(run: RunDirectory) -> None:
    run.record_path.write_bytes(DEEP)
    run.events_path.unlink()


def write_deep_header(run: RunDirectory) -> None:
    run.record_path.unlink()
    run.header_path.write_bytes(b'{"spec":{"model":' + b"[" * 200_000)


def add_event(line: bytes) -> Callable[[RunDirectory], None]:
    def harm(run: RunDirectory) -> None:
        run.record_path.unlink()
        with run.events_path.open("ab") as file:
            file.write(line + b"\n")

    return harm


def change_spec(**values: object) -> Callable[[RunDirectory], None]:
    def harm(run: RunDirectory) -> None:
        record = json.loads(run.record_path.read_bytes())
        record["spec"] = values and record["spec"] | values
        run.record_path.write_text(json.dumps(record))
        (run.path / "record.sha256").unlink()
        run.events_path.unlink()

    return harm


@pytest.mark.parametrize(
    "harm",
    [
        write_deep_record,
        write_deep_header,
        add_event(b'{"event":"ResultReported","t_ns":1,"block":"timing","data":{"a":1}}'),
        add_event(b'{"event":"TelemetrySampled","t_ns":1,"sample":{"host":1}}'),
        change_spec(),
        change_spec(batch="four"),
        change_spec(model=["tiny"]),
        change_spec(context=2**40),
        change_spec(d_model=0),
    ],
)
def test_a_run_that_cannot_be_read_is_refused_and_hides_no_other(
    run: RunDirectory, harm: Callable[[RunDirectory], None]
) -> None:
    harm(run)
    with pytest.raises(DamagedFileError):
        load_record(run)
    assert [entry.id for entry in Library().entries()] == ["20260101-000000-whole-0000"]


def test_an_event_that_nests_without_end_is_skipped(run: RunDirectory) -> None:
    before = load_record(run)
    add_event(DEEP)(run)
    assert load_record(run).timing == before.timing


@pytest.mark.parametrize("name", ["../../../../etc", "20260101-000000-whole-0000"])
def test_a_record_cannot_name_another_run(run: RunDirectory, name: str) -> None:
    record = json.loads(run.record_path.read_bytes())
    run.record_path.write_text(json.dumps(record | {"id": name}))
    (run.path / "record.sha256").unlink()
    assert load_record(run).id == run.id
    header = json.loads(run.header_path.read_bytes())
    run.header_path.write_text(json.dumps(header | {"id": name}))
    assert replay(run).id == run.id
    assert {entry.id for entry in Library().entries()} == {run.id, "20260101-000000-whole-0000"}


def test_a_record_larger_than_any_is_not_read(run: RunDirectory) -> None:
    os.truncate(run.record_path, 2**40)  # without a block on disk
    run.events_path.unlink()
    with pytest.raises(DamagedFileError, match="TiB"):
        load_record(run)


def test_events_are_read_in_pieces_and_a_line_without_end_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "CHUNK_BYTES", 100)
    monkeypatch.setattr(events, "MOST_LINE_BYTES", 1_000)
    told = [Noticed(t_ns=n, message="x" * n) for n in range(0, 900, 50)]
    lines = [encode_event(event) for event in told]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(lines[:9]) + b"y" * 5_000 + b"\n" + b"".join(lines[9:])[:-20])
    tail = EventTail(path)
    assert list(tail.read()) == told[:-1]
    with path.open("ab") as file:
        file.write(lines[-1][-20:])
    assert list(tail.read()) == told[-1:]
    assert tail.skipped == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("timing", "phases", "forward", "median_ms"), 0),
        (("timing", "step", "median_ms"), 0),
        (("timing", "step", "median_ms"), 1e308),
        (("environment", "settings", "threads"), "many"),
        (("environment", "settings"), 7),
    ],
)
def test_a_record_with_figures_that_cannot_be_is_shown_as_it_is(
    run: RunDirectory, path: tuple[str, ...], value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads(run.record_path.read_bytes())
    holder = record
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    run.record_path.write_text(json.dumps(record))
    (run.path / "record.sha256").unlink()
    assert main(["show", run.id]) == 0
    assert main(["show", run.id, "--section", "questions"]) == 0
    assert capsys.readouterr().out
