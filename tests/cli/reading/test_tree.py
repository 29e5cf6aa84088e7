"""`show --section tree` and `questions`: the same tree as text and as JSON, in parts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.cli import main
from tests.envelope import content


@pytest.fixture
def own_run(tiny_run: RunDirectory, sysbench_home: Path) -> RunDirectory:
    """The real run of tiny, in this test's home, as if tracing had cost nothing."""
    target = RunDirectory(sysbench_home / "runs" / tiny_run.id)
    shutil.copytree(tiny_run.path, target.path)
    record = target.record()
    assert record.kernels is not None
    kernels = msgspec.structs.replace(record.kernels, perturbation=1.0)
    target.write_record(msgspec.structs.replace(record, kernels=kernels))
    return target


def section(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(("show", "last", "--section", *arguments)) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return content(section(capsys, *arguments, "--json"))


def depth(node: dict[str, Any]) -> int:
    return 1 + max(map(depth, node["children"]), default=-1)


def test_tree_is_indented_and_nested_alike(
    own_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    text = section(capsys, "tree", "--depth", "3")
    root = document(capsys, "tree", "--depth", "3")
    assert depth(root) == 3
    lines = text.splitlines()
    head = next(number for number, line in enumerate(lines) if line.endswith("where"))
    at = lines[head].index("where")
    assert [line[at:] for line in lines[head + 1 : head + 3]] == ["step", "  model"]
    assert any(line[at:].startswith("    blocks.0–1 (2×, ") for line in lines)
    assert "explains" in text and "untraced" in text
    assert "~" not in text
    kernels = own_run.record().kernels
    assert kernels is not None
    assert sum(child["inclusive_ns"] for child in root["children"]) == pytest.approx(
        kernels.step_ms * 1e6
    )


def test_tree_is_cut_by_share_and_by_match(
    own_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = section(capsys, "tree").count("\n")
    assert section(capsys, "tree", "--min-share", "1%").count("\n") < everything / 2
    assert section(capsys, "tree", "--min-share", "0.01") == section(
        capsys, "tree", "--min-share", "1%"
    )
    node = document(capsys, "tree", "--match", r"ffn\.w\d$")
    while node["children"]:
        node = node["children"][0]
    assert "ffn.w" in node["path"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("tree", "--match", "("), "not a regular expression"),
        (("tree", "--match", "nowhere at all"), "nothing in the tree matches"),
        (("tree", "--min-share", "lots"), "a share between 0 and 1"),
        (("tree", "--min-share", "200%"), "a share between 0 and 1"),
        (("kernels", "--depth", "2"), "requires --section tree"),
    ],
)
def test_options_that_cannot_be_are_bad_input(
    own_run: RunDirectory,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    message: str,
) -> None:
    assert main(("show", "last", "--section", *options)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err and "Traceback" not in captured.err


def test_times_that_tracing_moved_are_marked(
    own_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    record = own_run.record()
    assert record.kernels is not None
    moved = msgspec.structs.replace(record.kernels, perturbation=1.3)
    own_run.write_record(msgspec.structs.replace(record, kernels=moved))
    for name in ("tree", "kernels", "questions"):
        assert "differs by +30.0 % from the untraced one" in " ".join(section(capsys, name).split())
    lines = section(capsys, "tree", "--depth", "1").splitlines()
    step = next(line for line in lines if line.endswith("  step"))
    assert step.split()[0].startswith("~")
    assert "100.0 %" in step and "~100.0" not in step


def test_a_table_that_explains_little_says_so_on_top(
    gpu_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tree", "kernels", "questions"):
        text = section(capsys, name).replace("\n", " ")
        first = text.index("5.0 % of the step follows launches without a recorded kernel")
        assert first < text.index("120 launches, 120 kernels seen")


def test_questions_have_sentences_numbers_and_commands(
    own_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = document(capsys, "questions")
    text = " ".join(section(capsys, "questions").split())
    for answer in answers:
        assert answer["question"] in text
        assert answer["sentence"] in text
        assert all(command in text for command in answer["commands"])
    assert any(answer["commands"] for answer in answers), "inference was not measured"


def test_a_run_without_a_trace_says_why(
    gpu_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    record = gpu_run.record()
    gpu_run.write_record(
        msgspec.structs.replace(record, kernels=None, missing={"kernels": "out of memory"})
    )
    for name in ("tree", "questions"):
        assert "out of memory" in section(capsys, name)
    assert document(capsys, "tree") is None
    assert document(capsys, "questions") is None
