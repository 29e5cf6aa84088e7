"""Run cells on Slurm: one job array per start, submitted by submitit.

``slurm.jsonl`` in the study's directory has a line before each submission with the job name, and
one after it; ``slurm/`` has submitit's files and job logs.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from sysbench.core.errors import ClusterError, DeviceBusyError, SpecError
from sysbench.core.formatting import counted
from sysbench.core.machine.children import python_child
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import HOME_VARIABLE
from sysbench.core.studies.schema import Study
from sysbench.core.studies.study_directory import StudyDirectory, append_line, read_lines

JobState = Literal["waiting", "running"]
OPTION = "--slurm"
MAX_TASKS = 1000
"""Jobs per array, Slurm's default limit (``MaxArraySize``)."""
MAX_AT_ONCE = 256
ANSWER_SECONDS = 60.0
LOGS = "slurm"
MINUTES = "60"
"""Default time limit of a job, because some partitions have none."""

FLAGS = ("exclusive", "contiguous", "spread-job", "oversubscribe", "overcommit")
"""Options of sbatch that need no value."""
_ONE_TASK = "each cell is one task on each of its nodes, and starts its ranks itself"
_OURS = "set by the runner, which finds its jobs by it"
REFUSED = {
    **dict.fromkeys(("ntasks", "ntasks-per-node", "ntasks-per-core"), _ONE_TASK),
    **dict.fromkeys(("array", "job-name", "output", "error", "open-mode", "wrap"), _OURS),
    **dict.fromkeys(
        ("requeue", "no-requeue"), "a cell is measured once from its start; start the study again"
    ),
    "signal": "jobs are ended by SIGTERM",
}
GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Options of all jobs.

    Attributes:
        sbatch: Long options by name without dashes; true for a flag.
    """

    sbatch: Mapping[str, str | bool]
    parallel: int = MAX_AT_ONCE

    @property
    def has_gpu(self) -> bool:
        return any(
            name in GPUS and (name != "gres" or "gpu" in str(value))
            for name, value in self.sbatch.items()
        )


def parse_options(texts: Sequence[str]) -> SlurmOptions:
    """Parse ``partition=gpu,gres=gpu:1,time=30``; values may contain commas. Raises SpecError."""
    sbatch: dict[str, str | bool] = {}
    parallel = MAX_AT_ONCE
    for part in (part for text in texts for part in _BEFORE_OPTION.split(text) if part):
        name, value = _parse_option(part)
        if name in REFUSED:
            raise SpecError(OPTION, f"{name}={value}", f"no {name}: {REFUSED[name]}")
        if name == "parallel":
            if not str(value).isdecimal() or not 1 <= int(value) <= MAX_TASKS:
                raise SpecError(OPTION, f"{name}={value}", f"jobs at once, 1 to {MAX_TASKS}")
            parallel = int(value)
            continue
        if name == "nodes" and not (str(value).isdecimal() and int(value)):
            # With a range the number of nodes would vary between cells.
            raise SpecError(OPTION, f"{name}={value}", "a number of nodes, the same for each cell")
        sbatch[name] = value
    return SlurmOptions(sbatch, parallel)


def _parse_option(part: str) -> tuple[str, str | bool]:
    name, equals, value = part.partition("=")
    name = name.strip().replace("_", "-")
    if not equals and name not in FLAGS:
        raise SpecError(OPTION, part, "options of sbatch as KEY=VALUE, such as time=30")
    name = name.removeprefix("--")
    if not _OPTION_NAME.fullmatch(name) or not value.isprintable():
        raise SpecError(OPTION, part, "a long option of sbatch, and its value")
    if equals and not value:
        raise SpecError(OPTION, part, f"a value for {name}")
    return name, value if equals else True


_OPTION_NAME = re.compile(r"[a-z][a-z0-9-]+")
_BEFORE_OPTION = re.compile(rf",(?=[^,]*=|(?:{'|'.join(FLAGS)})(?:,|$))".replace("-", "[-_]"))
"""A comma before the next option; other commas belong to a value."""


def placed(study: Study, options: SlurmOptions) -> Study:
    """Resolve ``auto`` for the cluster: a GPU if the jobs request one, else the CPU."""
    by_axis = any("device" in axis.keys for axis in study.axes)
    fixed = dict(study.fixed)
    if not by_axis and fixed.get("device", "auto") == "auto":
        fixed["device"] = "cuda:0" if options.has_gpu else "cpu"
    return msgspec.structs.replace(study, fixed=fixed, elsewhere=True)


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ``slurm.jsonl``. ``runs`` are in the order of array tasks; ``job`` is empty before
    sbatch has answered."""

    name: str
    runs: tuple[str, ...]
    job: str = ""
    t_ns: int = msgspec.field(default_factory=time.time_ns)


class Slurm:
    """The queue that this machine submits to, for one study. A job is the supervisor of one run."""

    def __init__(self, directory: StudyDirectory, options: SlurmOptions | None = None) -> None:
        self.directory = directory
        self.options = options or SlurmOptions({})
        self.log_path = directory.path / "slurm.jsonl"

    def submissions(self) -> list[Submission]:
        """All submissions of the study, oldest first; raises DamagedFileError."""
        lines = read_lines(self.log_path, Submission)
        return list({submission.name: submission for submission in lines}.values())

    def submit(self, runs: Sequence[RunDirectory]) -> str:
        """Queue the supervisors as one array per thousand runs; return words for where they are.

        Raises ClusterError if nothing was queued.
        """
        chunks = (runs[start : start + MAX_TASKS] for start in range(0, len(runs), MAX_TASKS))
        jobs = [self._submit_array(chunk) for chunk in chunks]
        return f"Slurm job {', '.join(jobs)}"

    def jobs(self) -> dict[str, JobState]:
        by_name = {submission.name: submission.runs for submission in self.submissions()}
        if not by_name:
            return {}
        states: dict[str, JobState] = {}
        output = _ask("squeue", "--noheader", "--array", *_MINE, "--format=%j|%K|%t")
        for line in output.splitlines():
            name, index, state = (part.strip() for part in line.rsplit("|", 2))
            runs = by_name.get(name, ())
            # A single run is a job without an array.
            number = int(index) if index.isdecimal() else 0
            if number < len(runs):
                states[runs[number]] = "waiting" if state == "PD" else "running"
        return states

    def job_of(self, run: str) -> str:
        """Return ``Slurm job 17_3, output in slurm/17_3_0_log.err``."""
        for submission in reversed(self.submissions()):
            if run in submission.runs and submission.job:
                task = f"_{submission.runs.index(run)}" if len(submission.runs) > 1 else ""
                job = f"{submission.job}{task}"
                return f"Slurm job {job}, output in {LOGS}/{job}_0_log.err"
        return "its Slurm job"

    def cancel(self) -> None:
        """End all jobs of the study; raises ClusterError if they keep running."""
        live = self.jobs()
        for submission in self.submissions():
            if not live.keys().isdisjoint(submission.runs):
                _ask("scancel", f"--name={submission.name}", *_MINE)

    def _submit_array(self, runs: Sequence[RunDirectory]) -> str:
        submitit = _submitit()
        name = f"sysbench-{self.directory.id}-{secrets.token_hex(4)}"
        ids = tuple(run.id for run in runs)
        executor = submitit.SlurmExecutor(folder=self.directory.path / LOGS)
        executor.update_parameters(
            job_name=name,
            wckey=None,
            array_parallelism=self.options.parallel,
            # A step of srun would get one processor.
            use_srun=False,
            # Without a trap bash ends at SIGTERM, and the supervisor has no time to write its end.
            # -P: files in the working directory are not modules.
            setup=["trap : TERM", "export PYTHONSAFEPATH=1"],
            additional_parameters={
                **{"no-requeue": True, "time": MINUTES},
                **({"ntasks-per-node": "1"} if "nodes" in self.options.sbatch else {}),
                **self.options.sbatch,
            },
        )
        root = self.directory.root.absolute()
        command = ["env", f"{HOME_VARIABLE}={root}", *python_child("sysbench.core.runs.supervisor")]
        function = submitit.helpers.CommandFunction(command, verbose=False)
        append_line(self.log_path, Submission(name=name, runs=ids))
        try:
            jobs = executor.map_array(function, [str(run.path.absolute()) for run in runs])
        except (
            submitit.core.utils.FailedJobError,
            submitit.core.utils.FailedSubmissionError,
        ) as error:
            raise ClusterError(f"sbatch queued nothing: {str(error).strip()}") from error
        job = str(jobs[0].job_id).partition("_")[0]
        append_line(self.log_path, Submission(name=name, runs=ids, job=job))
        return job


_MINE = (f"--user={os.getuid()}",)


def refuse_while_queued(directory: StudyDirectory) -> None:
    slurm = Slurm(directory)
    if not slurm.submissions() or shutil.which("squeue") is None:
        return  # without Slurm there are no jobs
    count = len(slurm.jobs())
    if count:
        raise DeviceBusyError(
            f"{counted(count, 'job')} of {directory.id} in Slurm's queue: follow with {OPTION}, "
            "where Ctrl+C ends them"
        )


def _submitit() -> Any:
    for program in ("sbatch", "squeue", "scancel", "srun"):
        if shutil.which(program) is None:
            raise ClusterError(f"{program} is not on this machine: submit from a node of a cluster")
    try:
        import submitit  # lazy: optional dependency
        import submitit.helpers  # lazy: optional dependency
    except ImportError as error:
        raise ClusterError(
            f"submitit is not installed for {sys.executable}: pip install 'sysbench-tui[slurm]'"
        ) from error
    return submitit


def _ask(*command: str) -> str:
    """Return the output of a Slurm command; raises ClusterError."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{command[0]} does not answer: {error}") from error
    if answer.returncode:
        raise ClusterError(f"{command[0]}: {answer.stderr.strip() or answer.returncode}")
    return answer.stdout
