"""Every export opens in what it is for, and replaces nothing by surprise."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sysbench.core.errors import DamagedFileError, NotFoundError, SpecError
from sysbench.core.export.exports import EXPORTS, default_path, replacing, write_export
from sysbench.core.export.text_formats import table_as_csv, tables_as_tidy_csv
from sysbench.core.runs.run_directory import RunDirectory, create_run
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.cells import literal
from sysbench.core.tables.section_tables import tables_of
from sysbench.core.tables.table import Table


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_perfetto_is_the_trace_as_it_is(gpu_run: RunDirectory, tmp_path: Path) -> None:
    (out,) = write_export(gpu_run, "perfetto", tmp_path / "a" / "t.json.gz")
    assert out.read_bytes() == gpu_run.trace_path.read_bytes()
    assert json.loads(gzip.decompress(out.read_bytes())) == {"traceEvents": []}


def test_perfetto_to_a_json_name_is_unpacked(gpu_run: RunDirectory, tmp_path: Path) -> None:
    (out,) = write_export(gpu_run, "perfetto", tmp_path / "t.json")
    assert json.loads(out.read_bytes()) == {"traceEvents": []}


@pytest.mark.parametrize(
    "content",
    [b"plain", gzip.compress(b"<html>", mtime=0), b"\x1f\x8b\x08\x00"],
    ids=["plain", "html", "cut"],
)
def test_damaged_trace_is_refused(gpu_run: RunDirectory, tmp_path: Path, content: bytes) -> None:
    gpu_run.trace_path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"trace\.json\.gz"):
        write_export(gpu_run, "perfetto", tmp_path / "t.json.gz")
    assert list(tmp_path.glob("t*")) == []


def test_truncated_trace_leaves_no_half_file(gpu_run: RunDirectory, tmp_path: Path) -> None:
    whole = gzip.compress(json.dumps({"traceEvents": list(range(50_000))}).encode())
    gpu_run.trace_path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedFileError, match="damaged"):
        write_export(gpu_run, "perfetto", tmp_path / "t.json")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_trace_that_would_fill_the_disk_is_not_unpacked(
    gpu_run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysbench.core.export.exports.SMALL_BYTES", 2**20)
    gpu_run.trace_path.write_bytes(gzip.compress(b"[" + b" " * 2**24))
    with pytest.raises(DamagedFileError, match="more than"):
        write_export(gpu_run, "perfetto", tmp_path / "t.json")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    (out,) = write_export(gpu_run, "perfetto", tmp_path / "t.json.gz")
    assert out.stat().st_size == gpu_run.trace_path.stat().st_size


def test_missing_trace_says_which_pass_makes_one(gpu_run: RunDirectory, tmp_path: Path) -> None:
    gpu_run.trace_path.unlink()
    with pytest.raises(NotFoundError, match="--passes timing,trace"):
        write_export(gpu_run, "perfetto", tmp_path / "t.json")


def test_snapshot_is_a_pickle_of_protocol_4(gpu_run: RunDirectory, tmp_path: Path) -> None:
    (out,) = write_export(gpu_run, "memory-viz", tmp_path / "s.pickle")
    assert out.read_bytes()[:2] == b"\x80\x04"
    assert pickle.loads(out.read_bytes()) == {"segments": []}


def test_foreign_snapshot_is_refused(gpu_run: RunDirectory, tmp_path: Path) -> None:
    gpu_run.snapshot_path.write_bytes(b"hello")
    with pytest.raises(DamagedFileError, match="protocol 4"):
        write_export(gpu_run, "memory-viz", tmp_path / "s.pickle")


def test_snapshot_of_a_cpu_run_says_why_and_what_instead(sysbench_home: Path) -> None:
    run = create_run(RunSpec(device="cpu"), ["memory"])
    with pytest.raises(NotFoundError, match=r"CUDA allocator only.*csv"):
        write_export(run, "memory-viz", sysbench_home / "s.pickle")


def test_csv_folder_reads_back_to_the_same_cells(gpu_run: RunDirectory, tmp_path: Path) -> None:
    paths = write_export(gpu_run, "csv", tmp_path / "tables")
    tables = {table.name: table for table in tables_of(gpu_run.record())}
    assert {path.stem for path in paths} == set(tables)
    for path in paths:
        with path.open(newline="") as file:
            header, *rows = csv.reader(file)
        table = tables[path.stem]
        assert tuple(header) == table.columns
        assert rows == [
            ["" if cell is None else literal(str(cell)) for cell in row] for row in table.rows
        ]
    kernels = gpu_run.record().kernels
    assert kernels is not None
    name = read_csv(tmp_path / "tables" / "kernels.csv")[0]["name"]
    assert name == literal(kernels.rows[0].name)


def test_csv_file_is_tidy(gpu_run: RunDirectory, tmp_path: Path) -> None:
    (out,) = write_export(gpu_run, "csv", tmp_path / "all.csv")
    cells = {(row["table"], row["row"], row["column"]): row["value"] for row in read_csv(out)}
    assert cells["timing", "0", "phase"] == "step"
    assert cells["timing", "0", "median_ms"] == "10.0"


def test_markdown_names_every_column_that_decides(gpu_run: RunDirectory, tmp_path: Path) -> None:
    (out,) = write_export(gpu_run, "md", tmp_path / "r.md")
    text = out.read_text()
    head = text.partition("## Trust")[0]
    for word in (
        *("tiny", "787,072 parameters", "batch 4", "context 128", "bf16", "naive attention"),
        *("compile off", "train with adamw-foreach", "cuda:0", "NVIDIA H100", "3 threads"),
    ):
        assert word in head


def test_markdown_tables_are_not_broken_by_names(gpu_run: RunDirectory, tmp_path: Path) -> None:
    (out,) = write_export(gpu_run, "md", tmp_path / "r.md")
    lines = out.read_text().splitlines()
    assert not any("\x1b" in line for line in lines)
    (row,) = [line for line in lines if "void k" in line and "gemm" in line]
    header = lines[lines.index(row) - 2]
    assert row.replace(r"\|", "").count("|") == header.count("|")
    assert r"\[bold\]" in row


def test_json_is_the_record(gpu_run: RunDirectory, tmp_path: Path) -> None:
    (out,) = write_export(gpu_run, "json", tmp_path / "r.json")
    assert json.loads(out.read_bytes()) == json.loads(gpu_run.record_path.read_bytes())


@pytest.mark.parametrize("kind", EXPORTS)
def test_nothing_is_replaced_unless_forced(
    gpu_run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    first = write_export(gpu_run, kind)
    assert first[0].is_relative_to(default_path(gpu_run, kind))
    before = [path.read_bytes() for path in first]
    first[0].write_bytes(b"mine")
    with pytest.raises(SpecError, match="--force"):
        write_export(gpu_run, kind)
    assert first[0].read_bytes() == b"mine"
    assert write_export(gpu_run, kind, force=True) == first
    assert [path.read_bytes() for path in first] == before


@pytest.mark.parametrize("kind", EXPORTS)
def test_a_device_is_not_replaced_though_forced(
    gpu_run: RunDirectory, tmp_path: Path, kind: str
) -> None:
    target = tmp_path / "pipe.csv"
    os.mkfifo(target)
    with pytest.raises(SpecError, match="not a regular file"):
        write_export(gpu_run, kind, target, force=True)
    assert target.is_fifo()


@pytest.mark.parametrize("kind", EXPORTS)
@pytest.mark.parametrize("leads_to", ["/proc/self/fd/{file}", "/dev/stdout", "other"])
def test_no_link_of_the_system_is_replaced_though_forced(
    gpu_run: RunDirectory, tmp_path: Path, kind: str, leads_to: str
) -> None:
    """What they lead to may be a regular file, as standard output in a file is."""
    target = tmp_path / "out.csv"
    (tmp_path / "other").symlink_to("/dev/stdin")
    with (tmp_path / "file").open("wb") as file:
        target.symlink_to(leads_to.format(file=file.fileno()))
        with pytest.raises(SpecError, match="not replaced"):
            write_export(gpu_run, kind, target, force=True)
        assert target.is_symlink()
    assert not (tmp_path / "file").stat().st_size


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/full")])
def test_what_appears_while_an_export_is_written_is_not_replaced(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    target = tmp_path / "r.md"
    with pytest.raises(SpecError, match="output"), replacing(target) as file:
        file.write(b"text")
        make(target)
    assert [path.name for path in tmp_path.iterdir()] == ["r.md"]
    assert not target.is_file()


def test_folder_as_target_gets_the_default_name(gpu_run: RunDirectory, tmp_path: Path) -> None:
    (out,) = write_export(gpu_run, "md", tmp_path)
    assert out == tmp_path / f"{gpu_run.id}.md"


def test_target_that_cannot_be_made_is_a_message(gpu_run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"cannot be written: .*/file is not a folder"):
        write_export(gpu_run, "md", tmp_path / "file" / "r.md")


def test_unknown_kind_names_those_there_are(gpu_run: RunDirectory) -> None:
    with pytest.raises(SpecError, match="perfetto, memory-viz"):
        write_export(gpu_run, "pdf")


def test_nsys_script_is_valid_bash_with_its_spec_beside_it(
    gpu_run: RunDirectory, tmp_path: Path
) -> None:
    script, spec = write_export(gpu_run, "nsys", tmp_path / "with space" / "profile.sh")
    subprocess.run(["bash", "-n", script], check=True)
    assert json.loads(spec.read_bytes())["precision"] == "bf16"
    assert "cudaProfilerApi" in script.read_text()
    assert script.stat().st_mode & 0o100


def test_name_of_a_run_cannot_add_a_line_to_the_script(
    gpu_run: RunDirectory, tmp_path: Path
) -> None:
    moved = gpu_run.path.rename(gpu_run.path.with_name("x\ntouch owned\n"))
    script, _ = write_export(RunDirectory(moved), "nsys", tmp_path / "profile.sh")
    fake_free = {"PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", script], cwd=tmp_path, env=fake_free, capture_output=True)
    assert not (tmp_path / "owned").exists()


def fake_nsys(folder: Path, help_text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nsys on PATH that knows some options and prints how it was called."""
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(
        "#!/bin/sh\n"
        f'if [ "$2" = --help ]; then cat <<EOF\n{help_text}\nEOF\nexit; fi\n'
        'printf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_nsys_script_leaves_out_what_the_installed_nsys_lacks(
    gpu_run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = "-t, --trace=\n-s, --sample=\n-c, --capture-range=\n--export=\n-f, --force-overwrite="
    fake_nsys(tmp_path / "bin", known, monkeypatch)
    script, spec = write_export(gpu_run, "nsys", tmp_path / "profile.sh")
    called = subprocess.run(["bash", script], capture_output=True, text=True, check=True).stdout
    arguments = called.splitlines()
    assert arguments[0] == "profile"
    assert "--sample=none" in arguments
    assert not [one for one in arguments if one.startswith("--cuda-graph-trace")]
    assert "left out, this nsys has no --cuda-graph-trace" in script.read_text()
    assert arguments[arguments.index("--spec") + 1] == str(spec)
    assert arguments[-1] == "--capture"


@pytest.mark.parametrize("name", ['=HYPERLINK("http://x")', "+1", "-1+1", "@SUM(A1)", "\t=1"])
def test_a_foreign_name_is_no_formula_in_a_spreadsheet(name: str) -> None:
    shown = r"\t=1" if name[0] == "\t" else f"'{name}"  # a visible tab starts no formula
    rows = ((name, -1.5), ("k<-1>", None))
    table = Table(name="t", title="T", columns=("name", "value"), rows=rows)
    lines = list(csv.reader(table_as_csv(table).decode().splitlines()))
    assert lines == [["name", "value"], [shown, "-1.5"], ["k<-1>", ""]]
    tidy = list(csv.reader(tables_as_tidy_csv([table]).decode().splitlines()))
    assert tidy[1] == ["t", "0", "name", shown]
