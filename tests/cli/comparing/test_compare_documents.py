"""`compare` as a page, a picture and Markdown, and what it says of two sides that lack parts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.runs.run_directory import RunDirectory, create_run
from sysbench.tui.cli import main
from tests.imported_files import write_snapshot, write_trace

MIB = 2**20


@pytest.fixture
def other_run(gpu_run: RunDirectory) -> RunDirectory:
    """A copy of the run that takes longer and has one kernel more, under an id of its own."""
    record = gpu_run.record()
    assert record.timing is not None and record.kernels is not None
    run = create_run(gpu_run.header().spec, ["timing", "trace", "memory"])
    step = msgspec.structs.replace(record.timing.step, median_ms=12.0)
    timing = msgspec.structs.replace(record.timing, step=step)
    run.write_record(msgspec.structs.replace(record, id=run.id, timing=timing))
    return run


def compared(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["compare", *map(str, words)]) == 0
    return capsys.readouterr().out


def words_of(page: str) -> str:
    """The text of a page without markup, blanks as one."""
    text = re.sub(r"<[^>]*>", " ", page).replace("&#160;", " ").replace("&#x27;", "'")
    return " ".join(text.split())


@pytest.mark.parametrize("suffix", ["html", "svg", "md"])
def test_a_file_has_the_rows_that_the_command_prints(
    gpu_run: RunDirectory,
    other_run: RunDirectory,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    suffix: str,
) -> None:
    sides = gpu_run.id, other_run.id
    target = tmp_path / f"x.{suffix}"
    assert compared(capsys, *sides, "-o", target) == f"{target}\n"
    page = target.read_text()
    if suffix == "md":
        assert page == compared(capsys, *sides, "--md")
        return
    printed = compared(capsys, *sides)
    assert all(run in page for run in sides)
    shown = words_of(page)
    for line in ("Inconclusive: +20.0 %", "Peak allocated", "Same settings, same machine."):
        assert line in printed
        assert line in shown
    rows = re.findall(r"^  (?:step|forward|backward) .*", printed, re.MULTILINE)
    assert len(rows) == 3
    for row in rows:
        assert " ".join(row.split()) in shown
    assert not re.findall(r"(?:src|url)\W+https?:", page)
    assert page.count("http") <= 3  # names of formats and of Rich's maker, none is requested


def test_a_file_that_exists_is_kept_and_another_suffix_refused(
    gpu_run: RunDirectory, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "x.html"
    target.write_text("mine")
    assert main(["compare", "last", "last", "-o", str(target)]) == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert target.read_text() == "mine"
    compared(capsys, "last", "last", "-o", target, "--force")
    assert "Nothing differs: A and B are the same run." in target.read_text()
    for output in ("x.pdf", "x"):
        assert main(["compare", "no", "run", "-o", output]) == 2
        assert "a name that ends in .html, .svg, .md" in capsys.readouterr().err
    assert main(["compare", "last", "last", "-o", "x.md", "--csv"]) == 2
    assert "its suffix is the format" in capsys.readouterr().err


def test_what_a_side_lacks_is_said(
    gpu_run: RunDirectory, other_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    record = msgspec.structs.replace(
        other_run.record(),
        timing=None,
        kernels=None,
        memory=None,
        missing={"timing": "this run has no timing pass"},
    )
    other_run.write_record(record)
    for flag in ("--md", "--no-pager"):
        text = compared(capsys, gpu_run.id, other_run.id, flag)
        assert f"no timing in {other_run.id}" in text
        assert "A: untraced step 10.00 ms; traced step 10.00 ms; peak" in text
        assert "B: no timing: this run has no timing pass; no kernels; no memory." in text


def test_marked_steps_are_compared_one_by_one(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a = write_trace(tmp_path / "a.json", [[("gemm", 90)] * 3] * 3, first=7)
    b = write_trace(tmp_path / "b.json", [[("gemm", 45)] * 3] * 5, first=2)
    difference = json.loads(compared(capsys, a, b, "--json"))["difference"]
    assert difference["time"]["kind"] == "step"
    gemm = next(row for row in difference["time"]["children"] if row["name"] == "gemm")
    assert (gemm["a_ns"], gemm["b_ns"], gemm["a_calls"]) == (270_000, 135_000, 3)
    assert not [note for note in difference["notes"] if "unknown number of steps" in note]
    steps = difference["steps"]
    # No number is on both sides: the first is matched with the first.
    assert [(row["a_number"], row["b_number"]) for row in steps] == [
        *((7, 2), (8, 3), (9, 4)),
        *((None, 5), (None, 6)),
    ]
    assert [row["b_busy_ns"] for row in steps] == [135_000] * 5
    assert [row["a_busy_ns"] for row in steps] == [270_000] * 3 + [None] * 2
    text = compared(capsys, a, b)
    assert "7 → 2" in text and "-0.135" in text
    assert not re.search(r"faster|slower", text)
    swapped = json.loads(compared(capsys, b, a, "--json"))["difference"]
    assert [row["a_number"] for row in swapped["steps"]] == [2, 3, 4, 5, 6]


def test_steps_with_common_numbers_are_matched_by_them(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a = write_trace(tmp_path / "a.json", [[("gemm", 90)]] * 3, first=1)
    b = write_trace(tmp_path / "b.json", [[("gemm", 90)]] * 2, first=2)
    steps = json.loads(compared(capsys, a, b, "--json"))["difference"]["steps"]
    assert [(row["a_number"], row["b_number"]) for row in steps] == [(1, None), (2, 2), (3, 3)]


def test_steps_without_work_are_in_no_median(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a = write_trace(tmp_path / "a.json", [[("gemm", 90)], [], [], [("gemm", 90)], []], first=1)
    b = write_trace(tmp_path / "b.json", [[("gemm", 45)]] * 5, first=1)
    difference = json.loads(compared(capsys, a, b, "--json"))["difference"]
    assert [row["a_busy_ns"] for row in difference["steps"]] == [90_000, None, None, 90_000, None]
    assert any("3 of A's 5 marked steps are without work" in note for note in difference["notes"])


def test_a_line_above_the_call_changes_no_row_of_a_snapshot(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a, b = (
        write_snapshot(
            tmp_path / f"{name}.pickle",
            [
                (60 * MIB, [("/w/model.py", 14, "softmax"), ("/w/run.py", line, "<module>")]),
                (more * MIB, [("/w/model.py", 20, "forward"), ("/w/run.py", line, "<module>")]),
            ],
        )
        for name, line, more in (("a", 21, 10), ("b", 40, 12))
    )
    for sides, change in (((a, b), 2), ((b, a), -2)):
        found = json.loads(compared(capsys, *sides, "--json"))
        (origin,) = found["memory"]["origins"]
        assert origin["b_bytes"] - origin["a_bytes"] == change * MIB
        text = compared(capsys, *sides, "--depth", "4", "--min", "0")
        assert "model.py:20" in text and "model.py:14" not in text
        assert not re.search(r"\b(new|gone)\b", text)


def test_the_json_of_two_large_records_is_bounded_and_adds_up(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    steps = [
        [(f"gemm_{step}_{number}x", 1 + number // 59) for number in range(60)] for step in range(9)
    ]
    a = write_trace(tmp_path / "a.json", steps)
    longer = [[(name, 2 * length) for name, length in kernels] for kernels in steps]
    b = write_trace(tmp_path / "b.json", longer)
    text = compared(capsys, a, b, "--json")
    bounded = json.loads(text)
    whole = json.loads(compared(capsys, a, b, "--json", "--min", "0"))
    assert bounded["truncated"] and not whole["truncated"]
    assert bounded.keys() == whole.keys()
    assert bounded["difference"].keys() == whole["difference"].keys()
    assert len(text) < 100_000
    trees = [document["difference"]["time"] for document in (bounded, whole)]
    counts = [sum(1 for _ in nodes_of(tree)) for tree in trees]
    assert counts[0] <= 200 < 540 < counts[1]
    for tree in trees:
        for node in nodes_of(tree):
            for key in ("a_ns", "b_ns"):
                assert not node["children"] or node[key] == sum(
                    child[key] for child in node["children"]
                )
    found = [*nodes_of(trees[0])]
    assert any(node["name"] == "gemm_8_59x" for node in found)  # the largest change
    assert any(node["kind"] == "rest" for node in found)


def nodes_of(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node["children"]:
        yield from nodes_of(child)
