"""One file to send: it names no person or machine, and opens elsewhere with the same tables."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.errors import ForeignFileError
from sysbench.core.export.report_document import run_tables
from sysbench.core.inspection.bundle_reading import LANES, MANIFEST, RECORD, TRACE, read_manifest
from sysbench.core.inspection.decoding import Decoding, bundled_run
from sysbench.core.runs.run_directory import RunDirectory, load_record
from sysbench.core.storage import HOME_VARIABLE
from sysbench.tui.cli import main
from tests.imported_files import write_snapshot, write_trace

SHORT_HOST = "vm"
USER, HOST, OTHER_HOST = "zorblax", "quuxbox-07", "gpunode-xy12"
SERIAL = "GPU-8a6f1c2e-1111-2222-3333-444455556666"
ARGUMENT = "wandb-project-tanager"
REDACTED = re.compile(r"…/|\((?:hidden|serial number|path|address|command line)\)|(?:host|user)-\d")
NAMES = (USER, HOST, OTHER_HOST, SERIAL, SERIAL[4:], ARGUMENT, "hunter2")


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of a user of a host with names that occur nowhere else."""
    home = tmp_path / "home" / USER
    home.mkdir(parents=True)
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, USER)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv(HOME_VARIABLE, str(home / "sysbench"))
    monkeypatch.setattr("socket.gethostname", lambda: HOST)
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def strange_run(strange: Path, tiny_run: RunDirectory) -> RunDirectory:
    """A copy of a real run whose texts name its user, host, devices, folders and command."""
    run = RunDirectory(strange / "sysbench" / "runs" / tiny_run.id)
    for path in tiny_run.path.rglob("*"):
        if path.is_file() and path.name not in ("record.sha256", "supervisor.lock"):
            target = run.path / path.relative_to(tiny_run.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    record = json.loads(run.record_path.read_bytes())
    record["environment"]["variables"] = {"NCCL_SECRET": "hunter2", "OMP_NUM_THREADS": "1"}
    facts = {
        "hosts": [{"host": SHORT_HOST}],
        "host": OTHER_HOST,
        "uuid": SERIAL,
        "argv": ["a", ARGUMENT],
    }
    record["environment"]["cluster"] = facts
    tail = [f"loading {strange}/data/x.bin on {HOST} for {USER}", f"rank 0 at {OTHER_HOST}:29500"]
    tail += [f"see '{strange}/my project/a b/notes.txt'"]
    record["passes"][0]["log_tail"] = [
        *tail,
        f"device {SERIAL}",
        f"with {ARGUMENT} at /opt/{USER}/q",
    ]
    record["findings"][0]["why"] += f" See {strange}/train.py:12 on {HOST}."
    run.record_path.write_text(json.dumps(record))
    header = json.loads(run.header_path.read_bytes()) | {"python": f"{strange}/venv/bin/python"}
    run.header_path.write_text(json.dumps(header))
    trace = json.loads(gzip.decompress(run.trace_path.read_bytes()))
    trace["traceName"] = f"{strange}/trace.json"
    trace["traceEvents"].append(
        {
            "ph": "i",
            "name": f"{strange}/my project/train.py(3): main",
            "ts": 1,
            "args": {"host": HOST},
        }
    )
    run.trace_path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return run


def texts(path: Path) -> Iterator[tuple[str, bytes]]:
    """The name and the unpacked content of each part, and the file as it is."""
    yield "the file", path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            yield name, gzip.decompress(data) if name.endswith(".gz") else data


def assert_nothing_left(path: Path, folder: Path) -> None:
    for part, data in texts(path):
        for name in (
            f'"{SHORT_HOST}"',
            *NAMES,
            str(folder),
            str(folder.parent.parent),
            os.path.realpath(folder),
        ):
            assert name.encode() not in data, (name, part)


def test_a_bundle_of_a_run_names_nobody(
    strange: Path, strange_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", strange_run.id, "bundle", "-o", "b.zip", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert_nothing_left(strange / "b.zip", strange)
    manifest = read_manifest(strange / "b.zip")
    assert document["redacted"] == manifest.redacted
    kinds = {"path", "host", "serial number", "environment value", "command line", "user"}
    assert kinds <= manifest.redacted.keys()
    assert {RECORD, LANES, TRACE} <= set(manifest.parts)
    assert main(["export", strange_run.id, "bundle", "-o", "b.zip", "--force"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{kind} {count}" in printed for kind, count in manifest.redacted.items())
    assert all(f"left out: {name}" in printed for name in manifest.left_out)


def move(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bundle: Path) -> Path:
    """Carry a bundle to another home."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "elsewhere"))
    there = tmp_path / "received.zip"
    bundle.rename(there)
    return there


def test_a_bundle_of_a_run_opens_on_another_home(
    strange: Path,
    strange_run: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sent = run_tables(load_record(strange_run))
    assert main(["export", strange_run.id, "bundle", "-o", "b.zip"]) == 0
    file = move(monkeypatch, tmp_path, strange / "b.zip")
    run = bundled_run(file)
    assert run is not None
    assert run.id == strange_run.id
    received = run_tables(load_record(run))
    assert [table.columns for table in received] == [table.columns for table in sent]
    for ours, theirs in zip(sent, received, strict=True):
        for row, other in zip(ours.rows, theirs.rows, strict=True):
            pairs = [(a, b) for a, b in zip(row, other, strict=True) if a != b]
            assert all(REDACTED.search(str(redacted)) for _, redacted in pairs), pairs
    capsys.readouterr()
    for command in ("show", "inspect"):
        assert main([command, str(file), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["id"] == strange_run.id
    assert main(["show", str(file), "--section", "timing"]) == 0
    assert main(["compare", str(file), str(file)]) == 0
    assert main(["export", str(file), "html", "-o", str(tmp_path / "page.html")]) == 0
    assert main(["export", str(file), "perfetto", "-o", str(tmp_path / "t.json")]) == 0
    assert "<h1" in (tmp_path / "page.html").read_text()
    assert json.loads((tmp_path / "t.json").read_bytes())["traceEvents"]


def strange_trace(folder: Path) -> Path:
    path = write_trace(folder / f"{OTHER_HOST}_4711.1700.pt.trace.json", [[("gemm", 100)]] * 4)
    trace = json.loads(path.read_bytes())
    trace["traceName"] = str(path)
    trace["traceEvents"][1]["args"]["host"] = HOST
    for number, event in enumerate(list(trace["traceEvents"])):
        if event["cat"] == "cuda_runtime":
            name = f"{folder}/train.py({number}): step of {USER}"
            event["args"] |= {"uuid": SERIAL, "argv": [ARGUMENT, ARGUMENT]}
            trace["traceEvents"].append(event | {"cat": "python_function", "name": name})
    path.write_text(json.dumps(trace))
    return path


def strange_snapshot(folder: Path) -> Path:
    frames = [(f"{folder}/train.py", 3, "main"), (f"/srv/{USER}/lib/site-packages/a/b.py", 1, "f")]
    return write_snapshot(folder / f"{USER}.pickle", [(2**20, frames)])


@pytest.mark.parametrize("write", [strange_trace, strange_snapshot])
def test_a_bundle_of_an_imported_file(
    strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any
) -> None:
    path = write(strange)
    before = Decoding(path).run(lambda progress: None)
    assert main(["export", str(path), "bundle", "-o", "b.zip"]) == 0
    assert_nothing_left(strange / "b.zip", strange)
    file = move(monkeypatch, tmp_path, strange / "b.zip")
    after = Decoding(file).run(lambda progress: None)
    assert (after.kind, after.file_bytes) == (before.kind, before.file_bytes)
    if before.kernels:
        assert after.kernels is not None
        assert after.kernels.rows == before.kernels.rows
    if before.memory:
        assert after.memory is not None
        assert after.memory.ledger == before.memory.ledger
        assert "site-packages" not in str(after.memory.alike)
        assert "a/b.py" in str(after.memory.alike)
    assert main(["inspect", str(file)]) == 0
    assert main(["export", str(file), "html", "-o", str(tmp_path / "page.html")]) == 0


def test_the_trace_has_the_steps_of_the_tables(strange: Path) -> None:
    path = strange_trace(strange)
    assert main(["export", str(path), "bundle", "-o", "b.zip", "--steps", "1-2"]) == 0
    (trace,) = (data for name, data in texts(strange / "b.zip") if name == TRACE)
    names = {event["name"] for event in json.loads(trace)["traceEvents"]}
    assert {name for name in names if name.startswith("Prof")} == {
        "ProfilerStep#1",
        "ProfilerStep#2",
    }


@pytest.mark.parametrize(
    ("event", "is_left_out"),
    [
        ('{"ph": "i", "name": "x", "ts": null}', False),
        ('{"ph": "C", "name": "x", "ts": "soon"}', False),
        ('{"ph": "X", "name": "x", "ts": 3, "dur": null}', False),
        ('{"ph": "X", "name": "x", "ts": 3, "args": ' + '{"a":' * 900 + "1" + "}" * 901, True),
    ],
    ids=["no time", "a word for a time", "no duration", "nested deeply"],
)
def test_odd_events_are_kept_and_deep_traces_left_out(
    event: str, is_left_out: bool, strange: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = strange / "odd.json"
    text = strange_trace(strange).read_text()
    odd.write_text(text.replace('"traceEvents": [', f'"traceEvents": [{event}, ', 1))
    assert main(["export", str(odd), "bundle", "--steps", "1-2", "-o", "b.zip"]) == 0
    assert (TRACE not in dict(texts(strange / "b.zip"))) is is_left_out
    assert ("left out: trace (" in capsys.readouterr().out) is is_left_out


def hostile(path: Path, *parts: tuple[str, bytes], manifest: bool = True) -> Path:
    head = json.dumps({"schema": 1, "version": "1", "of": "x"}).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in ([(MANIFEST, head)] if manifest else []) + list(parts):
            archive.writestr(name, data)
    return path


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([("../../evil", b"x")], "unknown part"),
        ([("/etc/passwd", b"x")], "unknown part"),
        ([(RECORD, b"{}"), (RECORD, b"{}")], "same name"),
        ([(f"part{number}", b"") for number in range(40)], "too many parts"),
        ([("run.json", b" " * 2**21)], "more than 1"),
        ([(RECORD, b"[" * 10_000)], "without run.json"),
        ([("inspection.json", b"[" * 100_000)], "not an inspection"),
        ([("inspection.json", b"{}"), (LANES, b"\xc1")], "not a timeline"),
        ([], "without"),
    ],
)
def test_a_hostile_bundle_is_refused(
    sysbench_home: Path, tmp_path: Path, parts: list[tuple[str, bytes]], why: str
) -> None:
    file = hostile(tmp_path / "b.zip", *parts)
    with pytest.raises(ForeignFileError, match=why):
        Decoding(file).run(lambda progress: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.zip", "home"]


def test_a_run_with_a_path_as_its_id_is_refused(
    strange: Path, strange_run: RunDirectory, tmp_path: Path
) -> None:
    assert main(["export", strange_run.id, "bundle", "-o", "b.zip"]) == 0
    out = io.BytesIO()
    with zipfile.ZipFile("b.zip") as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = json.loads(old.read(name)) if name.endswith(".json") else old.read(name)
            if isinstance(data, dict):
                data |= {key: "../../up" for key in ("id", "of") if key in data}
            new.writestr(name, data if isinstance(data, bytes) else msgspec.json.encode(data))
    (tmp_path / "evil.zip").write_bytes(out.getvalue())
    with pytest.raises(ForeignFileError, match="different runs"):
        bundled_run(tmp_path / "evil.zip")


def test_a_truncated_bundle_is_refused(strange: Path, strange_run: RunDirectory) -> None:
    assert main(["export", strange_run.id, "bundle", "-o", "b.zip"]) == 0
    data = Path("b.zip").read_bytes()
    Path("b.zip").write_bytes(data[: len(data) // 2])
    with pytest.raises(ForeignFileError, match="not a whole bundle"):
        bundled_run(Path("b.zip"))
