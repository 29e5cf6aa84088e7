"""Models of a user's that leave processes behind, read standard input or close descriptors."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest

from sysbench.core.compare.comparison import differing
from sysbench.core.errors import WorkerFailed
from sysbench.core.predict.dry_run_client import Estimator
from sysbench.core.record.events import Noticed, PassEnded
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import create_run
from sysbench.core.runs.supervisor import supervise
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import parse_spec
from tests.worker_double.script import wait_until

CASES = "cases/reliability"
SETTINGS = {
    **{"batch": 2, "context": 8, "layers": 0, "steps": 5, "warmup": 1},
    **{"attention": "own", "device": "cpu", "threads": 1},
    "step": "forward+backward",  # an optimizer imports torch's compiler, which takes a second
}
MODEL = """
import ctypes, multiprocessing, os, subprocess, sys, time
import torch
from torch import nn

def note(pid):
    with open(os.path.join(os.path.dirname(__file__), "pids"), "a") as file:
        print(pid, file=file)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 12), nn.Linear(12, 50)

    def forward(self, ids):
        return self.head(self.embedding(ids))
"""
FORKS = """
def make():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(333,))
    child.start()
    note(child.pid)
    return Model()
"""
DAEMONS = """
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note(os.getpid())
            time.sleep(333)
        os._exit(0)
    os.wait()

def fork_in_c():
    libc = ctypes.CDLL(None)
    if (pid := libc.fork()) == 0:  # Python does not see it: all descriptors stay open
        libc.sleep(333)
        libc._exit(0)
    note(pid)

def make():
    daemon()
    fork_in_c()
    note(subprocess.Popen(["sleep", "333"], start_new_session=True).pid)
    note(subprocess.Popen(["sleep", "333"], env={}).pid)
    note(subprocess.Popen(["sleep", "0.2"]).pid)  # ends by itself
    return Model()
"""
ASKS = """
class Asks(Model):
    def forward(self, ids):
        input("batch? ")
        return super().forward(ids)

def make():
    return Asks()
"""


def measure(
    folder: Path, code: str | Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Record, PassEnded, list[str]]:
    """Time a model; return the record, the end of the pass, and the notices."""
    if isinstance(code, Path):
        shutil.copytree(code, folder, dirs_exist_ok=True)
    else:
        (folder / "model.py").write_text(MODEL + code)
    # A defect shows as a hang; the first import of torch may take long.
    monkeypatch.setenv("SYSBENCH_HANG_SECONDS", "45")
    spec = resolve(parse_spec({"model": f"{folder}/model.py:make", **SETTINGS}))
    run = create_run(spec, ["timing"])
    events = list(supervise(run))
    (ended,) = (event for event in events if isinstance(event, PassEnded))
    return run.record(), ended, [one.message for one in events if isinstance(one, Noticed)]


CHANGES = """
torch.set_num_threads(2)
torch.autograd.set_detect_anomaly(True)

class Changes(Model):
    def forward(self, ids):
        torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = True
        torch.use_deterministic_algorithms(True, warn_only=True)
        return super().forward(ids)

def make():
    return Changes()
"""


def test_settings_are_those_in_force_while_steps_ran(
    sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, ended, _ = measure(tmp_path, CHANGES, monkeypatch)
    assert ended.outcome == "finished"
    settings = record.environment["settings"]
    assert settings["threads"] == 2 and settings["float32_matmul_precision"] == "high"
    assert settings["anomaly_mode"] is settings["deterministic_algorithms"] is True
    (found,) = (one for one in record.findings if one.rule == "settings-changed")
    assert found.severity == "problem", "threads=1 and precision=fp32 were asked for"
    assert "threads was 1, is 2" in found.why and "anomaly_mode was False, is True" in found.why
    assert "cudnn" not in found.why, "without effect on the CPU"


def test_a_comparison_names_the_settings_that_the_code_changed(
    sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "torch.set_float32_matmul_precision('high')\ndef make():\n    return Model()\n"
    changed, *_ = measure(tmp_path, code, monkeypatch)
    plain, *_ = measure(tmp_path, "def make():\n    return Model()\n", monkeypatch)
    assert "settings-changed" not in [one.rule for one in plain.findings]
    names = [factor.name for factor in differing(plain, changed)]
    assert "settings.float32_matmul_precision" in names and "settings.allow_tf32" in names


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(("code", "count"), [(FORKS, 1), (DAEMONS, 4)], ids=["fork", "daemons"])
def test_a_pass_ends_with_its_worker_and_what_it_started_is_ended(
    sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, count: int
) -> None:
    record, ended, notices = measure(tmp_path, code, monkeypatch)
    assert (ended.outcome, record.status) == ("finished", "finished")
    assert record.timing is not None
    (notice,) = notices
    assert f"left {count} process" in notice
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) >= count and not any(map(is_running, pids))


def test_a_crash_ends_what_the_worker_started(
    sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = DAEMONS.replace("return Model()", "os.abort()")
    _, ended, _ = measure(tmp_path, code, monkeypatch)
    assert ended.outcome == "killed" and "SIGABRT" in ended.detail
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 5 and not any(map(is_running, pids))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ('input("batch? ")', "EOFError: EOF when reading a line"),
        ("breakpoint()", "debugger"),
        ("import pdb; pdb.set_trace()", "debugger"),
    ],
)
def test_a_model_that_waits_for_an_answer_ends_at_once(
    sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, words: str
) -> None:
    code = ASKS.replace('input("batch? ")', call)
    _, ended, _ = measure(tmp_path, code, monkeypatch)
    assert ended.outcome == "failed"
    assert words in ended.detail and "model.py:" in ended.detail


def test_a_model_that_reads_standard_input_reads_its_end(
    sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = ASKS.replace('input("batch? ")', "assert not sys.stdin.read() and not os.read(0, 1)")
    _, ended, notices = measure(tmp_path, code, monkeypatch)
    assert (ended.outcome, notices) == ("finished", [])


def test_a_dry_run_leaves_and_asks_nobody_either(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(MODEL + ASKS.replace('input("batch? ")', "breakpoint()"))
    (tmp_path / "forks.py").write_text(MODEL + FORKS)
    asks, forks = (
        resolve(parse_spec({"model": f"{tmp_path}/{name}.py:make", **SETTINGS}))
        for name in ("asks", "forks")
    )
    with Estimator() as estimator:
        with pytest.raises(WorkerFailed, match=r"asks\.py:.*debugger"):
            estimator.predict(asks)
        assert estimator.predict(forks).peak_bytes
    (pid,) = (int(line) for line in (tmp_path / "pids").read_text().split())
    wait_until(lambda: not is_running(pid))


@pytest.mark.parametrize("then", ["", "; time.sleep(30)"])
def test_a_model_that_closes_all_descriptors_is_not_said_to_be_killed(
    sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    code = f"def make():\n    os.closerange(3, 4096){then}\n    return Model()\n"
    _, ended, _ = measure(tmp_path, code, monkeypatch)
    assert ended.outcome == "failed"
    assert "closed the pipe" in ended.detail


@pytest.mark.parametrize(
    ("case", "outcome"), [("f5-child-holds-pipe", "finished"), ("f18-breakpoint", "failed")]
)
def test_cases_of_a_review_end_at_once(
    shared_data: Path,
    sysbench_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    outcome: str,
) -> None:
    _, ended, _ = measure(tmp_path, shared_data / CASES / case, monkeypatch)
    assert ended.outcome == outcome
