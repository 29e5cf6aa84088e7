"""`top` as a command: what it prints once, and its document."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.cli import main


def test_the_document_has_the_host_and_its_processes(
    tiny_run: RunDirectory, sysbench_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sysbench_home / "runs").mkdir(parents=True)
    (sysbench_home / "runs" / tiny_run.id).symlink_to(tiny_run.path)
    assert main(["top", "--json", "-n", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["command"]) == (1, "top")
    processes = document["processes"]
    assert len(processes["rows"]) == 2 < processes["total"] and processes["truncated"]
    assert document["gpus"]["total"] == len(document["gpus"]["rows"])
    assert bool(document["gpus"]["rows"]) != bool(document["no_gpus"])
    assert document["host"]["cores"] == os.cpu_count()
    last = document["last_run"]
    assert last["id"] == tiny_run.id and last["words"]
    assert last["others"]["total"] == len(last["others"]["rows"])


def test_in_a_pipe_it_prints_once(sysbench_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 0
    text = capsys.readouterr().out
    assert "Busiest processes of the host" in text and "memory total" in text
    assert "Last run" not in text


def test_an_unreadable_newest_run_is_passed_over(
    tiny_run: RunDirectory, sysbench_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = sysbench_home / "runs"
    (runs / "29990101-000000-tiny-0000").mkdir(parents=True)
    (runs / tiny_run.id).symlink_to(tiny_run.path)
    assert main(["top", "--once"]) == 0
    assert f"{tiny_run.id}: " in capsys.readouterr().out


def test_its_reader_may_go() -> None:
    code = "from sysbench.tui.cli import main; raise SystemExit(main(['top']))"
    command = [sys.executable, "-P", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
