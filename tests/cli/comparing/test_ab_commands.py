"""`ab` of two commands: their steps or wall times, failures, and what they leave behind."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from sysbench.core.experiments.experiment import find_experiment, list_experiments
from sysbench.core.runs.run_directory import list_runs, load_record
from sysbench.tui.cli import main
from tests.worker_double.script import command, finished

STEPS = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        time.sleep(float(sys.argv[1]))
        return torch.ones(4)

torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in DataLoader(Rows(), batch_size=2):
    model(rows).sum().backward()
    optimizer.step()
"""
ONE_BLOCK = ("--max-minutes", "0.0001")


@pytest.fixture(autouse=True)
def home(sysbench_home: Path) -> Path:
    return sysbench_home


def running(words: list[str]) -> list[int]:
    """Ids of processes with this command line."""
    every = psutil.process_iter(["cmdline"])
    return [process.pid for process in every if process.info["cmdline"] == words]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--", "true"], "commands = 1"),
        (["--", "true", "--", "true", "--", "true"], "commands = 3"),
        (["--", "true", "--", "sh -c 'a"], "No closing quotation"),
        (["--", "true", "--", ""], "a command after --"),
        (["tiny", "--", "true", "--", "true"], "A = 'tiny'"),
        (["--set", "batch=1", "--", "true", "--", "true"], "--set ="),
        (["--set-b", "batch=1", "--", "true", "--", "true"], "--set-b ="),
        (["--one-at-a-time", "--", "true", "--", "true"], "--one-at-a-time ="),
        (["--python-b", sys.executable, "--", "true", "--", "true"], "--python-b ="),
        (["tiny", "tiny", "--metric", "wall"], "only of commands"),
        (["--resume", "last", "--", "true", "--", "true"], "not with --resume"),
        (["--resume", "last", "--metric", "wall"], "not with --resume"),
    ],
)
def test_options_of_specs_are_refused_before_anything_starts(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ab", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert list_runs() == [] and list_experiments() == []


def test_commands_without_steps_are_compared_by_wall_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands = ("--", "sh -c 'echo out; sleep 0.05'", "--", "sh", "-c", "sleep 0.3")
    assert main(["ab", "--json", *commands]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["metric"], report["verdict"]["verdict"]) == ("wall", "slower")
    assert report["verdict"]["basis"] == "interleaved rounds"
    # The rounds before it was known that they have no steps had the recorder.
    first, *others = sorted(
        [*report["a"]["rounds"], *report["b"]["rounds"]], key=lambda row: row["started_ns"]
    )
    assert first["disturbed"].endswith("has no steps: wall times are compared")
    for row in others:
        assert row["median_ms"] >= (50 if row["side"] == "A" else 300)
    assert [row["name"] for row in report["factors"]] == ["command"]
    assert report["factors"][0]["a"] == "sh -c 'echo out; sleep 0.05'"
    assert "--metric wall" in report["repeat"]

    directory = find_experiment("last")
    record = directory.run("A").record()
    assert record.timing is not None and record.timing.of_command
    assert record.findings == [row for row in record.findings if row.rule != "no-steps"]
    assert "out" in directory.run("A").log_path("timing", 2).read_text()
    assert main(["show", directory.run("A").id]) == 0
    shown = capsys.readouterr().out
    assert " from start to end\n" in shown and "ms per command" in shown
    assert main(["compare", directory.run("A").id, directory.run("B").id]) == 0
    assert "B is slower" in capsys.readouterr().out
    # Decided already; the other formats are of the same report.
    assert main(["ab", "--resume", "last", "--md"]) == 0
    page = capsys.readouterr().out
    assert " Wall time: B is slower" in page and "Wall time of the command" in page


def test_equal_commands_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--metric", "wall", "--smallest", "60%", "--", "sleep 0.1", "--", "sleep 0.1")
    assert main(["ab", "--json", *words]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"]["verdict"] == "same" and not report["factors"]


def test_a_round_is_the_median_step_of_its_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(STEPS)
    fast, slow = (f"{sys.executable} {script} {seconds}" for seconds in ("0", "0.02"))
    assert main(["ab", "--json", *ONE_BLOCK, "--", fast, "--", slow]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["metric"], report["blocks"]) == ("steps", 1)
    assert report["verdict"]["change"] > 0
    for side, least_ms in (("a", 0), ("b", 40)):
        for row in report[side]["rounds"]:
            assert row["median_ms"] > least_ms and 6 <= row["steps"] < 12
            assert row["phases"]["input"] >= least_ms
    record = find_experiment("last").run("B").record()
    assert record.job is not None and record.job.total_steps == 12
    # Each round has files of its own.
    assert len({path.parent for path in find_experiment("last").run("B").path.rglob("*.jsonl")}) > 2


def test_a_round_that_fails_ends_the_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    left = "sleep 3141.5926"
    words = ("--metric", "wall", "--", f"sh -c '{left} & exit 3'", "--", f"sh -c '{left} & exit 3'")
    assert main(["ab", *words]) == 1
    captured = capsys.readouterr()
    assert "the command ended with code 3" in captured.err
    assert "the command ended with code 3" in captured.out
    timings = [load_record(run).timing for run in list_runs()]
    assert [row.outcome for timing in timings if timing for row in timing.rounds] == ["failed"]
    assert not running(left.split())


def test_steps_that_are_asked_for_have_to_be_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ab", "--metric", "steps", "--", "true", "--", "true"]) == 1
    assert "no step was recorded" in capsys.readouterr().err
    assert main(["ab", "--", "no-such-program", "--", "true"]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_an_interrupt_ends_the_command_too() -> None:
    sleeper = ["sleep", "3141.5927"]
    process = command("ab", "--metric", "wall", "--", *sleeper, "--", *sleeper)
    deadline = time.monotonic() + 60
    while not running(sleeper):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    code, out, err = finished(process)
    assert code == 130, err
    assert not running(sleeper)
    assert "--resume" in out
