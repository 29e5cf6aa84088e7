"""A pass of several ranks: this worker runs torchrun and forwards the events of its ranks.

Each rank writes its events to a separate file. Those of rank 0 go on to the supervisor at once.
Of the others only failures count, and only the rank that failed first is reported: one rank's
death makes all others fail a moment later.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from ...record.events import AnyEvent, EventTail, OutOfMemory, StageEntered, WorkerFailed
from ...runs.job import Job, Report
from ...spec.spec import RunSpec
from ...storage import last_lines, write_atomically
from ..limits import OMP_VARIABLE, available_threads
from .rank import JOB, MEETING, PARENT_VARIABLE, events_name, log_name

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

POLL_SECONDS = 0.1
SHUTDOWN_SECONDS = 5
TAIL_LINES = 40
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOST_PEER = re.compile(
    r"closed by peer|reset by peer|broken pipe|remote process exited", re.IGNORECASE
)


def measure(job: Job, report: Report) -> bool:
    """Run the job on ``job.spec.ranks`` processes of this host.

    Returns:
        False if a rank failed; the first failure has been reported then.
    """
    meeting = job.path / MEETING
    shutil.rmtree(meeting, ignore_errors=True)
    meeting.mkdir()
    write_atomically(job.path / JOB, msgspec.json.encode(job))
    os.environ.update(environment_of(job.spec, os.environ))
    listener = Listener(job, report)
    listener.start()
    try:
        failures = _torchrun(job, meeting)
    finally:
        listener.stop()
        shutil.rmtree(meeting, ignore_errors=True)
    if not failures:
        return True
    rank, failure = first_failure(failures, listener.failures, listener.stage, job.path)
    _print_tail(rank, job.path / log_name(rank))
    report(failure)
    return False


def environment_of(spec: RunSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables to add for the ranks; those that a person has set stay."""
    wanted = {
        PARENT_VARIABLE: str(os.getpid()),
        "PYTHONSAFEPATH": "1",
        # The store that torchrun shares with its workers would listen on every interface.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    if loopback := _loopback():
        # The ranks are on this host: NCCL, too, would listen on the first other interface.
        wanted |= {name: loopback for name in INTERFACES if name not in environ}
    if not spec.threads and not environ.get(OMP_VARIABLE):
        wanted[OMP_VARIABLE] = str(max(1, available_threads() // spec.ranks))
    return wanted


class Listener(threading.Thread):
    """Thread that forwards the events of rank 0, and keeps the failures of all ranks.

    Attributes:
        failures: The failure that a rank reported, by rank.
        stage: The stage of rank 0; the others go in step with it.
    """

    def __init__(self, job: Job, report: Report) -> None:
        super().__init__(daemon=True)
        self.failures: dict[int, OutOfMemory | WorkerFailed] = {}
        self.stage = "start"
        self._report = report
        self._tails = [EventTail(job.path / events_name(rank)) for rank in range(job.spec.ranks)]
        for tail in self._tails:
            tail.path.unlink(missing_ok=True)
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            self._read()
        self._read()  # events written between the last look and the end

    def stop(self) -> None:
        """Return once every event that the ranks have written is read."""
        self._ended.set()
        self.join()

    def _read(self) -> None:
        for rank, tail in enumerate(self._tails):
            for event in tail.read():
                self._take(rank, event)

    def _take(self, rank: int, event: AnyEvent) -> None:
        match event:
            case OutOfMemory() | WorkerFailed():
                self.failures[rank] = msgspec.structs.replace(event, rank=rank)
            case StageEntered() if rank == 0:
                self.stage = event.stage
                self._report(event)
            case _ if rank == 0:
                self._report(event)
            case _:
                pass


def first_failure(
    ended: Mapping[int, ProcessFailure],
    reported: Mapping[int, OutOfMemory | WorkerFailed],
    stage: str,
    folder: Path,
) -> tuple[int, OutOfMemory | WorkerFailed]:
    """The rank whose failure caused the others', and its failure.

    Args:
        ended: Exits of torchrun's ranks; those that torchrun ended have SIGTERM's code.
        reported: Failures that ranks reported themselves.
        stage: Stage that the ranks had reached.
        folder: Folder of their logs.
    """
    in_order = sorted(reported, key=lambda rank: reported[rank].t_ns)
    # Most telling first: an error other than a lost peer, a death by a signal that torchrun did
    # not send, any silent end, and last the earliest of the lost peers.
    causes = [rank for rank in in_order if not LOST_PEER.search(reported[rank].message)]
    silent = [rank for rank in sorted(ended) if rank not in reported]
    killed = [rank for rank in silent if ended[rank].exitcode != -signal.SIGTERM]
    rank = [*causes, *killed, *silent, *in_order][0]
    if rank in reported:
        return rank, reported[rank]
    code = ended[rank].exitcode
    name = signal.Signals(-code).name if code < 0 else f"code {code}"
    lines = last_lines(folder / log_name(rank), 1)
    log_end = f"its log ends: {lines[0]}" if lines else "its log is empty"
    return rank, WorkerFailed(
        kind=name,
        message=f"{'killed by' if code < 0 else 'ended with'} {name} in stage {stage}; {log_end}",
        traceback="",
        is_cuda_error=False,
        killed=code < 0,
        rank=rank,
    )


def _torchrun(job: Job, meeting: Path) -> Mapping[int, ProcessFailure]:
    """Run the ranks to their end; returns those that failed, by number."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    options = parse_args(  # type: ignore[no-untyped-call]
        [
            *("--nnodes", "1", "--nproc-per-node", str(job.spec.ranks)),
            *("--rdzv-backend", "c10d", "--rdzv-id", job.path.parent.name),
            *("--rdzv-endpoint", str(meeting / "torchrun")),
            *("--rdzv-conf", "store_type=file", "--local-addr", "127.0.0.1"),
            *("--log-dir", str(meeting / "logs"), "--max-restarts", "0"),
            *("-m", "sysbench.core.worker.ranks.rank", str(job.path)),
        ]
    )
    if hasattr(options, "shutdown_timeout"):
        options.shutdown_timeout = SHUTDOWN_SECONDS
    try:
        run(options)  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        return error.failures
    return {}


def _loopback() -> str | None:
    """Name of the interface with the loopback address."""
    return next(
        (
            name
            for name, addresses in psutil.net_if_addrs().items()
            if any(address.address == "127.0.0.1" for address in addresses)
        ),
        None,
    )


def _print_tail(rank: int, log: Path) -> None:
    print(f"--- the end of rank {rank}'s log, {log.name}")
    print(*last_lines(log, TAIL_LINES), sep="\n")
    sys.stdout.flush()
