"""One pass in one process: ``python -P -m sysbench.core.worker``.

Started by the supervisor it reads a job from standard input and sends events through the
pipe in ``SYSBENCH_EVENT_FD``. Started by hand with ``--spec`` it runs a pass on its own, so
that an outside profiler can watch it.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import threading
from pathlib import Path

import msgspec

from ..events import AnyEvent, DeviceDescribed, StageEntered, encode_event
from ..spec import PASSES, RunSpec
from .job import Job, Report
from .process import EVENT_FD_VARIABLE, PARENT_VARIABLE

INDUCTOR_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def main() -> int:
    """Run a supervised pass, or the one described by the command line; returns the exit code."""
    faulthandler.enable()
    if EVENT_FD_VARIABLE in os.environ:
        return _supervised()
    return _by_hand()


def _supervised() -> int:
    # Line buffering would split nothing: each event is written with one call.
    pipe = os.fdopen(int(os.environ.pop(EVENT_FD_VARIABLE)), "wb", buffering=0)
    lock = threading.Lock()

    def report(event: AnyEvent) -> None:
        data = memoryview(encode_event(event))
        with lock:
            while data:
                data = data[pipe.write(data) :]

    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    threading.Thread(target=_exit_with_input, daemon=True).start()
    return _run(job, report, parent=int(os.environ[PARENT_VARIABLE]))


def _exit_with_input() -> None:
    """Standard input ends when the supervisor does; then nothing here has a reader."""
    sys.stdin.buffer.read()
    os._exit(1)


def _by_hand() -> int:
    parser = argparse.ArgumentParser(prog="python -P -m sysbench.core.worker")
    parser.add_argument("--spec", type=Path, required=True, help="JSON of a resolved spec")
    parser.add_argument("--pass", dest="name", choices=PASSES, default="timing")
    parser.add_argument("--folder", type=Path, default=Path(), help="where artifacts go")
    parser.add_argument(
        "--capture",
        action="store_true",
        help="NVTX ranges, and cudaProfilerStart/Stop around the measured steps",
    )
    options = parser.parse_args()
    spec = msgspec.json.decode(options.spec.read_bytes(), type=RunSpec)
    job = Job(spec=spec, name=options.name, folder=str(options.folder), capture=options.capture)
    return _run(job, lambda event: None, parent=os.getppid())


def _run(job: Job, report: Report, parent: int) -> int:
    report(StageEntered(stage="import"))
    if job.spec.compile != "off" and job.spec.compile_cache == "cold":
        os.environ[INDUCTOR_CACHE_VARIABLE] = str(job.path / "inductor-cache")
    # Late, so that the first event is out before the second that importing torch takes.
    from .failures import report_failure
    from .limits import die_with_parent, limit_memory
    from .passes import measure_pass
    from .setup import describe_torch, prepare_torch

    die_with_parent(parent)
    try:
        settings = prepare_torch(job.spec)
        report(DeviceDescribed(facts={**describe_torch(job.spec), "settings": settings}))
        limit_memory(job.spec)
        measure_pass(job, report)
    except Exception as error:
        report_failure(error, job.spec, report)
        return 1
    return 0


if __name__ == "__main__":
    # Skips the interpreter's clean-up of torch: everything is written, and a CUDA context
    # in a bad state can hang there.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
