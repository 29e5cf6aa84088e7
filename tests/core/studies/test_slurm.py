"""Slurm as a place: options, the queue as its commands print it, the script of an array."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from sysbench.core.errors import ClusterError, DeviceBusyError, SpecError
from sysbench.core.runs.run_directory import RunDirectory, create_run
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.schema import Axis, Point, Study, StudyColumn, TableLayout
from sysbench.core.studies.slurm import (
    Slurm,
    Submission,
    parse_options,
    placed,
)
from sysbench.core.studies.study_directory import StudyDirectory, open_study
from sysbench.core.studies.study_grid import expand
from sysbench.core.studies.study_runner import run_study
from sysbench.tui.cli import main

STUDY = Study(
    name="far",
    title="",
    axes=(Axis(name="context", points=(Point(label="32", settings={"context": 32}),)),),
    tables=(
        TableLayout(
            name="t", title="", rows=("context",), columns=(StudyColumn(name="s", value="status"),)
        ),
    ),
)


def test_a_value_may_have_commas_itself() -> None:
    options = parse_options(["partition=gpu,gres=gpu:1,nodelist=n1,n2,exclusive", "parallel=4"])
    assert options.sbatch == {
        "partition": "gpu",
        "gres": "gpu:1",
        "nodelist": "n1,n2",
        "exclusive": True,
    }
    assert options.parallel == 4 and options.has_gpu
    assert parse_options(["--cpus_per_task=8"]).sbatch == {"cpus-per-task": "8"}
    assert not parse_options(["", "gres=nic:1"]).has_gpu


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu", "KEY=VALUE"),
        ("time=", "a value for time"),
        ("time=1\n#SBATCH --wrap=x", "a long option"),
        ("a;b=1", "a long option"),
        ("nodes=2-4", "a number of nodes"),
        ("nodes=0", "a number of nodes"),
        ("ntasks=2", "one task on each of its nodes"),
        ("array=0-9", "the runner"),
        ("requeue=1", "measured once"),
        ("parallel=many", "jobs at once"),
    ],
)
def test_what_the_runner_needs_for_itself_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        parse_options([text])


@pytest.mark.parametrize(
    ("fixed", "options", "device"),
    [
        ({}, "time=5", "cpu"),
        ({"device": "auto"}, "gpus=1", "cuda:0"),
        ({"device": "cpu"}, "gres=gpu:1", "cpu"),
        ({"device": "cuda:0"}, "", "cuda:0"),
    ],
)
def test_auto_is_decided_by_what_the_jobs_ask_for(
    fixed: dict[str, object], options: str, device: str
) -> None:
    there = placed(msgspec.structs.replace(STUDY, fixed=fixed), parse_options([options]))
    (cell,) = expand(there)
    assert cell.spec is not None and cell.spec.device == device
    same = msgspec.structs.replace(there, elsewhere=False)
    assert same.identity == there.identity


@pytest.fixture
def directory(sysbench_home: Path) -> StudyDirectory:
    return open_study(placed(STUDY, parse_options([])), sysbench_home)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands as scripts: each prints the file of its name and keeps its arguments."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel", "srun"):
        path = folder / name
        path.write_text(
            f'#!/bin/sh\necho "$@" >> {folder}/{name}.asked\n'
            f"[ ! -e {folder}/{name}.fails ] || {{ cat {folder}/{name}.fails >&2; exit 1; }}\n"
            f"[ ! -e {folder}/{name}.says ] || cat {folder}/{name}.says\n"
        )
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


def note(directory: StudyDirectory, *submissions: Submission) -> None:
    lines = [msgspec.json.encode(submission) for submission in submissions]
    (directory.path / "slurm.jsonl").write_bytes(b"\n".join([*lines, b'{"name":"torn']))


THREE = Submission(name="sysbench-a", runs=("r0", "r1", "r2"), job="17")
ONE = Submission(name="sysbench-b", runs=("r3",), job="18")


def test_the_queue_is_read_by_the_names_of_the_jobs(
    directory: StudyDirectory, programs: Path
) -> None:
    note(directory, THREE, ONE)
    others = "some|thing|7|R\nsysbench-c|0|R\n"
    lines = "sysbench-a|2|PD\nsysbench-a|0|R\nsysbench-b|N/A|CG\n"
    (programs / "squeue.says").write_text(others + lines)
    slurm = Slurm(directory)
    assert slurm.jobs() == {"r2": "waiting", "r0": "running", "r3": "running"}
    assert slurm.job_of("r1") == "Slurm job 17_1, output in slurm/17_1_0_log.err"
    assert slurm.job_of("r3") == "Slurm job 18, output in slurm/18_0_log.err"
    assert slurm.job_of("r9") == "its Slurm job"
    slurm.cancel()
    asked = (programs / "scancel.asked").read_text().split("\n")
    assert asked[:2] == [
        f"--name={name} --user={os.getuid()}" for name in ("sysbench-a", "sysbench-b")
    ]


def test_a_queue_that_does_not_answer_is_no_empty_queue(
    directory: StudyDirectory, programs: Path
) -> None:
    assert Slurm(directory).jobs() == {}  # nothing was submitted, so nobody is asked
    note(directory, THREE)
    (programs / "squeue.fails").write_text("Unable to contact slurm controller")
    with pytest.raises(ClusterError, match="Unable to contact slurm controller"):
        Slurm(directory).jobs()


def test_a_study_with_jobs_is_not_run_here_as_well(
    directory: StudyDirectory, programs: Path
) -> None:
    note(directory, THREE)
    (programs / "squeue.says").write_text("sysbench-a|1|R\n")
    with pytest.raises(DeviceBusyError, match=r"1 job of far-.* in Slurm's queue"):
        next(run_study(directory, expand(directory.study())))


def test_a_machine_without_slurm_says_so(
    directory: StudyDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="sbatch is not on this machine"):
        Slurm(directory).submit(runs_of(directory, 1))


def runs_of(directory: StudyDirectory, count: int) -> Sequence[RunDirectory]:
    spec = RunSpec(device="cpu")
    return [create_run(spec, ["memory"], directory.root) for _ in range(count)]


def test_an_array_has_one_task_a_run(directory: StudyDirectory, programs: Path) -> None:
    pytest.importorskip("submitit")
    (programs / "sbatch.says").write_text("Submitted batch job 17\n")
    slurm = Slurm(directory, parse_options(["partition=gpu,exclusive,time=7", "parallel=2"]))
    runs = runs_of(directory, 3)
    assert slurm.submit(runs) == "Slurm job 17"
    (submission,) = slurm.submissions()
    assert submission.runs == tuple(run.id for run in runs) and submission.job == "17"
    script = Path((programs / "sbatch.asked").read_text().strip())
    script = script if script.exists() else directory.path / "slurm" / "17_submission.sh"
    asked = {line.removeprefix("#SBATCH --") for line in script.read_text().split("\n")}
    wanted = {"array=0-2%2", "partition=gpu", "exclusive", "time=7", "no-requeue"}
    assert wanted | {f"job-name={submission.name}"} <= asked
    assert "nodes=1" in asked and "ntasks-per-node=1" not in asked


def test_a_cell_of_several_nodes_is_one_task_on_each(
    directory: StudyDirectory, programs: Path
) -> None:
    pytest.importorskip("submitit")
    (programs / "sbatch.says").write_text("Submitted batch job 18\n")
    Slurm(directory, parse_options(["nodes=3"])).submit(runs_of(directory, 2))
    script = Path((programs / "sbatch.asked").read_text().strip())
    script = script if script.exists() else directory.path / "slurm" / "18_submission.sh"
    asked = {line.removeprefix("#SBATCH --") for line in script.read_text().split("\n")}
    assert {"nodes=3", "ntasks-per-node=1"} <= asked and "nodes=1" not in asked


def test_sbatch_that_refuses_is_quoted(directory: StudyDirectory, programs: Path) -> None:
    pytest.importorskip("submitit")
    (programs / "sbatch.fails").write_text("sbatch: error: invalid partition specified: moon")
    with pytest.raises(ClusterError, match="invalid partition specified: moon"):
        Slurm(directory).submit(runs_of(directory, 2))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--slurm", "ntasks-per-node=2"), "each cell is one task on each of its nodes"),
        (("--slurm", "--max-minutes", "5"), "use --slurm time=M instead"),
    ],
)
def test_the_command_refuses_what_a_job_cannot_keep(
    options: Sequence[str], said: str, sysbench_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "precision", "--variant", "small", *options]) == 2
    assert said in capsys.readouterr().err
    assert not (sysbench_home / "runs").exists()
