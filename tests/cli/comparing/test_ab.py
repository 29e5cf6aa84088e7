"""`ab`: its measurements, refusals, the planned power and the report."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from sysbench.core.experiments.experiment import find_experiment, list_experiments
from sysbench.core.record.events import StepsTimed
from sysbench.core.runs.run_directory import create_run, list_runs
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.cli import main
from sysbench.tui.commands.ab_report import both_specs
from tests.envelope import content
from tests.worker_double.script import FOLDER_VARIABLE, MAIN, Script, command, finished, wait_until

SETTINGS = ("--set", "device=cpu", "--set", "step=inference", "--set", "batch=1")
SPEC = ("tiny", "tiny", *SETTINGS)
ONE_BLOCK = ("--max-minutes", "0.0001")


@pytest.fixture(autouse=True)
def home(sysbench_home: Path) -> Path:
    return sysbench_home


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "double"))
    return Script(tmp_path / "double")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "batch=many"], "batch"),
        (["--set-b", "batch"], "KEY=VALUE"),
        (["nothing.toml"], "nothing.toml"),
        (["nothing"], "no run 'nothing'"),
        (["tny"], "no profile has that name"),
        (["last"], "no run 'last'"),
        (["--set", "device=cuda:77"], "device"),
        ([*SPEC, "--set-b", "precision=fp8"], "precision"),
        ([*SPEC, "--set-b", "workload=accumulation"], "timing"),
        (["--resume", "last"], "no experiment"),
        ([*SETTINGS], "B is missing"),
        (["tiny", *SETTINGS], "`sysbench-tui ab tiny tiny` compares it with itself"),
        (["--resume", "last", "--one-at-a-time"], "keeps both specs"),
        (["--resume", "last", "--set", "batch=1"], "keeps both specs"),
        (["--resume", "last", "--seed", "0"], "--seed"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    arguments: list[str], words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ab", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert list_runs() == [] and list_experiments() == []


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--smallest", text] for text in ("0", "-1%", "101%", "nan", "much")),
        *(["--gate", text] for text in ("-1%", "inf", "much")),
        *(["--max-minutes", text] for text in ("0", "-1", "inf", "nan", "soon")),
        ["--seed", "1.5"],
    ],
)
def test_limits_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["ab", *arguments])
    assert exit_info.value.code == 2


def test_the_sides_are_a_file_a_profile_or_a_run_with_the_changes_of_each(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('model = "tiny"\ndevice = "cpu"\nbatch = 8\nprecision = "bf16"\n')
    run = create_run(RunSpec(model="tiny", device="cpu", batch=2), ["timing"])
    a, b = both_specs(str(path), "last", ["steps=5"], ["compile=default"])
    assert (a.batch, a.precision, a.steps, a.compile) == (8, "bf16", 5, "off")
    assert (b.batch, b.precision, b.steps, b.compile) == (2, "fp32", 5, "default")
    a, b = both_specs(run.id, None, [], [])
    assert a == b == run.header().spec
    small = [*(f"{key}=64" for key in ("vocab", "d_model", "d_ff")), "layers=1", "heads=2"]
    a, b = both_specs(None, None, ["device=cpu", "model=tiny"], small)
    assert (a.model, b.model, b.d_model) == ("tiny", "custom", 64)
    a, b = both_specs(str(run.path), None, ["batch=4"], ["model=tiny"])
    assert (a.batch, b.batch, a.identity) == (4, 4, b.identity)


def test_a_against_a_works_and_everything_but_the_report_is_on_stderr(script: Script) -> None:
    code, out, err = finished(command("ab", *SPEC))
    assert code == 0
    experiment = find_experiment("last").experiment()
    plan, _, progress = err.partition("pair 1")
    assert plan.startswith(f"experiment {experiment.id}\n")
    assert "B          the same spec" in plan
    assert "pairs of processes that take turns" in plan and plan in err
    assert "seconds per pair unknown: neither spec was timed in a pair here yet" in plan
    assert "unknown: fewer than 5 pairs were measured on this machine yet" in plan
    assert progress.count(" ms\n") == 14
    assert "inconclusive" in progress and "12 more rounds until the first look" in progress
    assert "same within 1.0 %" in progress
    assert "decided after 14 rounds" in progress
    lines = out.splitlines()
    assert any(line.startswith("B is the same within 1.0 %: ") for line in lines)
    assert any(line.startswith("  -2 % ┄") for line in lines)
    assert f"sysbench-tui ab {experiment.a} {experiment.b} --seed {experiment.seed}" in out
    assert "--resume" not in out
    assert all(char.isprintable() or char == "\n" for char in out + err)

    # The forecast of the next one has these rounds, and stays with it.
    code, out, _ = finished(command("ab", experiment.a, experiment.a, "--gate", "3%", "--json"))
    report = json.loads(out)
    assert (code, report["gate"]["result"]) == (0, "pass")
    assert report["plan"]["round_seconds"] > 0
    assert "7 earlier pairs of these specs" in report["plan"]["source"]
    assert (report["method"], report["pairs"], report["blocks"]) == ("duet", 7, 0)
    assert [row["difference"] for row in report["plan"]["promises"]] == [
        0.01,
        0.02,
        0.03,
        0.05,
        0.1,
    ]
    assert find_experiment("last").experiment().plan is not None


def test_markdown_is_for_a_pull_request(script: Script) -> None:
    words = ("ab", *SPEC, "--set-b", "batch=2", *ONE_BLOCK, "--gate", "3%", "--md")
    code, out, _ = finished(command(*words))
    assert code == 4
    assert out.startswith("### ")
    assert "- gate 3.0 %: not decidable: too few runs for an interval" in out
    assert "| batch | 1 | 2 |" in out
    assert f"sysbench-tui ab --resume {find_experiment('last').id}" in out
    assert out.index("Overview of A") < out.index("Overview of B") < out.rindex(" a step")


@pytest.mark.parametrize("width", [80, 160])
def test_the_report_fits_the_width_but_for_what_is_for_copying(
    script: Script, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("SYSBENCH_ASCII", "1")
    _, out, _ = finished(command("ab", *SPEC, "--set-b", "batch=2", *ONE_BLOCK))
    lines = out.splitlines()
    assert [line for line in lines if cell_len(line) > width and "sysbench-tui" not in line] == []
    (picture,) = [line for line in lines if line.startswith("  -") and "*" in line]
    assert picture.isascii()


def test_a_terminal_sees_pairs_the_interval_and_then_the_report(script: Script) -> None:
    pid, handle = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "100"}
        os.execv(sys.executable, [sys.executable, "-P", "-c", MAIN, "ab", *SPEC])
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
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    live, _, report = painted.decode().rpartition("\x1b[?25h")
    assert "pair 2   " in live and "A ✓" in live and "┄┊┄" in live
    assert "14 rounds" in live
    assert "B is the same within" in report


def test_a_live_experiment_is_followed_by_its_id_or_that_of_a_run(script: Script) -> None:
    script.write(hold=[3])
    measuring = command("ab", *SPEC)
    script.wait_for_start(3)
    directory = find_experiment("last")
    leaving = command("attach", directory.id)
    staying = command("attach", directory.experiment().a)
    for follower in (leaving, staying):
        assert follower.stderr is not None
        assert "pair 1   " in follower.stderr.readline()
    leaving.send_signal(signal.SIGINT)
    code, out, err = finished(leaving)
    assert (code, out) == (130, "")
    assert f"left {directory.id} running" in err
    assert directory.pid() == measuring.pid
    measuring.send_signal(signal.SIGINT)
    assert finished(measuring)[0] == 130
    code, out, _ = finished(staying)
    assert code == 130
    assert f"sysbench-tui ab --resume {directory.id}" in out


def test_a_detached_experiment_is_stopped_from_elsewhere(
    capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    endless = (*SPEC, "--set", "steps=1000000", "--set", "warmup=1", "--set", "threads=1")
    assert main(["ab", *endless, "--detach", "--json"]) == 0
    started = json.loads(capsys.readouterr().out)
    directory = find_experiment(started["id"])
    request.addfinalizer(lambda: directory.stop())
    first = directory.run(directory.experiment().order(0)[0])
    wait_until(lambda: any(isinstance(event, StepsTimed) for event in first.tail().read()))
    assert directory.pid() == started["pid"]

    # The run that is not measured at present stands for its experiment.
    other = next(run for run in list_runs() if run.id != first.id)
    assert main(["stop", other.id, "--json"]) == 0
    assert content(capsys.readouterr().out) == {"id": directory.id, "stopped": True}
    assert main(["stop", directory.id]) == 0
    assert "was not running" in capsys.readouterr().out
    os.waitpid(started["pid"], 0)
