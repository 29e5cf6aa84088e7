"""One of several ranks, as torchrun starts it.

Run as ``python -m sysbench.core.worker.ranks.rank FOLDER``.

The folder holds ``job.json`` and gets, for every rank, its events and what it printed.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from pathlib import Path

import msgspec

from sysbench.core.machine.host_sampler import die_with_parent, fork_guard
from sysbench.core.record.events import AnyEvent, StageEntered, encode_event
from sysbench.core.runs.worker_process import Job, Report
from sysbench.core.worker.compile.plain_paths import have_plain_paths
from sysbench.core.worker.imports import Measure, import_compiler, uncollected

JOB, MEETING = "job.json", "meeting"
"""The job's file, and the folder that exists while ranks meet and run."""
PARENT_VARIABLE = "SYSBENCH_LAUNCHER_PID"
BLAME_SECONDS = 0.5


def events_name(rank: int) -> str:
    return f"rank-{rank}.jsonl"


def log_name(rank: int) -> str:
    return f"rank-{rank}.log"


def main() -> int:
    """Measure as the rank that torchrun's variables describe; return the exit code."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    _print_into(folder / log_name(rank))
    faulthandler.enable()
    job = msgspec.json.decode((folder / JOB).read_bytes(), type=Job)
    with (folder / events_name(rank)).open("ab", buffering=0) as events:
        refuse_fork = fork_guard()

        def report(event: AnyEvent) -> None:
            refuse_fork()
            events.write(encode_event(event))

        report(StageEntered(stage="import"))
        if not have_plain_paths(job, report):
            return 1
        # Late: importing torch takes seconds, and the first event should be out before.
        with uncollected():
            import torch.distributed as dist  # lazy: torch takes seconds

            from sysbench.core.worker.boot import run_pass  # lazy: torch takes seconds
            from sysbench.core.worker.ranks.rank_timing import (  # lazy: torch takes seconds
                join_ranks,
                measure,
            )

            import_compiler(job)

        die_with_parent(int(os.environ[PARENT_VARIABLE]))
        device = job.spec.devices[int(os.environ["LOCAL_RANK"])]  # of its host's
        job = msgspec.structs.replace(job, spec=job.spec.changed(device=device))

        def load() -> Measure:
            join_ranks(rank, job.spec, folder / MEETING / "ranks")
            return measure_and_leave

        def measure_and_leave(job: Job, report: Report) -> None:
            measure(job, report)
            dist.destroy_process_group()

        if not run_pass(job, report, load):
            # If another rank died first, torchrun must notice that before this one ends.
            time.sleep(BLAME_SECONDS)
            return 1
    return 0


def _print_into(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)


if __name__ == "__main__":
    # Skip the interpreter's clean-up of torch, as all workers do.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
