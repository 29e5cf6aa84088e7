"""`watch --pid`: refusals, and the recorder in a process that runs already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from sysbench.core.errors import SpecError
from sysbench.core.runs.run_directory import list_runs, newest_run
from sysbench.core.watch import attach_process
from sysbench.core.watch.attach_process import RunningPython, execute_in
from sysbench.tui.cli import main

# Runs a script that appears beside it, as Python 3.14 does between two lines; then it trains.
TRAIN = """
import os, sys, torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("ready", flush=True)
name = sys.argv[1]
while not os.path.exists(name):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
exec(open(open(name).read()).read(), {})
for _ in range(20):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print(sorted(set(os.environ) & {"SYSBENCH_WINDOW", "SYSBENCH_STEP_ON"}), flush=True)
"""


@pytest.fixture(autouse=True)
def home(sysbench_home: Path) -> Path:
    return sysbench_home


def started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that reads its input; there is no torch in it."""
    yield from started(sys.executable, "-c", "print('up', flush=True); input()", "it's", "mine")


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    yield from started("sleep", "60")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["watch", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and list_runs() == []
    return captured.err


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python takes scripts from outside")
def test_an_older_python_is_named_with_the_command_that_watches_it(
    waiting: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "--pid", str(waiting.pid))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"it runs {version}, which takes no script from outside" in said
    assert "`sysbench-tui watch -- " in said and """'it'"'"'s' mine`""" in said


def test_what_is_no_process_or_no_python_is_refused(
    sleeping: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "it runs sleep" in refused(capsys, "--pid", str(sleeping.pid))
    sleeping.kill()
    sleeping.wait()
    assert f"there is no process {sleeping.pid}" in refused(capsys, "--pid", str(sleeping.pid))
    assert "without a command" in refused(capsys, "--pid", "1", "--", "true")


def test_the_process_of_another_user_is_refused(
    waiting: subprocess.Popen[bytes],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "a process of this user: it belongs to" in refused(capsys, "--pid", str(waiting.pid))


def test_a_process_is_not_watched_twice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYSBENCH_WATCH", "/somewhere")
    for process in started(sys.executable, "-c", "print('up', flush=True); input()"):
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        assert "not watched already" in refused(capsys, "--pid", str(process.pid))


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python takes scripts from outside")
def test_a_refusal_of_the_interpreter_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"remote_exec.*watch -- python train.py"):
        execute_in(RunningPython(1, sys.executable, ["python", "train.py"]), tmp_path / "x.py")


@pytest.mark.parametrize("ends", [True, False], ids=["it ends", "watching is stopped"])
def test_the_recorder_starts_in_a_running_process(
    ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, given = tmp_path / "train.py", tmp_path / "given"
    script.write_text(TRAIN if ends else f"{TRAIN}\ninput()\n")

    def give(process: RunningPython, path: Path) -> None:
        """Stand in for `sys.remote_exec`."""
        (tmp_path / "part").write_text(str(path))
        (tmp_path / "part").rename(given)
        assert training.stdout is not None and training.stdout.readline() == b"[]\n"
        if not ends:
            Thread(target=interrupt, daemon=True).start()

    def interrupt() -> None:
        while (run := newest_run()) is None or not run.record_path.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(attach_process, "execute_in", give)
    monkeypatch.setattr(attach_process, "FIRST_VERSION", (3, 8))
    for training in started(sys.executable, str(script), str(given)):
        assert training.stdout is not None and training.stdout.readline() == b"ready\n"
        code = main(["watch", "--quiet", "--window", "90:1", "--pid", str(training.pid)])
        assert (training.poll() is None) == (not ends)
    run = newest_run()
    assert run is not None and (record := run.record()).job is not None
    assert record.job.exit_code is None and record.job.command[-1] == str(given)
    if ends:
        assert (code, record.status, record.job.total_steps) == (0, "finished", 20)
    else:
        assert (code, record.status) == (130, "cancelled")
