"""A run that ran out of memory, on the command line; and the limit that stands for less memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.cli import main
from tests.envelope import content


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.fixture
def run(oom_run: RunDirectory, sysbench_home: object) -> str:
    return str(oom_run.path)


def test_the_report_begins_with_it(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    head = printed(capsys, "show", run).partition("Artifacts")[0].replace("▌ ", "")
    problem = "Problem: The memory pass ran out of memory: tried to allocate 128 MiB in forward"
    assert problem in " ".join(head.split())
    assert "batch 7 (not 32) or context 182 (not 512) fits into 300 MiB" in " ".join(head.split())


def test_the_section_has_everything(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "show", run, "--section", "oom", "--wide")
    for words in (
        *("blocks.0.attention", "q @ k.transpose(-2, -1)", "naive_attention", "300 MiB"),
        *("the CPU allocator reserves nothing ahead", "temporaries (forward)", "182"),
    ):
        assert words in text


def test_the_section_as_json_is_the_most_detailed_oom(
    run: str, oom_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    oom = content(printed(capsys, "show", run, "--section", "oom", "--json"))
    record = json.loads(oom_run.record_path.read_bytes())
    assert oom == record["passes"][1]["oom"]
    assert oom["event"] == "OutOfMemory"


def test_a_run_that_finished_says_so(
    tiny_run: RunDirectory, sysbench_home: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tiny_run.path)
    assert "no pass" in printed(capsys, "show", path, "--section", "oom")
    assert content(printed(capsys, "show", path, "--section", "oom", "--json")) == []


def test_its_tables_are_exported(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "export", run, "md", "-o", str(tmp_path / "report.md"))
    assert "Memory ledger at the failed request" in (tmp_path / "report.md").read_text()


def test_memory_limit_is_the_key_of_the_spec(
    sysbench_home: object, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("estimate", "--set", "device=cuda", "--set", "model=cs336-2025/xl", "--json")
    short = json.loads(printed(capsys, *settings, "--memory-limit", "24GiB"))
    long = json.loads(printed(capsys, *settings, "--set", "memory_limit=24GiB"))
    assert short == long
    assert short["capacity_bytes"] == 24 * 2**30


def test_a_limit_in_other_units_is_refused(
    sysbench_home: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--memory-limit", "24GB"]) == 2
    assert "24GiB" in capsys.readouterr().err
