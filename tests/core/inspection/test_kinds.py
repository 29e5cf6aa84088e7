"""A file is what its content says, whatever its name."""

from __future__ import annotations

import gzip
import io
import os
import shlex
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from sysbench.core.errors import ForeignFileError
from sysbench.core.inspection.inspection import format_of
from sysbench.core.runs.run_directory import RunDirectory


def misnamed(path: Path) -> Path:
    return Path(shutil.copy(path, path.with_name(f"{path.stem} of a friend.txt")))


def test_names_tell_nothing(trace: Path, snapshot: Path, export: Path) -> None:
    kinds = [format_of(misnamed(path)) for path in (trace, snapshot, export)]
    assert kinds == ["chrome-trace", "memory-snapshot", "nsys-export"]


@pytest.mark.parametrize(
    "data", [b"[]", b"\n\n {}", b"\xef\xbb\xbf[", gzip.compress(b" {", mtime=0)]
)
def test_json_plain_or_packed_is_a_trace(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    assert format_of(path) == "chrome-trace"


def test_a_settings_file_is_no_list_of_events(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[build-system]\nrequires = ["setuptools"]\n')
    with pytest.raises(ForeignFileError, match="of an unknown kind"):
        format_of(path)


def test_a_packed_pickle_is_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(b"\x80\x04", mtime=0))
    assert format_of(path) == "memory-snapshot"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04...", "as torch.save writes"),
        (b"\x7fELF", "of an unknown kind, not a chrome trace"),
        (b"\x1f\x8b", "not whole gzip"),
        (b"\x1f\x8b\x08" + bytes(40), "not whole gzip"),
        (b'{"rocprofiler-sdk-tool": [{}]}', "of rocprofv3, which is not read"),
        (gzip.compress(b"SQLite format 3\x00", mtime=0), "unpack it"),
        (b"SQLite format 3\x00...CREATE TABLE rocpd_op (id)", "rocpd database of ROCm"),
        (gzip.compress(b"SQLite format 3\x00 rocpd_string", mtime=0), "rocpd database of ROCm"),
        (b"NVR\x00\x01\x02", "report of Nsight Compute"),
        (b"\n\x20\x08\x01\x12\x0d/device:GPU:0", "XPlane"),
        ("[]".encode("utf-16"), "UTF-16; convert it"),
        ('{"traceEvents": []}'.encode("utf-16-le"), "UTF-16; convert it"),
        (gzip.compress("[{}]".encode("utf-16-be"), mtime=0), "UTF-16; convert it"),
        (b"\x28\xb5\x2f\xfd...", "packed with zstd"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"\n<!DOCTYPE html><html>", "page of HTML"),
        (b'{"$schema":"https://www.speedscope.app/file-format-schema.json"}', "speedscope"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(ForeignFileError, match=reason) as caught:
        format_of(path)
    assert str(path) in str(caught.value) and caught.value.exit_code == 2


def packed_with(name: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(name, "{}")
    return data.getvalue()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("rank 3.json", "'rank 3.json' first.*unpack it"), ("model/data.pkl", "torch.save writes")],
)
def test_a_zip_is_named_by_what_is_in_it(tmp_path: Path, name: str, reason: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(packed_with(name))
    with pytest.raises(ForeignFileError, match=reason):
        format_of(path)


def test_a_packed_folder_is_a_tar_archive(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    path = tmp_path / "file"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "a.json")
    with pytest.raises(ForeignFileError, match="a tar archive; unpack it"):
        format_of(path)


@pytest.mark.parametrize("name", ["run.json", "record.json", "events.jsonl", "kernels.json"])
def test_a_trace_with_the_name_of_a_run_s_file_is_a_trace(
    tmp_path: Path, name: str, tiny_run: RunDirectory
) -> None:
    """In a folder of its own, and in the folder of a run."""
    run = shutil.copytree(tiny_run.path, tmp_path / "run")
    for path in (tmp_path / name, run / name):
        path.write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "X"}]}')
        assert format_of(path) == "chrome-trace"


def test_a_file_of_a_run_is_told_under_another_name(tiny_run: RunDirectory, tmp_path: Path) -> None:
    for number, path in enumerate((tiny_run.record_path, tiny_run.events_path)):
        copy = shutil.copy(path, tmp_path / f"trace-{number}.json")
        with pytest.raises(ForeignFileError, match="is a file of a run"):
            format_of(Path(copy))


def test_a_report_of_nsys_comes_with_the_line_that_exports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "my report.nsys-rep"
    path.write_bytes(b"\x00binary")
    command = f"nsys export --type sqlite -o '{tmp_path}/my report.sqlite' '{path}'"
    for folder, hint in ((tmp_path, "here is none"), (_with_nsys(tmp_path / "bin"), "export it,")):
        monkeypatch.setenv("PATH", str(folder))
        with pytest.raises(ForeignFileError) as caught:
            format_of(path)
        assert command in str(caught.value) and hint in str(caught.value)
    path.write_bytes(b"")
    with pytest.raises(ForeignFileError, match="is empty"):
        format_of(path)


def _with_nsys(folder: Path) -> Path:
    folder.mkdir()
    (folder / "nsys").write_text("#!/bin/sh\n")
    (folder / "nsys").chmod(0o755)
    return folder


def test_what_is_of_a_run_is_said_with_what_shows_it(tiny_run: RunDirectory) -> None:
    for path in (
        *(tiny_run.path, tiny_run.pass_folder("trace"), tiny_run.record_path),
        *(tiny_run.events_path, tiny_run.header_path, tiny_run.pass_folder("trace/kernels.json")),
    ):
        with pytest.raises(ForeignFileError) as caught:
            format_of(path)
        lines = str(caught.value).splitlines()
        assert lines[0].startswith(str(path)) and " of a run, which is shown by:" in lines[0]
        assert lines[1] == f"  sysbench-tui show {shlex.quote(str(tiny_run.path))}"
        assert "trace/trace.json.gz" in lines[2] and "memory/allocations.json.gz" in lines[2]


def test_a_file_named_like_one_of_ours_is_read_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text('{"traceEvents": []}')
    assert format_of(path) == "chrome-trace"


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    for name, reason in {
        "pipe": "not a regular file",
        "absent": "No such file",
        "": "is a folder",
        "run": "sysbench-tui show",
        "zero\0byte": "null byte",
    }.items():
        with pytest.raises(ForeignFileError, match=reason):
            format_of(tmp_path / name)
