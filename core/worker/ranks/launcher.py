"""A pass of several ranks: this worker runs torchrun and forwards the events of its ranks.

Each rank writes its events to a separate file. Those of rank 0 go on to the supervisor at once.
Of the others only failures count, and only the first failed rank is reported: its death makes all
others fail.

Inside a job of several nodes each has an agent: here a child of this worker, on the others a step
of srun.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.machine.children import python_child
from sysbench.core.machine.devices import ANSWER_SECONDS, alias, hosts_of
from sysbench.core.record.events import (
    AnyEvent,
    EventTail,
    OutOfMemory,
    ResultReported,
    StageEntered,
    WorkerFailed,
)
from sysbench.core.record.memory import RankMemory
from sysbench.core.record.record import Memory
from sysbench.core.runs.worker_process import Job, Report
from sysbench.core.storage import last_lines, write_atomically
from sysbench.core.worker.ranks.agent import PEER_VARIABLE, PULSE, PULSE_SECONDS, AgentEnded, Began
from sysbench.core.worker.ranks.rank import JOB, MEETING, events_name, log_name
from sysbench.core.worker.ranks.torchrun import (
    SHUTDOWN_SECONDS,
    RankPlace,
    environment_of,
    torchrun,
)

POLL_SECONDS = 0.1
TAIL_LINES = 40
LOST_PEER = re.compile(
    r"closed by peer|reset by peer|broken pipe|remote process exited", re.IGNORECASE
)
SRUN = (
    *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--kill-on-bad-exit=1", "--quiet"),
    *("--cpu-bind=none", "--mem=0"),  # the host's ranks share all that the job has there
)
OF_THE_JOB = re.compile(r"SLURM_(NTASKS|NPROCS|CPUS_PER_TASK|TRES_PER_TASK|GPUS_PER_TASK|MEM_PER)")
"""Variables of the job that srun would read as options of its step."""

Failure = OutOfMemory | WorkerFailed


def measure(job: Job, report: Report) -> bool:
    """Run the job on ``job.spec.ranks`` processes of this host or of all nodes of its job.

    Returns False if a rank failed, after reporting the first failure.

    Raises:
        ClusterError: The nodes are not known.
    """
    hosts = hosts_of(job.spec.ranks)
    meeting = job.path / MEETING
    shutil.rmtree(meeting, ignore_errors=True)
    meeting.mkdir()
    write_atomically(job.path / JOB, msgspec.json.encode(job))
    listener = Listener(job, report)
    listener.start()
    lost: dict[int, WorkerFailed] = {}
    try:
        if hosts:
            codes, reported, lost = Agents(job, hosts).run()
        else:
            os.environ.update(environment_of(job.spec, os.environ))
            codes, reported = torchrun(job), {}
    finally:
        listener.stop()
        shutil.rmtree(meeting, ignore_errors=True)
    if not codes and not lost:
        if len(listener.memories) > 1:
            report(ResultReported(block="memory", data=with_ranks(listener.memories)))
        return True
    for rank, failure in reported.items():
        listener.failures.setdefault(rank, failure)
    rank, failure = first_failure(codes, listener.failures, listener.stage, job.path, lost)
    _print_tail(rank, job.path / log_name(rank))
    report(failure)
    return False


class Agents:
    """Runs the agents of all hosts until the last one ends."""

    def __init__(self, job: Job, hosts: Sequence[str]) -> None:
        self._job = job
        self._hosts = hosts
        self._places = [RankPlace(host, len(hosts)) for host in range(len(hosts))]
        self._ends: queue.SimpleQueue[tuple[RankPlace, Began | AgentEnded | None, int]] = (
            queue.SimpleQueue()
        )
        self._over = threading.Event()

    def run(self) -> tuple[dict[int, int], dict[int, Failure], dict[int, WorkerFailed]]:
        """Return exit codes of failed ranks, reported failures, and lost hosts by first rank."""
        pulse = threading.Thread(target=self._pulse, daemon=True)
        pulse.start()
        running: dict[RankPlace, subprocess.Popen[bytes]] = {}
        try:
            for place in self._places:
                running[place] = self._start(place)
            return self._until_the_end(running)
        finally:
            _end(running.values())
            self._over.set()
            pulse.join()

    def _until_the_end(
        self, running: dict[RankPlace, subprocess.Popen[bytes]]
    ) -> tuple[dict[int, int], dict[int, Failure], dict[int, WorkerFailed]]:
        codes: dict[int, int] = {}
        failures: dict[int, Failure] = {}
        lost: dict[int, WorkerFailed] = {}
        deadline: float | None = None
        while running:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                place, message, code = self._ends.get(timeout=left)
            except queue.Empty:
                break  # the others had time to report, and may wait for lost peers
            del running[place]
            if isinstance(message, AgentEnded):
                codes |= message.codes
                failures |= {
                    rank: msgspec.structs.replace(failure, rank=rank)
                    for rank, failure in message.failures.items()
                }
            else:
                first = place.ranks(self._job.spec)[0]
                lost[first] = self._lost(place, code, has_begun=isinstance(message, Began))
            if deadline is None and (codes or lost):
                deadline = time.monotonic() + 2 * SHUTDOWN_SECONDS
        return codes, failures, lost

    def _lost(self, place: RankPlace, code: int, *, has_begun: bool) -> WorkerFailed:
        """Describe the failure of an agent that ended without a report."""
        which = f"host {place.host} of {place.hosts} ({alias(self._hosts[place.host])})"
        by = signal.Signals(-code).name if code < 0 else f"code {code}"
        words = f"the agent of {which} ended with {by}, and its ranks with it"
        if not has_begun:
            words = f"no agent started on {which}: its start ended with {by}; see the log"
        # srun reports signals as codes above 128.
        is_killed = has_begun and (code < 0 or code > 128)
        return WorkerFailed(
            kind="agent", message=words, traceback="", is_cuda_error=False, killed=is_killed
        )

    def _start(self, place: RankPlace) -> subprocess.Popen[bytes]:
        command = python_child(
            "sysbench.core.worker.ranks.agent", self._job.folder, str(place.host), str(place.hosts)
        )
        environment = dict(os.environ)
        if place.host:
            command = [*SRUN, f"--nodelist={self._hosts[place.host]}", *command]
            environment = {
                name: value for name, value in environment.items() if not OF_THE_JOB.match(name)
            }
        else:
            environment[PEER_VARIABLE] = _address_of(self._hosts[1])
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        threading.Thread(target=self._hear, args=(place, process), daemon=True).start()
        return process

    def _hear(self, place: RankPlace, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        message: Began | AgentEnded | None = None
        for line in process.stdout:
            with suppress(msgspec.MsgspecError):
                message = msgspec.json.decode(line, type=Began | AgentEnded)
        self._ends.put((place, message, process.wait()))

    def _pulse(self) -> None:
        path, count = self._job.path / MEETING / PULSE, 0
        while not self._over.is_set():
            count += 1
            with suppress(OSError):
                path.write_text(str(count))
            self._over.wait(PULSE_SECONDS)


def _end(processes: Collection[subprocess.Popen[bytes]]) -> None:
    """End agents and their ranks by closing their input; killing srun would not end the ranks."""
    for process in processes:
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
    for process in processes:
        try:
            process.wait(SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _address_of(node: str) -> str:
    """Address at which Slurm reaches a node; empty if it does not report one."""
    command = ("scontrol", "--oneliner", "show", "node", node)
    with suppress(OSError, subprocess.SubprocessError):
        output = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=ANSWER_SECONDS
        ).stdout
        if match := re.search(r"\bNodeAddr=(\S+)", output):
            return socket.gethostbyname(match[1])
    return ""


class Listener(threading.Thread):
    """Thread that forwards the events of rank 0 and collects failures of all ranks.

    Attributes:
        failures: Reported failure by rank.
        memories: Memory block by rank.
        stage: Stage of rank 0, with which the others keep step.
    """

    def __init__(self, job: Job, report: Report) -> None:
        super().__init__(daemon=True)
        self.failures: dict[int, Failure] = {}
        self.memories: dict[int, dict[str, Any]] = {}
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
        """Wait until every event of the ranks has been read."""
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
                return
            case ResultReported(block="memory"):
                self.memories[rank] = event.data
            case StageEntered() if rank == 0:
                self.stage = event.stage
        if rank == 0:
            self._report(event)


def with_ranks(blocks: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """The memory block of rank 0 with the peak of each rank."""
    memories = {rank: msgspec.convert(blocks[rank], Memory) for rank in sorted(blocks)}
    rows = [
        RankMemory(
            rank=rank,
            peak_bytes=memory.peak_allocated_bytes,
            peak_phase=memory.peak_phase,
            reserved_bytes=memory.peak_reserved_bytes,
            ledger=memory.ledger,
            predicted_peak_bytes=memory.compared_bytes,
            predicted_reserved_bytes=memory.predicted_reserved_bytes,
            missing={
                name: why for name, why in memory.missing.items() if name.startswith("predicted")
            },
        )
        for rank, memory in memories.items()
    ]
    data: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(memories[0], ranks=rows))
    return data


def first_failure(
    ended: Mapping[int, int],
    reported: Mapping[int, Failure],
    stage: str,
    folder: Path,
    lost: Mapping[int, WorkerFailed] = {},
) -> tuple[int, Failure]:
    """The rank that caused the other ranks' failures, and its failure.

    Args:
        ended: Exit codes of failed ranks; torchrun ends others with SIGTERM.
        stage: Stage that the ranks had reached.
        folder: Folder of their logs.
        lost: Failures of hosts without a report, by first rank.
    """
    in_order = sorted(reported, key=lambda rank: reported[rank].t_ns)
    # Most informative first: an error other than a lost peer, a death by a signal that torchrun did
    # not send, a lost host, any silent end, and last the earliest of the lost peers.
    causes = [rank for rank in in_order if not LOST_PEER.search(reported[rank].message)]
    silent = [rank for rank in sorted(ended) if rank not in reported]
    killed = [rank for rank in silent if ended[rank] != -signal.SIGTERM]
    if causes:
        return causes[0], reported[causes[0]]
    if lost and not killed:
        rank = min(lost)
        return rank, msgspec.structs.replace(lost[rank], rank=rank)
    rank = [*killed, *silent, *in_order][0]
    if rank in reported:
        return rank, reported[rank]
    code = ended[rank]
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


def _print_tail(rank: int, log: Path) -> None:
    print(f"--- the end of rank {rank}'s log, {log.name}")
    print(*last_lines(log, TAIL_LINES), sep="\n")
    sys.stdout.flush()
