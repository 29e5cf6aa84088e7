"""One pass in one process: ``python -P -m sysbench.core.worker``.

Started by the supervisor it reads a job from standard input and sends events through the
pipe in ``SYSBENCH_EVENT_FD``. Started by hand with ``--spec`` it runs a pass
unsupervised, so that an outside profiler can watch it.
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import os
import select
import sys
import threading
from pathlib import Path

import msgspec

from sysbench.core.machine.children import die_with, private_pipe, take_standard_input
from sysbench.core.machine.host_sampler import die_with_parent, fork_guard
from sysbench.core.record.blocks import PASSES
from sysbench.core.record.events import AnyEvent, Noticed, StageEntered, encode_event
from sysbench.core.runs.worker_process import (
    CACHE_FOLDER,
    CLOSED_PIPE_CODE,
    EVENT_FD_VARIABLE,
    PARENT_VARIABLE,
    STACKS_SIGNAL,
    Job,
    Report,
)
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.compile.plain_paths import CACHE_VARIABLE, have_plain_paths
from sysbench.core.worker.imports import Measure, import_compiler, measure_of, uncollected


def main() -> int:
    """Run a supervised pass, or the one described by the command line; returns the exit code."""
    faulthandler.enable()
    faulthandler.register(STACKS_SIGNAL)
    if EVENT_FD_VARIABLE in os.environ:
        return _run_supervised()
    return _by_hand()


def _run_supervised() -> int:
    report = _reporter(int(os.environ.pop(EVENT_FD_VARIABLE)))
    supervisor = take_standard_input()
    job = msgspec.json.decode(supervisor.readline(), type=Job)
    die_with(supervisor)
    if job.spec.ranks > 1:
        return _run_ranks(job, report)
    if PASSES[job.name].program:
        return _run_elsewhere(job, report, measure_of(job))
    return _run(job, report, parent=int(os.environ[PARENT_VARIABLE]))


def _reporter(descriptor: int) -> Report:
    """Make the function that writes events into a pipe, each in one call if it fits."""
    pipe = private_pipe(descriptor, "wb")
    lock = threading.Lock()
    refuse_fork = fork_guard()

    def report(event: AnyEvent) -> None:
        refuse_fork()
        data = memoryview(encode_event(event))
        with lock:
            while data:  # a full pipe accepts a part of the event
                try:
                    data = data[pipe.write(data) :]
                except OSError as error:
                    if error.errno == errno.EBADF:  # the user's code closed it: nothing can be said
                        os._exit(CLOSED_PIPE_CODE)
                    raise

    return report


def _by_hand() -> int:
    parser = argparse.ArgumentParser(prog="python -P -m sysbench.core.worker")
    parser.add_argument("--spec", type=Path, required=True, help="JSON of a resolved spec")
    names = [name for name, row in PASSES.items() if not row.program]
    parser.add_argument("--pass", dest="name", choices=names, default="timing")
    parser.add_argument("--folder", type=Path, default=Path(), help="where artifacts go")
    parser.add_argument(
        "--capture",
        action="store_true",
        help="NVTX ranges, and cudaProfilerStart/Stop around the measured steps",
    )
    parser.add_argument("--events", type=Path, help="a named pipe to write events to")
    options = parser.parse_args()
    report: Report = lambda event: None  # noqa: E731
    if options.events is not None:
        descriptor = os.open(options.events, os.O_WRONLY)
        threading.Thread(target=_exit_with_reader, args=(descriptor,), daemon=True).start()
        report = _reporter(descriptor)
    spec = msgspec.json.decode(options.spec.read_bytes(), type=RunSpec)
    if spec.ranks > 1:
        parser.error("several ranks are measured by `sysbench-tui run`, not by hand")
    job = Job(spec=spec, name=options.name, folder=str(options.folder), capture=options.capture)
    return _run(job, report, parent=os.getppid())


def _exit_with_reader(descriptor: int) -> None:
    """End the process once the pipe has no reader: the supervising pass is gone then."""
    poll = select.poll()
    poll.register(descriptor, 0)  # POLLERR is reported whatever the mask
    poll.poll()
    os._exit(1)


def _run_ranks(job: Job, report: Report) -> int:
    report(StageEntered(stage="import"))
    with uncollected():
        from sysbench.core.worker.ranks.launcher import measure  # lazy: imports torch

    die_with_parent(int(os.environ[PARENT_VARIABLE]))
    return _run_elsewhere(job, report, measure)


def _run_elsewhere(job: Job, report: Report, measure: Measure) -> int:
    """Run a pass that other processes measure: ranks, or a worker under a program."""
    try:
        return 1 if measure(job, report) is False else 0
    except Exception as error:
        from sysbench.core.worker.failures import report_failure  # lazy: imports torch

        report_failure(error, job.spec, report)
        return 1


def _run(job: Job, report: Report, parent: int) -> int:
    report(StageEntered(stage="import"))
    if job.spec.compile != "off" and job.spec.compile_cache == "cold":
        # A cache for this run. Only the timing pass starts with it empty, so its seconds are cold;
        # each of its rounds has a separate folder and thus an empty cache.
        folder = job.path.resolve()
        timing = folder if job.name == "timing" else folder.with_name("timing")
        os.environ[CACHE_VARIABLE] = str(timing / CACHE_FOLDER)
    if not have_plain_paths(job, report):
        return 1
    # Late: importing torch takes a second, and the first event should be out before.
    with uncollected():
        from sysbench.core.worker.boot import run_pass  # lazy: imports torch
        from sysbench.core.worker.limits import leftover_allocation_notice  # lazy: imports torch

    die_with_parent(parent)

    def load() -> Measure:
        with uncollected():
            measure = measure_of(job)
            import_compiler(job)

        def measure_with_notice(job: Job, report: Report) -> bool | None:
            if (message := leftover_allocation_notice(job.spec)) is not None:
                report(Noticed(message=message))
            return measure(job, report)

        return measure_with_notice

    return 0 if run_pass(job, report, load) else 1


if __name__ == "__main__":
    # Skip the interpreter's clean-up of torch: everything is written, and a CUDA context
    # in a bad state can hang there.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
