"""The nsys pass: the worker's steps under ``nsys profile``, and its export read on the spot.

Nsight Systems starts what it profiles in a session of its own, and a helper that soon has no
parent. So the profiled worker tells its facts through a named pipe, and ends when nobody
reads that any more; and the helper falls to this process, whose descendants then are all.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ...analysis.nsys.export import NsysExport, read_export
from ...errors import NotFoundError, WorkerFailed
from ...export.nsys_script import flags_for, installed_options
from ...machine.children import python_child
from ...machine.processes import adopt_orphans, kill_descendants
from ...record import events
from ...record.events import ResultReported, StageEntered
from ...record.record import Nsys
from ...runs.job import Job, Report
from ...storage import write_atomically

REPORT, EXPORT = "nsys.nsys-rep", "nsys.sqlite"
TABLES, LAYERS = "nsys.json", "kernels.json"
KEPT_RANGES = 200
POLL_SECONDS = 0.2
LOG_SECONDS = 2.0
PIPE_BYTES = 2**20
PROGRESS_BAR = re.compile(rb"\[\d+/\d+\] \[.*\d+%")


def measure(job: Job, report: Report) -> bool:
    """Profile the spec; leave ``nsys.nsys-rep`` and ``nsys.sqlite``, report the block.

    ``nsys.json`` has all the ranges, of which the block has the first, and ``kernels.json``
    a row for every layer.

    Returns:
        Whether there is a result. If not, the profiled worker has told why.

    Raises:
        NotFoundError: There is no nsys.
        WorkerFailed: It ended without an export.
        DamagedFileError: Its export cannot be read.
    """
    adopt_orphans()
    pipe = job.path / "events.pipe"
    command = _command(job, pipe, report)
    with _named_pipe(pipe) as told:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        log = threading.Thread(target=_copy_log, args=(process,), daemon=True)
        log.start()
        try:
            well = _follow(process, told, report)
        finally:
            kill_descendants(os.getpid())
            log.join(LOG_SECONDS)
    if not well:
        return False
    if process.returncode or not (job.path / EXPORT).is_file():
        raise WorkerFailed(
            f"nsys ended with code {process.returncode} and no export; the pass's log says more"
        )
    report(StageEntered(stage="analyse"))
    export = read_export(job.path / EXPORT)
    write_atomically(job.path / LAYERS, msgspec.json.encode(export.kernels))
    write_atomically(job.path / TABLES, msgspec.json.encode(export.block()))
    report(ResultReported(block="nsys", data=msgspec.to_builtins(shortened(export))))
    return True


def shortened(export: NsysExport) -> Nsys:
    """The block with the first ranges only: torch's operators make one for every call."""
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
    """nsys with the flags it knows, then the worker by hand."""
    program = shutil.which("nsys")
    if program is None:
        raise NotFoundError("nsys is not on PATH any more")
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
def _named_pipe(path: Path) -> Iterator[int]:
    """A pipe in the file system, open for reading while inside ``with``."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    # For writing, too: it never is at its end, and opening does not wait for a writer.
    told = os.open(path, os.O_RDWR)
    try:
        yield told
    finally:
        os.close(told)
        path.unlink()


def _follow(process: subprocess.Popen[bytes], told: int, report: Report) -> bool:
    """Hand on the worker's events until nsys ends; false if one was of a failure."""
    well, rest = True, b""
    while True:
        ended = process.poll() is not None
        ready, _, _ = select.select([told], [], [], 0 if ended else POLL_SECONDS)
        if ended and not ready:
            return well
        if not ready:
            continue
        *lines, rest = (rest + os.read(told, PIPE_BYTES)).split(b"\n")
        for line in lines:
            event = events.decode_event(line)
            report(event)
            match event:
                case events.OutOfMemory() | events.WorkerFailed():
                    well = False
                case events.StepCounted() if event.done == event.total:
                    report(StageEntered(stage="export"))
                case _:
                    pass


def _copy_log(process: subprocess.Popen[bytes]) -> None:
    """What nsys and the worker print, without nsys's hundreds of progress bars."""
    assert process.stdout is not None
    for line in process.stdout:
        kept = [part for part in line.split(b"\r") if not PROGRESS_BAR.match(part)]
        if any(kept):
            sys.stdout.buffer.write(b"\r".join(kept).rstrip() + b"\n")
            sys.stdout.buffer.flush()
