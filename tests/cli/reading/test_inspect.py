"""`inspect`: the tables of anyone's file, as text, JSON, Markdown and CSV."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import pickle
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.cli import main
from tests.envelope import content
from tests.imported_files import write_trace

pytestmark = pytest.mark.usefixtures("sysbench_home")


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["inspect", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    try:
        code = main(["inspect", *map(str, arguments)])
    except SystemExit as end:  # what argparse itself refuses
        code = int(str(end.code))
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    return captured.err


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    frames = [{"filename": "model.py", "line": 3, "name": "[bold]\x1b[31m"}]
    trace = [{"action": "alloc", "addr": 4096, "size": 2**20, "time_us": 1, "frames": frames}]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))
    return path


def test_a_trace_reads_like_the_run_it_is_of(
    tiny_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, tiny_run.trace_path)
    lines = text.splitlines()
    assert lines[0] == str(tiny_run.trace_path)
    assert lines[1].startswith("chrome trace · ")
    assert any("100.0 %" in line and line.endswith("  step") for line in lines)
    assert "gemm" in text and "\x1b" not in text
    assert max(map(len, lines[1:])) <= 100


def test_an_export_without_kernels_says_why_before_any_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = runpy.run_path(str(Path(__file__).parents[2] / "nsys_double" / "build.py"))
    writer = build["ExportWriter"](tmp_path / "export.sqlite")
    writer.message("No CUDA events collected.", severity=2)
    writer.range("step", 0, 1000)
    lines = list(filter(None, printed(capsys, writer.write()).splitlines()))
    assert "Problem: The export has no kernels: nsys warned" in lines[2]
    assert "traced span" not in "".join(lines)


def test_json_has_the_blocks_of_the_record(
    tiny_run: RunDirectory, snapshot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tiny_run.record()
    assert record.kernels is not None
    found: dict[str, Any] = json.loads(printed(capsys, tiny_run.trace_path, "--json"))
    assert found["kind"] == "chrome-trace"
    assert found["memory"] is None and found["missing"]["memory"]
    assert len(found["kernels"]["rows"]) == len(record.kernels.rows)
    assert {"step_ms", "rows", "categories", "idle", "unattributed_ns", "coverage"} <= set(
        found["kernels"]
    )
    found = json.loads(printed(capsys, snapshot, "--json"))
    assert found["kind"] == "memory-snapshot"
    assert sum(row["bytes"] for row in found["memory"]["ledger"]) == 2**20
    assert content(printed(capsys, snapshot, "--json", "--section", "memory")) == found["memory"]


def test_sections_show_every_row(
    tiny_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tiny_run.record()
    assert record.kernels is not None
    text = printed(capsys, tiny_run.trace_path, "--section", "kernels", "--wide")
    assert all(row.name in text for row in record.kernels.rows)
    tree = printed(capsys, tiny_run.trace_path, "--section", "tree", "--depth", "1")
    rows = tree[tree.index("where") :]
    assert "model" in rows and "aten::" not in rows


def test_tables_go_to_csv_and_markdown(
    tiny_run: RunDirectory, snapshot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, tiny_run.trace_path, "--section", "tree", "--csv")
    (step, *others) = csv.DictReader(io.StringIO(text))
    assert step["where"] == "step" and others
    rows = list(csv.DictReader(io.StringIO(printed(capsys, snapshot, "--csv"))))
    assert {"memory", "ledger", "largest"} <= {row["table"] for row in rows}
    pages = printed(capsys, snapshot, "--md")
    assert "## Memory ledger" in pages and "| ---: |" in pages
    assert "\\[bold\\]\\\\x1b\\[31m" in pages and "\x1b" not in pages


def test_hostile_names_are_literal(snapshot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("--section", "memory")):
        assert "[bold]\\x1b[31m" in printed(capsys, snapshot, *arguments)


def test_what_cannot_be_shown_says_why(
    tiny_run: RunDirectory, snapshot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no times of kernels" in complaint(capsys, snapshot, "--section", "tree")
    assert "requires --section tree" in complaint(capsys, snapshot, "--depth", "2")
    assert "binary units" in complaint(capsys, snapshot, "--memory-limit", "2GB")
    assert "more than 64.0 KiB" in complaint(capsys, tiny_run.trace_path, "--memory-limit", "64KiB")
    assert "No such file" in complaint(capsys, tmp_path / "absent")
    command = f"sysbench-tui show {shlex.quote(str(tiny_run.path))}"
    assert command in complaint(capsys, tiny_run.path)
    snapshot.write_bytes(snapshot.read_bytes()[:-9])
    assert "is not a memory snapshot" in complaint(capsys, snapshot)


@pytest.fixture
def three_steps(tmp_path: Path) -> Path:
    """Kernels of 100, 200 and 600 µs, each in a step of its own, on two devices."""
    events = []
    for number, length in enumerate((100, 200, 600), 7):
        at = 1000 * number
        events += [
            {"cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": at, "dur": 900},
            {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 10, "dur": 5}
            | {"args": {"correlation": number}},
            {"cat": "kernel", "name": f"kernel_{number}", "ts": at + 50, "dur": length}
            | {"args": {"correlation": number, "device": 1}},
        ]
    events.append({"cat": "kernel", "name": "other", "ts": 9000, "dur": 9, "args": {"device": 0}})
    path = tmp_path / "steps.json"
    place = {"ph": "X", "pid": 1, "tid": 1}
    path.write_text(json.dumps({"traceEvents": [place | event for event in events]}))
    return path


def test_steps_are_listed_and_chosen(three_steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = printed(capsys, three_steps)
    assert "Steps by torch.profiler" in whole and "outside" in whole
    assert "only device 1 is shown (the busiest); others: 0" in whole
    rows = list(
        csv.DictReader(io.StringIO(printed(capsys, three_steps, "--section", "steps", "--csv")))
    )
    assert [row["step"] for row in rows] == ["7", "8", "9", "outside"]
    text = printed(capsys, three_steps, "--section", "kernels", "--csv")
    names = [row["name"] for row in csv.DictReader(io.StringIO(text))]
    assert names[:3] == ["kernel_9", "kernel_8", "kernel_7"]  # a row a kernel, not a value a line
    text = printed(capsys, three_steps, "--steps", "7-8")
    assert "kernel_9" not in text and "of steps 7–8: kernels and tree per step" in text
    assert "one traced step" in text and "mean of 2 steps" in text
    chosen = ("--step", "8", "--device", "1", "--json")
    found = json.loads(printed(capsys, three_steps, *chosen))["kernels"]
    assert [row["name"] for row in found["rows"]] == ["kernel_8"]
    assert (found["steps"], found["marked_steps"]["chosen"]) == (1, [8, 8])
    assert "no step 5 in this file (7 to 9)" in complaint(capsys, three_steps, "--step", "5")
    assert "such as 3 or 2-5" in complaint(capsys, three_steps, "--steps", "9-7")


def test_every_output_format_has_the_findings(
    three_steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = "The GPU is idle for 65 % of the span, mostly waiting for the CPU to launch."
    (finding,) = content(printed(capsys, three_steps, "--section", "findings", "--json"))
    assert finding["verdict"].startswith(verdict)
    shown = printed(capsys, three_steps, "--section", "findings")
    assert f"Warning: {verdict}" in " ".join(shown.split())  # however wide the page is
    page = printed(capsys, three_steps, "--md")
    assert verdict in page and finding["next"] in page and "## Annotations" in page
    assert main(["show", str(three_steps), "--section", "findings"]) == 0
    assert verdict in " ".join(capsys.readouterr().out.split())
    assert main(["show", str(three_steps), "--section", "timing"]) == 2
    assert "a file has findings, kernels" in capsys.readouterr().err
    for kind in ("html", "md", "json", "csv"):
        target = tmp_path / f"exported.{kind}"
        assert main(["export", str(three_steps), kind, "-o", str(target)]) == 0
        assert capsys.readouterr().out == f"{target}\n"
        assert verdict in target.read_text() and finding["next"] in target.read_text()
        assert str(tmp_path) not in target.read_text() or kind == "json"
    assert main(["show", str(three_steps), "--step", "8", "--section", "kernels"]) == 0
    text = capsys.readouterr().out
    assert "kernel_8" in text and "kernel_9" not in text
    assert main(["show", "last", "--step", "8"]) == 2
    assert "only for imported files" in capsys.readouterr().err
    assert main(["export", str(three_steps), "perfetto"]) == 2
    assert "of a file one of html, csv, md, json" in capsys.readouterr().err


def test_an_export_of_a_file_has_a_csv_for_each_table(
    three_steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tables"
    assert main(["export", str(three_steps), "csv", "-o", str(folder)]) == 0
    names = {path.stem for path in folder.iterdir()}
    assert {"findings", "steps", "kernels", "categories", "tree", "annotations", "api"} <= names
    (row,) = csv.DictReader((folder / "api.csv").open())
    assert (row["name"], row["instances"], row["total_ns"]) == ("cudaLaunchKernel", "3", "15000")
    assert main(["export", str(three_steps), "csv", "-o", str(folder)]) == 2
    assert "exists already" in capsys.readouterr().err
    for section, kept in (("annotations", "ProfilerStep#*"), ("api", "cudaLaunchKernel")):
        text = printed(capsys, three_steps, "--section", section, "--csv")
        assert next(csv.DictReader(io.StringIO(text)))["name"] == kept
    assert "no Python stacks" in complaint(capsys, three_steps, "--section", "python")


def test_a_public_file_reads_without_this_programs_own_words(
    shared_data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = printed(capsys, shared_data / "more" / "sid_transformer_h100.json.gz")
    assert "trace pass" not in text and "measured" not in text
    (head,) = [line for line in text.splitlines() if " module " in line and " share " in line]
    assert " op " in head and head.endswith(" name")
    assert "torch_prof.py(36): forward" in text
    monkeypatch.setenv("COLUMNS", "100")
    text = printed(capsys, shared_data / "more" / "tl_vllm_piecewise_exec.json.gz")
    _, _, table = text.partition("\nKernels: ")
    _, head, *rows = table.partition("\n\n")[0].splitlines()[:17]
    assert len({line[head.index(" name") :] for line in rows}) == len(
        rows
    )  # 7.6 and 0.6 ms were of one name


@pytest.fixture(params=["none", "full", "read-only"])
def unwritable_home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A data folder that cannot hold anything; all but the first need the right to mount."""
    if request.param == "none":
        yield Path("/proc/none")
        return
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no right to mount a small tmpfs")
    try:
        if request.param == "full":
            with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_file_is_read_though_the_data_folder_cannot_be_written(
    unwritable_home: Path, tmp_path: Path, sysbench_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_trace(tmp_path / "trace.json", [[("gemm", 9), ("softmax", 4)]] * 3)
    expected = printed(capsys, trace, "--json")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {"SYSBENCH_HOME": str(unwritable_home), "TMPDIR": str(temporary)}
    for words in (["inspect", trace, "--json"], ["export", trace, "html", "-o", tmp_path / "p"]):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sysbench.tui.cli", *map(str, words)],
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        if words[0] == "inspect":
            assert json.loads(done.stdout) == json.loads(expected)
    assert (tmp_path / "p").stat().st_size
    assert not list(temporary.iterdir())


def test_where_nothing_can_be_written_the_data_folder_is_named_and_not_the_file(
    tmp_path: Path, sysbench_home: Path
) -> None:
    trace = write_trace(tmp_path / "trace.json", [[("gemm", 9)]])
    code = (
        "import resource, sys; from sysbench.tui.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        f"sys.exit(main(['inspect', {str(trace)!r}]))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert str(sysbench_home / "inspections") in line and os.strerror(errno.EFBIG) in line
