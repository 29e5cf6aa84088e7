"""Runs whose workers are in another Python: a script notes the start of the workers' double."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from sysbench.core.errors import InterpreterError
from sysbench.core.experiments.experiment import create_experiment
from sysbench.core.machine.children import PYTHON_VARIABLE
from sysbench.core.machine.interpreter import chosen_python, remember_python
from sysbench.core.record.events import PassEnded
from sysbench.core.runs.run_directory import create_run, list_runs
from sysbench.core.runs.supervisor import add_round, supervise
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.study_directory import CellEntry, StudyDirectory
from sysbench.core.studies.study_runner import keep_python
from sysbench.tui.cli import main
from sysbench.tui.commands.ab_report import both_pythons
from tests.worker_double.script import DOUBLE, FOLDER_VARIABLE, Script


@pytest.fixture
def python(sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """This Python as a script in a virtual environment's place; its workers are doubles."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "double"))
    monkeypatch.setenv(PYTHON_VARIABLE, "")
    Script(tmp_path / "double")
    path = tmp_path / "ml" / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(
        "#!/bin/sh\n"
        f'case "$1" in *ask.py) exec {sys.executable} "$@";; esac\n'
        f'echo "$PYTHONPATH" >> {tmp_path}/workers\n'
        f"exec {sys.executable} -S -E {DOUBLE}\n"
    )
    path.chmod(0o755)
    return str(path)


def test_a_run_and_its_later_rounds_are_of_one_python(
    python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "tiny", "device=cpu", "--passes", "timing", "--json"]
    assert main([*words, "--python", str(tmp_path / "ml")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["environment"]["python"] == {"environment": Path(sys.prefix).name}
    assert str(tmp_path) not in json.dumps(record["environment"])
    (run,) = list_runs()
    assert run.header().python == python == chosen_python()
    assert "python" not in record["spec"]
    os.environ[PYTHON_VARIABLE] = "/none"
    for _ in add_round(run):
        pass
    workers = (tmp_path / "workers").read_text().splitlines()
    assert len(workers) == 2
    assert all(line.split(":")[0].endswith("core/machine/probe") for line in workers)
    chosen = Path(os.environ["SYSBENCH_HOME"]) / "pythons.jsonl"
    assert chosen.read_text() == f'"{python}"\n'
    chosen.unlink()
    for act in (
        lambda: next(add_round(run)),
        lambda: next(supervise(run)),
        lambda: both_pythons(run.id, None, None, None),
    ):
        with pytest.raises(InterpreterError, match="the run uses it, but it was never chosen here"):
            act()
    remember_python(python)
    Path(python).unlink()
    ended = [event for event in add_round(run) if isinstance(event, PassEnded)]
    assert [one.outcome for one in ended] == ["failed"] and python in ended[0].detail


def test_a_study_goes_on_with_the_python_of_its_runs(python: str, tmp_path: Path) -> None:
    directory = StudyDirectory(tmp_path / "home" / "studies" / "s-1")
    directory.path.mkdir(parents=True)
    keep_python(directory)
    assert os.environ[PYTHON_VARIABLE] == "", "nothing was run yet"
    run = create_run(RunSpec(device="cpu"), ["timing"], python=python)
    directory.append(CellEntry(cell="a", status="finished", run=run.id))
    keep_python(directory)
    assert chosen_python() == python
    run = create_run(RunSpec(device="cpu"), ["timing"], python="")
    directory.append(CellEntry(cell="b", status="finished", run=run.id))
    keep_python(directory)
    assert chosen_python() == ""


def test_nothing_is_made_where_workers_cannot_run(
    python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(python).write_text("#!/bin/sh\necho no\n")
    for words in (
        ["run", "tiny", "device=cpu"],
        ["ab", "tiny", "tiny", "--set", "device=cpu"],
        ["estimate", "tiny", "device=cpu", "--exact"],
        ["study", "warmup", "--set", "device=cpu"],
        ["doctor", "--measure", "--device", "cpu"],
    ):
        assert main([*words, "--python", python]) == 2
        assert "it does not answer like a Python: output 'no'" in capsys.readouterr().err
    assert list_runs() == []
    assert main(["ab", "--resume", "last", "--python", python]) == 2
    assert "--resume, which keeps" in capsys.readouterr().err
    # A Python that cannot be used is an answer of the doctor, not an error.
    assert main(["doctor", "--python", python, "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["rows"]}
    assert checks["workers' Python"]["status"] == "missing"
    directory = StudyDirectory(Path(os.environ["SYSBENCH_HOME"]) / "studies" / "s-1")
    for start in (
        lambda: create_run(RunSpec(device="cpu"), ["timing"]),
        lambda: directory.start(),
    ):
        with pytest.raises(InterpreterError):
            start()


def test_the_sides_of_an_experiment_have_the_python_of_their_runs(
    python: str, tmp_path: Path
) -> None:
    spec = RunSpec(model="tiny", device="cpu")
    here, there = (create_run(spec, ["timing"], python=path) for path in ("", python))
    assert both_pythons(there.id, here.id, None, None) == (python, "")
    assert both_pythons(there.id, None, None, None) == (python, python)
    assert both_pythons("tiny", None, None, str(tmp_path / "ml")) == (None, python)
    assert both_pythons(there.id, here.id, "given", None) == (None, None)
    directory = create_experiment(spec, spec, pythons=(python, sys.executable))
    assert [directory.run(side).header().python for side in ("A", "B")] == [python, ""]
    with pytest.raises(InterpreterError):
        create_experiment(spec, spec, pythons=("", "/none"))
    assert len(list_runs()) == 4, "neither side of that one was made"
