"""Commands that measure, with real processes: output, exit codes, signals, terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sysbench.core.record.events import PassStarted, StepsTimed
from sysbench.core.runs.run_directory import RunDirectory, create_run, list_runs
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.cli import main
from tests.envelope import content
from tests.worker_double.script import PROGRAM, replace_workers

CLI = [sys.executable, "-P", "-m", "sysbench.tui.cli"]
SMALL = ["--set", "model=tiny", "--set", "device=cpu", "--set", "threads=1", "--set", "warmup=1"]
SMALL += ["--set", "step=inference"]  # training imports more of torch
SHORT = ["run", *SMALL, "--set", "steps=4", "--passes", "timing"]
ENDLESS = ["run", *SMALL, "--set", "steps=1000000", "--passes", "timing"]
PATIENCE_SECONDS = 60

pytestmark = pytest.mark.usefixtures("sysbench_home")


@pytest.fixture
def stepping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that only emit step events, for runs started here and by `PROGRAM`."""
    replace_workers(monkeypatch, tmp_path / "double", steps=True)


def start(arguments: list[str], program: list[str] = CLI) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until it holds; the limit is a net under a hang, not a measurement."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.05)


def wait_for_steps() -> RunDirectory:
    """The one run of this home, once it has timed steps."""
    wait_until(lambda: bool(list_runs()))
    (run,) = list_runs()
    wait_until(lambda: any(isinstance(event, StepsTimed) for event in run.tail().read()))
    return run


def test_run_prints_one_document_and_keeps_stderr_silent() -> None:
    result = subprocess.run([*CLI, *SHORT, "--json"], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    record = json.loads(result.stdout)
    (run,) = list_runs()
    assert content(result.stdout, of_record=True) == json.loads(run.record_path.read_bytes())
    assert record["status"] == "finished"
    assert record["timing"]["step"]["n"] == 4


def test_run_in_a_pipe_is_plain_lines_then_tables() -> None:
    result = subprocess.run([*CLI, *SHORT], capture_output=True, text=True)
    assert result.returncode == 0
    for text in (result.stdout, result.stderr):
        assert all(char.isprintable() or char == "\n" for char in text)
    lines = result.stderr.splitlines()
    assert [line.split()[0] for line in lines] == ["run"] + ["timing"] * (len(lines) - 1)
    assert any("first step" in line for line in lines)
    assert re.search(r"^  step +\d+\.\d+", result.stdout, re.MULTILINE)


@pytest.mark.usefixtures("stepping")
def test_a_repeated_run_is_followed_and_reported_round_by_round(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SHORT, "--repeat", "2", "--detach", "--json"]) == 0
    started = json.loads(capsys.readouterr().out)
    assert main(["attach", started["id"]]) == 0
    printed = capsys.readouterr()
    assert "timing  round 2 of 2: finished" in printed.err
    assert "median of 2 rounds, range of 2 processes" in printed.out
    assert "Rounds: one process each; 95 % interval inside one process" in printed.out
    assert main(["show", "last", "--section", "rounds", "--json"]) == 0
    assert [one["index"] for one in content(capsys.readouterr().out)] == [1, 2]
    assert main(["list", "--json"]) == 0
    assert content(capsys.readouterr().out)[0]["rounds"] == 2


@pytest.mark.usefixtures("stepping")
def test_run_goes_on_when_nobody_reads_its_output() -> None:
    command = f"{shlex.join([*PROGRAM, *SHORT])} 2>&1 | head -n 1"
    # Where Python buffers, what could not be written is still there at the interpreter's exit.
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=environment, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    (run,) = list_runs()
    assert run.record().status == "finished"


@pytest.mark.usefixtures("stepping")
@pytest.mark.parametrize(("number", "program"), [(signal.SIGINT, CLI), (signal.SIGTERM, PROGRAM)])
def test_interrupted_run_is_cancelled_with_what_it_measured(
    number: signal.Signals, program: list[str]
) -> None:
    process = start([*ENDLESS, "--json"], program)
    run = wait_for_steps()
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, stderr) == (130, "")
    record = json.loads(stdout)
    assert record["status"] == run.record().status == "cancelled"
    assert record["passes"][0]["outcome"] == "cancelled"
    rules = [finding["rule"] for finding in record["findings"]]
    assert "ended-early" in rules and "lost-rounds" not in rules


@pytest.mark.usefixtures("stepping")
def test_hang_up_takes_the_terminal_but_not_the_run() -> None:
    process = start([*ENDLESS, "--set", "steps=40"], PROGRAM)
    run = wait_for_steps()
    process.send_signal(signal.SIGHUP)
    stdout, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert stdout == ""
    assert run.record().status == "finished"


@pytest.mark.usefixtures("stepping")
def test_killed_worker_is_reported_with_exit_code_1() -> None:
    process = start(ENDLESS, PROGRAM)
    run = wait_for_steps()
    (worker,) = [event.pid for event in run.tail().read() if isinstance(event, PassStarted)]
    os.kill(worker, signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "killed by SIGKILL" in stdout
    assert "Traceback" not in stderr


@pytest.mark.usefixtures("stepping")
def test_detached_run_is_attached_to_and_stopped_from_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*ENDLESS, "--detach", "--json"]) == 0
    started = json.loads(capsys.readouterr().out)
    run = wait_for_steps()
    assert (started["id"], started["pid"]) == (run.id, run.pid())

    follower = start(["attach", run.id])
    assert follower.stderr is not None
    assert "started: tiny" in follower.stderr.readline()
    follower.send_signal(signal.SIGINT)
    assert follower.wait(PATIENCE_SECONDS) == 130
    assert run.is_live()

    follower = start(["attach", run.id, "--json"])
    assert main(["run", *SMALL, "--no-wait"]) == 1
    assert f"process {started['pid']}" in capsys.readouterr().err
    assert main(["list", "--json"]) == 0
    assert {entry["id"]: entry["live"] for entry in content(capsys.readouterr().out)}[run.id]

    assert main(["stop", run.id, "--json"]) == 0
    assert content(capsys.readouterr().out) == {"id": run.id, "stopped": True}
    stdout, _ = follower.communicate(timeout=PATIENCE_SECONDS)
    assert follower.returncode == 130
    assert json.loads(stdout)["status"] == "cancelled"
    assert main(["stop", run.id]) == 0
    assert "was not running" in capsys.readouterr().out


@pytest.mark.usefixtures("stepping")
def test_attached_run_whose_supervisor_dies_is_reported() -> None:
    assert main([*ENDLESS, "--detach"]) == 0
    run = wait_for_steps()
    follower = start(["attach", run.id])
    assert follower.stderr is not None
    assert "started: tiny" in follower.stderr.readline()
    supervisor = run.pid()
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    stdout, stderr = follower.communicate(timeout=PATIENCE_SECONDS)
    assert follower.returncode == 1
    assert "· killed ·" in stdout
    assert "Traceback" not in stderr


def on_terminal(arguments: list[str], **environment: str) -> tuple[int, str]:
    """Run a command whose streams are a terminal; its exit code and all it painted."""
    pid, handle = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm-256color", "COLUMNS": "100", **environment})
        os.execv(PROGRAM[0], [*PROGRAM, *arguments])
    painted = b""
    while True:
        try:
            part = os.read(handle, 65536)
        except OSError:  # Linux says EIO when the last writer is gone
            break
        if not part:
            break
        painted += part
    os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), painted.decode()


@pytest.mark.usefixtures("stepping")
def test_terminal_shows_progress_and_then_styled_tables() -> None:
    code, painted = on_terminal(SHORT)
    assert code == 0
    assert "timing ●" in painted
    assert "\x1b[1m" in painted
    assert "\x1b[?25h" in painted, "the cursor is shown again"
    report = painted.rpartition("\x1b[?25h")[2]
    assert re.search(r"step +\d+\.\d+", report)


def test_terminal_without_colour_has_none(gpu_run: RunDirectory) -> None:
    code, painted = on_terminal(["show", "last"], NO_COLOR="1")
    assert code == 0
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", painted)
    assert r"\x1b[31m" in painted, "a name's own escape codes stay text"


def test_nsys_script_runs_the_same_spec(tmp_path: Path) -> None:
    spec = RunSpec(model="tiny", device="cpu", threads=1, warmup=1, step="inference", steps=4)
    create_run(spec, ["timing"])
    script = tmp_path / "profile.sh"
    assert main(["export", "last", "nsys", "-o", str(script)]) == 0
    nsys = tmp_path / "nsys"
    nsys.write_text('#!/bin/bash\nshift\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
    nsys.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", script], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert len(list_runs()) == 1


def test_a_run_says_why_auto_is_the_cpu(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    replace_workers(monkeypatch, sysbench_home.parent / "double")
    for device, count in (("auto", 1), ("cpu", 0)):
        assert main(["run", "tiny", f"device={device}", "--passes", "timing"]) == 0
        assert capsys.readouterr().err.count("device auto is cpu: ") == count
