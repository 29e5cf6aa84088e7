"""Run directories of somebody else: nothing hangs, nothing is believed, no other run is hidden."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from sysbench.core.errors import DamagedFileError
from sysbench.core.record import events
from sysbench.core.record.events import EventTail, Noticed, encode_event
from sysbench.core.runs.artifacts import layer_rows
from sysbench.core.runs.library import Library
from sysbench.core.runs.run_directory import RunDirectory, find_run, load_record, replay_events
from sysbench.core.storage import decoded_bytes
from sysbench.tui.cli import main
from tests.envelope import content

DEEP = b'{"event":"ResultReported","t_ns":1,"block":"timing","data":{"a":' + b"[" * 200_000
PATIENCE_SECONDS = 60


@pytest.fixture
def run(tiny_run: RunDirectory, sysbench_home: Path) -> RunDirectory:
    """A copy of a finished run, to be made hostile; the original stays intact."""
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


def plant_socket(path: Path) -> None:
    folder = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(folder)


def plant_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    "name", ["record.json", "events.jsonl", "supervisor.lock", "record.sha256", "timing/log.txt"]
)
@pytest.mark.parametrize("plant", [plant_socket, plant_loop, Path.mkdir])
def test_what_is_no_file_hides_no_other_run(
    run: RunDirectory, name: str, plant: Callable[[Path], None]
) -> None:
    if name in ("events.jsonl", "timing/log.txt"):
        run.record_path.unlink()
    (run.path / name).unlink(missing_ok=True)
    plant(run.path / name)
    assert "20260101-000000-whole-0000" in {entry.id for entry in Library().entries()}
    assert not run.is_live()


def test_folders_that_cannot_be_runs_hide_none(run: RunDirectory, sysbench_home: Path) -> None:
    runs = sysbench_home / "runs"
    plant_loop(runs / "20260101-000000-loop-0000")
    no_text = runs / os.fsdecode(b"20260101-000000-\xff-0000")
    shutil.copytree(run.path, no_text)
    assert len(Library().entries()) == 2
    assert "whole" in listed(sysbench_home)
    with pytest.raises(DamagedFileError, match="UTF-8"):
        find_run(str(no_text))


def without_rights(command: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    """A command of a user who may do no more than the owner: root may read everything."""
    drop = (
        "import ctypes, sys; from sysbench.tui.cli import main\n"
        "libc = ctypes.CDLL(None)\n"
        "version = (ctypes.c_uint32 * 2)(0x20080522, 0)\n"
        "if libc.capset(version, (ctypes.c_uint32 * 6)()): sys.exit(77)\n"
        f"sys.exit(main({command!r}))"
    )
    return subprocess.run(
        [sys.executable, "-P", "-c", drop],
        env={**os.environ, "SYSBENCH_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def test_a_run_of_somebody_else_in_a_shared_folder_hides_none(
    run: RunDirectory, sysbench_home: Path
) -> None:
    run.path.chmod(0)
    try:
        done = without_rights(["list"], sysbench_home)
    finally:
        run.path.chmod(0o755)
    if done.returncode == 77:
        pytest.skip("capabilities cannot be dropped here")
    assert done.returncode == 0, done.stderr
    assert "20260101-000000-whole-0000" in done.stdout
    assert f"not listed: {run.id}" in done.stderr


def test_a_killed_run_on_a_full_disk_is_listed(run: RunDirectory, sysbench_home: Path) -> None:
    """Its record cannot be stored, and is rebuilt each time."""
    run.record_path.unlink()
    code = (
        "import resource, sys; from sysbench.tui.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "sys.exit(main(['list']))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "SYSBENCH_HOME": str(sysbench_home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert run.id in done.stdout
    assert not run.record_path.exists()


@pytest.mark.parametrize("name", ["log.x.txt", "log.².txt", "log.0.txt", f"log.{'9' * 5000}.txt"])
def test_a_log_of_another_name_is_none(
    run: RunDirectory, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(OSError):  # the longest name is no name of a file
        (run.pass_folder("timing") / name).write_text("x")
    assert main(["show", run.id, "--section", "log", "--json"]) == 0
    assert set(content(capsys.readouterr().out)) == {"timing", "trace", "memory"}


def test_the_working_directory_names_no_run_that_the_library_has(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / run.id).mkdir()
    (tmp_path / run.id / "run.json").write_bytes(run.header_path.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert find_run(run.id).path == run.path
    assert find_run(f"./{run.id}").path == tmp_path / run.id


BOMB = b"[" + b"[]," * 12_000_000 + b"0]"
"""36 MB that would take 800."""


def read_all(run: RunDirectory) -> None:
    layer_rows(run, run.record())
    run.header()


@pytest.mark.parametrize("name", ["record.json", "run.json", "trace/kernels.json"])
def test_json_that_grows_in_memory_is_not_decoded(run: RunDirectory, name: str) -> None:
    (run.path / name).write_bytes(b'{"environment":' + BOMB + b"}")
    with pytest.raises(DamagedFileError, match="of memory"):
        read_all(run)


def test_an_event_that_grows_in_memory_is_skipped(run: RunDirectory) -> None:
    before = load_record(run)
    line = b'{"event":"DeviceDescribed","t_ns":1,"facts":{"a":' + BOMB + b"}}"
    add_event(line)(run)
    assert load_record(run).timing == before.timing


def taken(value: object) -> int:
    """Bytes that a decoded value takes, pointers to it included."""
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        inner = (one for pair in value.items() for one in pair)
    elif isinstance(value, list):
        inner = value
    return sys.getsizeof(value) + sum(map(taken, inner))


@pytest.mark.parametrize(
    "repeated", ["[]", "{}", "[[]]", "[1]", '{"a":1}', "1.5", "12345678", '"ab"', '{"a":{"b":[]}}']
)
def test_what_json_takes_in_memory_is_known_within_a_factor_of_two(repeated: str) -> None:
    data = f"[{','.join([repeated] * 1000)}]".encode()
    assert taken(msgspec.json.decode(data)) <= 2 * decoded_bytes(data)


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
    assert replay_events(run).record().id == run.id
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
    monkeypatch.setattr(events, "MAX_LINE_BYTES", 1_000)
    events_written = [Noticed(t_ns=n, message="x" * n) for n in range(0, 900, 50)]
    lines = [encode_event(event) for event in events_written]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(lines[:9]) + b"y" * 5_000 + b"\n" + b"".join(lines[9:])[:-20])
    tail = EventTail(path)
    assert list(tail.read()) == events_written[:-1]
    with path.open("ab") as file:
        file.write(lines[-1][-20:])
    assert list(tail.read()) == events_written[-1:]
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
