"""Attacks on processes: killed, stopped, out of memory, many at once."""

from __future__ import annotations

import itertools
import os
import random
import resource
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from sysbench.core.record.events import (
    Noticed,
    PassEnded,
    PassStarted,
    RoundDisturbed,
    StageEntered,
    StepsTimed,
)
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import create_run, list_runs, load_record
from sysbench.core.runs.supervisor import supervise
from sysbench.core.studies.study_directory import find_study
from sysbench.core.studies.study_report import study_report
from tests.validation.attacks.common import (
    ENDLESS,
    LONGER,
    PATIENCE_SECONDS,
    SPEC,
    Rows,
    checked,
    command,
    harmed,
    home,
    no_child_left,
    program,
    wait_until,
)


def _is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def stages() -> list[tuple[Any, str]]:
    """Each stage that a run of the three passes enters, with its pass."""
    run = create_run(SPEC, ["timing", "trace", "memory"])
    found, current = [], ""
    for event in supervise(run):
        if isinstance(event, PassStarted):
            current = event.name
        if isinstance(event, StageEntered):
            found.append((current, event.stage))
    assert checked(run).status == "finished"
    return list(dict.fromkeys(found))


def worker_signals() -> Rows:
    """The worker killed, and crashed, at each stage of each pass."""
    rows, places = [], stages()
    for number in (signal.SIGKILL, signal.SIGSEGV):
        hits = 0
        for name, stage in places:

            def harm(pid: int, number: int = number) -> None:
                os.kill(pid, number)

            run, _ = harmed([name], harm, stage, in_pass=name, spec=LONGER)
            record = checked(run)
            assert record.status in ("killed", "finished"), (name, stage, record.status)
            detail = record.passes[-1].detail
            assert record.status == "finished" or number.name in detail, detail
            hits += detail.endswith(f"in stage {stage}")
        assert hits > len(places) / 2, "most stages were over when the signal came"
        rows.append(
            (
                f"worker ended by {number.name}, at each stage of each pass",
                "the run is `killed`, with signal and stage; no process is left",
                "the block of that pass, with the reason in `missing`",
                f"{hits} of {len(places)} runs in that stage, the others in the next",
            )
        )
    return rows


def worker_stopped() -> Rows:
    """The worker stopped for a while at each stage of each pass."""
    places = stages()
    for name, stage in places:
        run, stopped, reported, pid = create_run(LONGER, [name]), False, False, 0
        for event in supervise(run):
            if isinstance(event, PassStarted):
                pid = event.pid
            if isinstance(event, StageEntered) and event.stage == stage and not stopped:
                stopped = True
                os.kill(pid, signal.SIGSTOP)
            if isinstance(event, Noticed) and f"kill -CONT {pid}" in event.message:
                reported = True
                os.kill(pid, signal.SIGCONT)
        record = checked(run)
        assert reported and record.status == "finished", (name, stage, record.status)
        assert name != "timing" or (record.timing and not record.timing.rounds[0].counts)
    return [
        (
            "worker stopped by SIGSTOP at each stage of each pass, then let go on",
            "the run: it is reported, and finishes",
            "that round of the timing pass: it does not count",
            f"{len(places)} runs",
        )
    ]


def supervisor_killed() -> Rows:
    """The detached supervisor killed at each stage of each pass."""
    places = stages()
    for name, stage in places:
        run = create_run(SPEC, [name])
        pid, tail, worker = run.start(), run.tail(), 0
        entered = False
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not entered:
            assert time.monotonic() < deadline
            for event in tail.read():
                worker = event.pid if isinstance(event, PassStarted) else worker
                entered = entered or (isinstance(event, StageEntered) and event.stage == stage)
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        wait_until(partial(_is_gone, worker), "the worker to die")
        record = checked(run)
        assert record.status in ("killed", "finished"), record.status
        before = run.record_path.read_bytes()
        assert load_record(run) == record and run.record_path.read_bytes() == before
    return [
        (
            "supervisor of a detached run killed at each stage of each pass",
            "the run, listed as `killed`; the worker dies with it, and what is kept stays as it is",
            "the pass under way",
            f"{len(places)} runs",
        )
    ]


def memory() -> Rows:
    """No more memory for the worker from each stage of each pass on."""
    outcomes: dict[str, int] = {}

    def no_more(pid: int) -> None:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):  # its last stage is over
            limit = psutil.Process(pid).memory_info().vms + 2**20
            resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))

    spec = SPEC.changed(batch=8, context=256, step="train")
    for name, stage in stages():
        run, _ = harmed([name], no_more, stage, in_pass=name, spec=spec)
        outcome = checked(run).status
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    counted = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
    return [
        (
            "no memory beyond what it has, for the worker from each stage of each pass on",
            "the run and its reason; what fits goes on",
            "the block of a pass that did not finish",
            f"{sum(outcomes.values())} runs: {counted}",
        )
    ]


def tmux(*arguments: str) -> str:
    name = f"attack-{os.getpid()}"
    words = ["tmux", "-L", name, "-f", "/dev/null", *arguments]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def terminal() -> Rows:
    """The terminal's server killed, and the workstation, while a run goes on that it started."""
    opened = ["new-session", "-d", "-x", "120", "-y", "40", *program()]
    tmux(*opened)
    wait_until(lambda: "What to run" in tmux("capture-pane", "-p"), "the form")
    tmux("send-keys", "C-r")
    wait_until(list_runs, "a run")
    (run,) = list_runs()
    wait_until(run.is_live, "the run to begin")
    workstation = int(tmux("display-message", "-p", "#{pane_pid}"))
    tmux("kill-server")
    assert run.is_live()
    wait_until(lambda: not psutil.pid_exists(workstation), "the workstation to end")
    wait_until(lambda: not run.is_live(), "the run to end")
    assert checked(run).status == "finished"
    other = create_run(ENDLESS, ["timing"])
    supervisor = other.start()
    wait_until(lambda: any(isinstance(one, StepsTimed) for one in other.tail().read()), "steps")
    tmux(*opened)
    wait_until(lambda: "is live" in tmux("capture-pane", "-p"), "the live run")
    os.kill(int(tmux("display-message", "-p", "#{pane_pid}")), signal.SIGKILL)
    assert other.is_live()
    assert other.stop()
    os.waitpid(supervisor, 0)
    assert checked(other).status == "cancelled"
    with suppress(subprocess.CalledProcessError):  # it ends with its last window
        tmux("kill-server")
    return [
        (
            "tmux server killed while the workstation in it follows a run that it started",
            "the run: it finishes; the workstation ends",
            "nothing",
            "1 run",
        ),
        (
            "workstation killed by SIGKILL while it follows a run",
            "the run: `stop` finds it and ends it in order",
            "nothing",
            "1 run",
        ),
    ]


def detached() -> Rows:
    """Twenty detached runs started at once."""
    settings = [f"--set={key}={value}" for key, value in SPEC.settings().items()]
    words = program("run", *settings, "--passes", "timing", "--detach")
    starting = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(20)]
    assert [one.wait() for one in starting] == [0] * 20
    runs = list_runs()
    assert len(runs) == 20
    wait_until(lambda: not any(load_record(run).status == "running" for run in runs), "all")
    assert {checked(run).status for run in runs} == {"finished"}
    parts = []
    for run in runs:
        events = list(run.tail().read())
        begins = [event.t_ns for event in events if isinstance(event, PassStarted)]
        ends = [event.t_ns for event in events if isinstance(event, PassEnded)]
        parts.append((begins[0], ends[0]))
    parts.sort()
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(parts))
    return [
        (
            "20 detached runs started at once",
            "all: each waits for the device, and is measured alone",
            "nothing",
            f"20 finished, no two at a time, in {(parts[-1][1] - parts[0][0]) / 1e9:.0f} s",
        )
    ]


STUDY = """
title = "attacked"
passes = ["trace", "memory"]
[fixed]
step = "inference"
device = "cpu"
threads = 1
warmup = 1
steps = 4
[axes]
context = [16, 32, 64]
batch = [1, 2, 4]
[[tables]]
name = "sizes"
columns = [
    { name = "Peak (MiB)", value = "memory.peak_allocated_bytes", unit = "MiB" },
    { name = "Parameters", value = "parameters" },
]
"""
KILLS = 20


def study() -> Rows:
    """A study killed at random times, beside one that is not."""
    file = Path(os.environ["SYSBENCH_HOME"], "attacked.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(STUDY)
    began = time.monotonic()
    command("study", str(file))
    cell_seconds = (time.monotonic() - began) / 9
    whole = study_report(find_study("attacked")).tables[0].rows
    began = time.monotonic()
    draw, kills, studies, runs = random.Random(20), 0, 0, 0
    while kills < KILLS:  # a machine that got faster has it whole before
        with home():
            killed = _killed(file, draw, cell_seconds, KILLS - kills)
            kills, studies = kills + killed, studies + 1
            command("study", str(file))
            report = study_report(find_study("attacked"))
            assert report.progress.done == report.progress.total == 9
            assert report.tables[0].rows == whole, (report.tables[0].rows, whole)
            runs += len(list_runs())
    many = "1 study" if studies == 1 else f"{studies} studies"
    return [
        (
            f"studies of 9 cells killed by SIGKILL {kills} times at random, and resumed each time",
            "every cell that had ended; the tables are that of a study that was never killed",
            "the cell under way, which is measured again",
            f"{many}, {runs} runs, {time.monotonic() - began:.0f} s",
        )
    ]


def _killed(file: Path, draw: random.Random, cell_seconds: float, most: int) -> int:
    """Kill a study and start it again, until it is whole or was killed so often; how often."""
    for kills in range(most):
        silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(program("study", str(file)), start_new_session=True, **silent)
        with suppress(subprocess.TimeoutExpired):
            assert process.wait(draw.uniform(0.0, 1.2 * cell_seconds)) == 0
            return kills
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return most


def rank() -> Rows:
    """A rank of two stopped while they measure."""
    spec = SPEC.changed(
        workload="all-reduce", ranks=2, parallel="none", payload_mib=1, steps=1_000_000
    )
    run, cancel, worker, stopped = create_run(spec, ["timing"]), Cancellation(), 0, 0
    for event in supervise(run, cancel=cancel):
        if isinstance(event, PassStarted):
            worker = event.pid
        if isinstance(event, StepsTimed) and not stopped:
            ranks = psutil.Process(worker).children()
            stopped = next(one.pid for one in ranks if one.environ().get("RANK") == "1")
            os.kill(stopped, signal.SIGSTOP)
        if isinstance(event, Noticed):
            assert f"kill -CONT {stopped}" in event.message, event.message
            os.kill(stopped, signal.SIGCONT)
        if isinstance(event, RoundDisturbed):
            cancel.set()
    no_child_left()
    assert checked(run).status == "cancelled"
    return [
        (
            "rank 1 of 2 stopped by SIGSTOP while both measure",
            "the run: the process is named, with the command that lets it go on",
            "that round",
            "1 run",
        )
    ]
