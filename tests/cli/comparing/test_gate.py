"""`baseline`, `gate` and `compare --gate`: exit codes, output, and real measurements."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.experiments.baselines import baseline_path, save_baseline
from sysbench.core.machine.read_environment import describe_host
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import create_run, list_runs, load_record
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.cli import main
from tests import factories
from tests.envelope import content

CLI = [sys.executable, "-P", "-m", "sysbench.tui.cli"]
SHORT = RunSpec(device="cpu", steps=8, warmup=1, step="inference", threads=1, batch=1, context=16)
STEADY = (10.0, 10.02, 9.98, 10.01, 9.99, 10.0)
NOISY = (10.0, 10.5, 9.6, 10.4, 9.7, 10.1)


def stored(medians_ms: Sequence[float], spec: RunSpec = SHORT, **fields: Any) -> Record:
    """A finished run of this home with these rounds."""
    directory = create_run(spec, ["timing"])
    record = factories.record_of_rounds(medians_ms, spec)
    changes = {"id": directory.id, "created_ns": directory.header().created_ns, **fields}
    directory.write_record(msgspec.structs.replace(record, **changes))
    return directory.record()


def slower(times: float) -> list[float]:
    return [times * ms for ms in STEADY]


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    """Run a command, check its exit code, and return its output."""
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out + captured.err


@pytest.mark.usefixtures("sysbench_home")
@pytest.mark.parametrize(
    ("medians_ms", "code", "word"),
    [
        (slower(1.0), 0, "pass"),
        (slower(0.5), 0, "pass"),
        (slower(1.2), 3, "regression"),
        (NOISY, 4, "not decidable"),
    ],
)
def test_compare_and_gate_agree(
    capsys: pytest.CaptureFixture[str], medians_ms: Sequence[float], code: int, word: str
) -> None:
    a, b = stored(STEADY), stored(medians_ms)
    assert main(["baseline", "save", "main", a.id]) == 0
    capsys.readouterr()
    for arguments in (
        ("compare", a.id, b.id, "--gate", "3%"),
        ("gate", "main", b.id),
    ):
        text = said(capsys, *arguments, code=code)
        (line,) = [line for line in text.splitlines() if line.startswith("gate 3.0 %: ")]
        assert line.startswith(f"gate 3.0 %: {word}: ")
        assert ("rounds a side would decide it" in line) is (code == 4)
        document = json.loads(said(capsys, *arguments, "--json", code=code))
        wanted = {"margin": 0.03, "result": word, "exit_code": code}
        assert {key: document["gate"][key] for key in wanted} == wanted


@pytest.mark.usefixtures("sysbench_home")
def test_compare_without_a_gate_is_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = stored(STEADY), stored(slower(1.2))
    assert "gate" not in said(capsys, "compare", a.id, b.id, code=0)
    assert json.loads(said(capsys, "compare", a.id, b.id, "--json", code=0))["gate"] is None
    text = said(capsys, "compare", a.id, b.id, "--smallest", "50%", code=0)
    assert "same within 50.0 %" in text


@pytest.mark.usefixtures("sysbench_home")
def test_failed_runs_are_1_and_bad_input_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    a, failed = stored(STEADY), stored(STEADY, status="oom", timing=None)
    assert "ended as oom" in said(capsys, "compare", a.id, failed.id, "--gate", "3%", code=1)
    assert "another run" in said(capsys, "compare", a.id, a.id, "--gate", "3%", code=2)
    assert main(["baseline", "save", "main", a.id]) == 0
    assert "ended as oom" in said(capsys, "gate", "main", failed.id, code=1)
    assert "another run" in said(capsys, "gate", "main", a.id, code=2)
    assert "no baseline 'other'" in said(capsys, "gate", "other", a.id, code=2)
    assert "--repeat" in said(capsys, "gate", "main", failed.id, "--repeat", "3", code=2)
    assert "no run 'nothing'" in said(capsys, "gate", "main", "nothing", code=2)
    baseline_path("main").write_text("{")
    text = said(capsys, "gate", "main", failed.id, code=1)
    assert str(baseline_path("main")) in text


@pytest.mark.usefixtures("sysbench_home")
def test_a_file_has_no_rounds_to_judge(
    nsys_export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", stored(STEADY).id, str(nsys_export), "--gate", "3%"]
    assert "a file has no rounds" in said(capsys, *arguments, code=2)


@pytest.mark.parametrize(
    "text", ["-1%", "101%", "3", "nan", "nan%", "inf", "-inf", "", "%", "3%%", "a", "1e9"]
)
def test_no_share_is_exit_code_2(capsys: pytest.CaptureFixture[str], text: str) -> None:
    for option in (
        ["compare", "a", "b", f"--gate={text}"],
        ["compare", "a", "b", f"--smallest={text}"],
        ["gate", "main", f"--margin={text}"],
    ):
        with pytest.raises(SystemExit) as exit_info:
            main(option)
        assert exit_info.value.code == 2
        assert "such as 1% or 0.01" in capsys.readouterr().err


@pytest.mark.usefixtures("sysbench_home")
def test_another_machine_or_spec_is_named_and_not_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_baseline("main", stored(STEADY))
    others: dict[str, dict[str, Any]] = {
        "device_name one in the baseline, two now": {"environment": {"cpu": {"model": "two"}}},
        "torch None in the baseline, 9.9 now": {
            "environment": {"cpu": {"model": "one"}, "torch": {"version": "9.9"}}
        },
        "threads None in the baseline, 7 now": {
            "environment": {"cpu": {"model": "one"}, "settings": {"threads": 7}}
        },
    }
    for words, fields in others.items():
        text = said(capsys, "gate", "main", stored(slower(2.0), **fields).id, code=4)
        assert words in text
        assert "not comparable: another machine" in text
        assert "slower" not in text
    batch = stored(slower(2.0), SHORT.changed(batch=2))
    document = json.loads(said(capsys, "gate", "main", batch.id, "--json", code=4))
    assert document["verdict"] is None
    assert [(row["name"], row["a"], row["b"]) for row in document["obstacles"]] == [("batch", 1, 2)]
    upgraded = {"cpu": {"model": "one"}, "torch": {"version": "9.9"}}
    newer = stored(slower(2.0), environment=upgraded)
    text = said(capsys, "gate", "main", newer.id, "--across", "torch", code=3)
    assert "What else differs" in text and "9.9" in text


@pytest.mark.usefixtures("sysbench_home")
def test_other_facts_that_differ_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"cpu": {"model": "one"}, "system": {"kernel": "7.1"}}
    save_baseline("main", stored(STEADY))
    other = stored(slower(1.0), environment=environment)
    text = said(capsys, "gate", "main", other.id, "--md", code=0)
    assert "<details><summary>Overview of the run</summary>" in text
    assert "system.kernel" in text and "7.1" in text


@pytest.mark.usefixtures("sysbench_home")
def test_markdown_has_verdict_gate_both_sides_and_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    a, b = stored(STEADY), stored(slower(1.2))
    save_baseline("main", a)
    lines = said(capsys, "gate", "main", b.id, "--md", code=3).splitlines()
    assert lines[0].startswith("### Step time against baseline main: slower: +20.0 %")
    assert lines[2].startswith("**gate 3.0 %: regression: ")
    assert [line for line in lines if line.startswith("| baseline main |") and a.id in line]
    assert [line for line in lines if line.startswith("| run |") and "12.000" in line]
    assert any("not interleaved" in line for line in lines)
    assert any("Its drift is not known here" in line for line in lines)
    assert lines[-1] == f"- Again: `sysbench-tui gate main {b.id} --margin 3%`"


@pytest.mark.usefixtures("sysbench_home")
def test_three_rounds_of_a_killed_run_say_how_many_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    a = stored(NOISY[:3], status="killed")
    assert a.timing is not None
    torn = factories.rounds([10.0], index=4, outcome="killed")
    timing = msgspec.structs.replace(a.timing, rounds=[*a.timing.rounds, *torn])
    save_baseline("main", msgspec.structs.replace(a, timing=timing))
    text = said(capsys, "gate", "main", stored(NOISY).id, code=4)
    assert "the baseline has 3, the run has 6" in text
    assert "save a baseline of `run --repeat" in text
    assert "then gate with `--repeat" in text


@pytest.mark.usefixtures("sysbench_home")
def test_a_baseline_outlives_its_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a = stored(STEADY)
    file = tmp_path / "kept.json"
    saved = ["baseline", "save", "main", a.id, "--json"]
    assert json.loads(said(capsys, *saved, code=0))["rounds"] == 6
    assert "--force" in said(capsys, *saved, code=2)
    assert main(["baseline", "save", "main", a.id, "--file", str(file)]) == 0
    for run in list_runs():
        shutil.rmtree(run.path)
    b = stored(slower(1.2))
    for option in ([], ["--file", str(file)]):
        assert a.id in said(capsys, "gate", "main", b.id, *option, code=3)
        shown = said(capsys, "baseline", "show", "main", *option, "--json", code=0)
        assert msgspec.json.decode(shown)["record"] == msgspec.to_builtins(a)
    assert "Rounds" in said(capsys, "baseline", "show", "main", code=0)
    (row,) = content(said(capsys, "baseline", "list", "--json", code=0))
    assert (row["name"], row["run"], row["rounds"]) == ("main", a.id, 6)
    assert "10.0" in said(capsys, "baseline", "list", code=0)
    assert main(["baseline", "delete", "main"]) == 0
    assert "no baseline 'main'" in said(capsys, "baseline", "delete", "main", code=2)
    assert "no baselines" in said(capsys, "baseline", "list", code=0)


@pytest.mark.usefixtures("sysbench_home")
def test_the_spec_is_measured_again_in_fresh_processes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {**describe_host(), "settings": {"threads": 1}}
    # So much that no noise of this machine decides the other way.
    for name, times in (("long", 1e6), ("brief", 1e-6)):
        record = factories.record_of_rounds([*slower(times), *slower(1.01 * times)], SHORT)
        save_baseline(name, msgspec.structs.replace(record, environment=here))
    text = said(capsys, "gate", "long", "--repeat", "2", "--json", code=0)
    document = json.loads(text)
    (new,) = list_runs()
    assert document["b"]["run"] == new.id
    assert document["b"]["rounds"] == 2
    assert document["verdict"]["basis"] == "separate rounds"
    assert document["obstacles"] == []
    said(capsys, "gate", "brief", new.id, code=3)
    # What is known of another machine is known before a process is spent on it.
    monkeypatch.setattr("sysbench.core.experiments.baselines.cpu_model", lambda: "another")
    text = said(capsys, "gate", "long", code=4)
    assert "another now" in text
    assert [run.id for run in list_runs()] == [new.id]


def test_an_interrupt_cancels_the_gate(sysbench_home: Path) -> None:
    spec = SHORT.changed(steps=1_000_000)
    record = factories.record_of_rounds(STEADY, spec)
    environment = {"settings": {"threads": 1}}
    save_baseline("main", msgspec.structs.replace(record, environment=environment))
    gate = subprocess.Popen([*CLI, "gate", "main"], stderr=subprocess.PIPE, text=True)
    assert gate.stderr is not None
    for line in gate.stderr:
        if "step " in line and "median" in line:
            break
    gate.send_signal(signal.SIGINT)
    gate.communicate()
    assert gate.returncode == 130
    (run,) = list_runs()
    assert load_record(run).status == "cancelled"
