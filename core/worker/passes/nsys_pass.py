"""The nsys pass: the worker's steps under ``nsys profile``, and its export.

Nsight Systems starts the profiled program in a new session, and a helper that is soon orphaned.
So the profiled worker sends its events through a named pipe and ends when that has no reader.
This process is the child subreaper: the helper is re-parented to it and ends with its descendants.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sysbench.core.errors import NotFoundError, WorkerFailed
from sysbench.core.export.exports import flags_for, installed_options
from sysbench.core.machine.children import python_child
from sysbench.core.machine.host_sampler import adopt_orphans, kill_descendants
from sysbench.core.record import events
from sysbench.core.record.events import ResultReported, StageEntered
from sysbench.core.record.record import Nsys
from sysbench.core.runs.worker_process import Job, Report
from sysbench.core.storage import write_atomically
from sysbench.core.trace.nsys_export import NsysExport, read_export

REPORT, EXPORT = "nsys.nsys-rep", "nsys.sqlite"
TABLES, LAYERS = "nsys.json", "kernels.json"
KEPT_RANGES = 200
POLL_SECONDS = 0.2
LOG_SECONDS = 2.0
PIPE_BYTES = 2**20
PROGRESS_BAR = re.compile(rb"\[\d+/\d+\] \[.*\d+%")


def measure(job: Job, report: Report) -> bool:
    """Profile the spec, write ``nsys.nsys-rep`` and ``nsys.sqlite``, report the block.

    ``nsys.json`` has all ranges, the block only the first; ``kernels.json`` has one row per layer.
    Returns False if the profiled worker has reported a failure.

    Raises:
        NotFoundError: nsys is not installed.
        WorkerFailed: nsys ended without an export.
        DamagedFileError: The export cannot be read.
    """
    adopt_orphans()
    with _named_pipe() as (pipe, pipe_fd):
        command = _command(job, pipe, report)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        log = threading.Thread(target=_copy_log, args=(process,), daemon=True)
        log.start()
        try:
            succeeded = _follow(process, pipe_fd, report)
        finally:
            kill_descendants(os.getpid())
            log.join(LOG_SECONDS)
    if not succeeded:
        return False
    if process.returncode or not (job.path / EXPORT).is_file():
        raise WorkerFailed(
            f"nsys ended with code {process.returncode} without an export; see the pass's log"
        )
    report(StageEntered(stage="analyse"))
    export = read_export(job.path / EXPORT)
    write_atomically(job.path / LAYERS, msgspec.json.encode(export.kernels))
    write_atomically(job.path / TABLES, msgspec.json.encode(export.block()))
    report(ResultReported(block="nsys", data=msgspec.to_builtins(shorten_log(export))))
    return True


def shorten_log(export: NsysExport) -> Nsys:
    """Keep the first ranges only: torch's operators make one per call."""
    block = export.block()
    nvtx, missing = block.nvtx, block.missing
    if len(nvtx.rows) > KEPT_RANGES:
        missing = missing | {
            "nvtx.rows": f"the first {KEPT_RANGES} of {len(nvtx.rows):,}: {TABLES} has all"
        }
    nvtx = msgspec.structs.replace(
        nvtx, rows=nvtx.rows[:KEPT_RANGES], elsewhere=nvtx.elsewhere[:KEPT_RANGES]
    )
    return msgspec.structs.replace(block, nvtx=nvtx, missing=missing)


def _command(job: Job, pipe: Path, report: Report) -> list[str]:
    """Command line of nsys with the flags that this version supports, then of the worker.

    Raises:
        NotFoundError: nsys is not installed.
    """
    program = shutil.which("nsys")
    if program is None:
        raise NotFoundError("nsys is no longer on PATH")
    spec = job.path / "spec.json"
    write_atomically(spec, msgspec.json.encode(job.spec))
    flags, left_out, _ = flags_for(job.spec, installed_options())
    for flag in left_out:
        report(events.Noticed(message=f"this nsys has no {flag.option}: {flag.purpose}"))
    return [
        *(program, "profile", *(flag.text for flag in flags)),
        f"--output={job.path / Path(REPORT).stem}",
        *python_child("sysbench.core.worker", "--spec", str(spec), unbuffered=True),
        *("--folder", job.folder, "--capture", "--events", str(pipe)),
    ]


@contextmanager
def _named_pipe() -> Iterator[tuple[Path, int]]:
    """Make a pipe among temporary files: some file systems of homes (WSL's, CIFS) have none."""
    with tempfile.TemporaryDirectory(prefix="sysbench-") as folder:
        path = Path(folder, "events.pipe")
        os.mkfifo(path)
        # Also for writing: reads never reach the end, and opening does not wait for a writer.
        pipe_fd = os.open(path, os.O_RDWR)
        try:
            yield path, pipe_fd
        finally:
            os.close(pipe_fd)


def _follow(process: subprocess.Popen[bytes], pipe_fd: int, report: Report) -> bool:
    """Forward the worker's events until nsys ends; False if one reports a failure."""
    succeeded, rest = True, b""
    while True:
        # Before the select, so that events written just before the end are still read.
        ended = process.poll() is not None
        ready, _, _ = select.select([pipe_fd], [], [], 0 if ended else POLL_SECONDS)
        if ended and not ready:
            return succeeded
        if not ready:
            continue
        *lines, rest = (rest + os.read(pipe_fd, PIPE_BYTES)).split(b"\n")
        for line in lines:
            event = events.decode_event(line)
            report(event)
            match event:
                case events.OutOfMemory() | events.WorkerFailed():
                    succeeded = False
                case events.StepCounted() if event.done == event.total:
                    report(StageEntered(stage="export"))
                case _:
                    pass


def _copy_log(process: subprocess.Popen[bytes]) -> None:
    """Copy the output of nsys and the worker without progress bars."""
    assert process.stdout is not None
    for line in process.stdout:
        kept = [part for part in line.split(b"\r") if not PROGRESS_BAR.match(part)]
        if any(kept):
            sys.stdout.buffer.write(b"\r".join(kept).rstrip() + b"\n")
            sys.stdout.buffer.flush()
