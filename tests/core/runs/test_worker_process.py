"""A worker's process as the supervisor starts it, and what it makes of its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sysbench.core.runs import worker_process
from sysbench.core.runs.run_directory import create_run
from sysbench.core.runs.supervisor import supervise
from sysbench.core.runs.worker_process import Job, WorkerProcess, place_in_code
from sysbench.core.spec.spec import RunSpec

PRINTS_LEVEL = "import os; print(os.environ['KINETO_LOG_LEVEL'])"


@pytest.mark.parametrize(("device", "level"), [("cuda:0", 2), ("cpu", 99)])
def test_on_a_gpu_the_log_has_the_profilers_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, level: int
) -> None:
    """Kineto counts 0 verbose, 1 info, 2 warning: a refusal by CUPTI is a warning."""
    child = [sys.executable, "-S", "-E", "-c", PRINTS_LEVEL]
    monkeypatch.setattr(worker_process, "python_child", lambda *_, **__: child)
    log = tmp_path / "log"
    worker = WorkerProcess(Job(spec=RunSpec(device=device), name="trace", folder=""), log)
    try:
        assert worker.wait() == 0
    finally:
        worker.close()
    assert log.read_text() == f"{level}\n"


RUNS_OUT = """
import json, os, sys

def send(event, **facts):
    line = json.dumps({"event": event, "t_ns": 1, **facts}) + "\\n"
    os.write(int(os.environ["SYSBENCH_EVENT_FD"]), line.encode())

sys.stdin.readline()
send("ResultReported", block="oom", data={"requested_bytes": 3 * 2**19})
unknown = dict.fromkeys(("free_bytes", "allocated_bytes"))
send("OutOfMemory", phase="forward", requested_bytes=20 * 2**20, message="", stack=[], **unknown)
sys.exit(1)
"""


LIMITS = {
    "limit": ({"limit_bytes": 300 * 2**20, "capacity_bytes": 2**33}, " (0 B free, limit 300 MiB)"),
    "capacity": ({"capacity_bytes": 79 * 2**30}, " (0 B free, capacity 79.0 GiB)"),
}


@pytest.mark.parametrize(("facts", "words"), LIMITS.values(), ids=LIMITS)
def test_out_of_memory_says_what_there_was(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, int], words: str
) -> None:
    script = RUNS_OUT.replace("**unknown)", f"**unknown | {facts | {'free_bytes': 0}})")
    child = [sys.executable, "-S", "-E", "-c", script]
    monkeypatch.setattr(worker_process, "python_child", lambda *_, **__: child)
    run = create_run(RunSpec(model="tiny", device="cpu"), ["memory"])
    for _ in supervise(run):
        pass
    (row,) = run.record().passes
    assert row.detail == f"out of memory in forward: tried to allocate 1.50 MiB{words}"


def test_what_was_asked_for_is_the_recordings_figure_where_there_is_one(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's allocator names the segment that it wanted, its history the request."""
    child = [sys.executable, "-S", "-E", "-c", RUNS_OUT]
    monkeypatch.setattr(worker_process, "python_child", lambda *_, **__: child)
    run = create_run(RunSpec(model="tiny", device="cpu"), ["memory"])
    for _ in supervise(run):
        pass
    (row,) = run.record().passes
    assert row.detail == "out of memory in forward: tried to allocate 1.50 MiB"
    assert row.oom is not None
    assert row.oom.requested_bytes == 3 * 2**19


FALLS_SILENT = """
import json, os, sys, time

def enter(stage):
    line = json.dumps({"event": "StageEntered", "t_ns": 1, "stage": stage}) + "\\n"
    os.write(int(os.environ["SYSBENCH_EVENT_FD"]), line.encode())

sys.stdin.readline()
enter("compile")
time.sleep(1)
enter("warmup")
sys.stdin.read()
"""


def test_a_worker_may_be_silent_for_longer_while_it_compiles(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = [sys.executable, "-S", "-E", "-c", FALLS_SILENT]
    monkeypatch.setattr(worker_process, "python_child", lambda *_, **__: child)
    monkeypatch.setattr(worker_process, "HANG_SECONDS", 0.3)
    run = create_run(RunSpec(model="tiny", device="cpu"), ["timing"])
    for _ in supervise(run):
        pass
    (row,) = run.record().passes
    assert row.outcome == "hung"
    assert "in stage warmup" in row.detail


WAITS = """
import faulthandler, os, signal, sys

faulthandler.register(signal.SIGUSR1)

def make():
    os.write(1, b"ready"); sys.stdin.read()

make()
"""


def test_a_worker_that_is_silent_says_where_the_user_s_code_stands(tmp_path: Path) -> None:
    folder, log = tmp_path / "mine", tmp_path / "log"
    folder.mkdir()
    (folder / "model.py").write_text(WAITS)
    command = [sys.executable, "-S", "-E", str(folder / "model.py")]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.read(5) == b"ready"
        assert place_in_code(process.pid, log, folder) == "model.py:7 in make"
        process.kill()
