"""`compare` row by row: runs, files, and a run against a file."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.cli import main


@pytest.fixture
def other_trace(gpu_run: RunDirectory) -> Path:
    """A trace of two kernels, beside the home of the test."""
    path = gpu_run.path.parent / "two-kernels.json"
    events = [
        {
            **{"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7},
            **{"ts": start, "dur": 3, "args": {"device": 0, "stream": 7, "correlation": start}},
        }
        for start, name in ((10, "sgemm_128"), (20, "softmax_kernel"))
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["compare", *arguments]) == 0
    return capsys.readouterr().out


def leaf_change(node: dict[str, Any]) -> int:
    if node["children"]:
        return sum(map(leaf_change, node["children"]))
    return int(node["b_ns"] - node["a_ns"])


def test_a_run_and_its_own_trace_differ_in_no_row(
    tiny_run: RunDirectory, sysbench_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(tiny_run.trace_path)
    found = json.loads(printed(capsys, str(tiny_run.path), trace, "--json"))
    difference = found["difference"]
    assert found["b"] == trace
    assert found["factors"] == []
    assert difference["time"]["a_ns"] == difference["time"]["b_ns"] > 0
    assert "the same in every row" in difference["summary"][0]
    assert difference["missing"] == {"memory": "B has no memory pass"}
    text = printed(capsys, str(tiny_run.path), trace)
    assert "No verdict: a file has no timing pass." in text
    assert "row by row;" not in text


def test_a_run_against_a_file_adds_up(
    gpu_run: RunDirectory, other_trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(printed(capsys, gpu_run.id, str(other_trace), "--json"))["difference"]
    root = found["time"]
    assert (root["a_ns"], root["b_ns"]) == (10_000_000, 13_000)
    assert leaf_change(root) == 13_000 - 10_000_000
    states = {child["name"]: child["state"] for child in root["children"]}
    assert (states["gemm"], states["elementwise"], states["softmax"]) == ("both", "gone", "new")
    assert any("a step, B a span" in note for note in found["notes"])
    text = printed(capsys, gpu_run.id, str(other_trace), "--depth", "4", "--min", "0")
    assert "sgemm_128" in text
    assert "\x1b" not in text


def test_rows_below_the_least_are_one(
    gpu_run: RunDirectory, other_trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = (str(other_trace), gpu_run.id)
    rows = list(csv.DictReader(io.StringIO(printed(capsys, *sides, "--csv"))))
    whole, *parts = [row for row in rows if row["depth"] in "01"]
    assert sum(int(row["change_ns"]) for row in parts) == int(whole["change_ns"]) == 9_987_000
    assert "(" not in printed(capsys, *sides, "--csv", "--depth", "1")
    cut = printed(capsys, *sides, "--csv", "--min", "50%")
    assert "(3 more)" in cut
    assert "## The traced step" in printed(capsys, *sides, "--md")


def test_neither_a_run_nor_a_file(sysbench_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "nothing.json.gz", "nothing.json.gz"]) == 2
    assert "no file has that name" in capsys.readouterr().err


@pytest.mark.parametrize("least", ["4", "a lot", "-1%"])
def test_a_share_that_is_none(least: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["compare", "a", "b", f"--min={least}"])
    assert stop.value.code == 2
    assert "a share between 0 and 1" in capsys.readouterr().err
