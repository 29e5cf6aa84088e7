"""The ranks of one of several hosts, run for the launcher on the first one.

Run as ``python -m sysbench.core.worker.ranks.agent FOLDER HOST HOSTS``, on other hosts by srun.

It reports its start and the end of its ranks on standard output. It ends, with its ranks, when its
standard input closes or the launcher's pulse stops: a killed srun leaves it running with its input
open.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from sysbench.core.machine.children import die_with, take_standard_input
from sysbench.core.record.events import EventTail, OutOfMemory, WorkerFailed
from sysbench.core.runs.worker_process import Job
from sysbench.core.worker.imports import uncollected
from sysbench.core.worker.ranks.rank import JOB, MEETING, events_name

PEER_VARIABLE = "SYSBENCH_PEER_ADDRESS"
"""Address of another host, set on the first host; on others Slurm names the first host."""
PULSE = "pulse"
"""File in the meeting's folder that the launcher changes every `PULSE_SECONDS`."""
PULSE_SECONDS = 2.0
SILENCE_SECONDS = 60.0
"""Time without a pulse that means the launcher's death. A shared file system may show a change
some seconds late."""


class Began(msgspec.Struct, frozen=True, tag=True):
    """The agent has started; later failures are not failures to start it."""


class AgentEnded(msgspec.Struct, frozen=True, tag=True):
    codes: dict[int, int]
    failures: dict[int, OutOfMemory | WorkerFailed]


def main() -> int:
    """Run this host's ranks to their end; return the exit code."""
    folder, host, hosts = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    # All output goes into the pass's log.
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    die_with(take_standard_input())
    threading.Thread(target=_die_with_pulse, args=(folder / MEETING / PULSE,), daemon=True).start()
    messages.write(msgspec.json.encode(Began()) + b"\n")
    job = msgspec.json.decode((folder / JOB).read_bytes(), type=Job)
    with uncollected():
        from sysbench.core.worker.ranks.torchrun import (  # lazy: imports torch
            RankPlace,
            environment_of,
            torchrun,
        )

    place = RankPlace(host, hosts)
    os.environ.update(environment_of(job.spec, os.environ, place, own_address()))
    codes = torchrun(job, place)
    failures: dict[int, OutOfMemory | WorkerFailed] = {}
    for rank in place.ranks(job.spec):
        for event in EventTail(folder / events_name(rank)).read():
            if isinstance(event, OutOfMemory | WorkerFailed):
                failures[rank] = event
    messages.write(msgspec.json.encode(AgentEnded(codes, failures)) + b"\n")
    return 0


def own_address() -> str:
    """Address of this host on the route to another host of the job; empty if there is none."""
    peer = os.environ.get(PEER_VARIABLE) or os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or ""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as chosen:
        chosen.connect((peer, 9))  # nothing is sent: the kernel chooses a route
        return str(chosen.getsockname()[0])
    return ""


def _die_with_pulse(path: Path) -> None:
    seen, since = b"", time.monotonic()
    while time.monotonic() - since < SILENCE_SECONDS:
        time.sleep(PULSE_SECONDS)
        with suppress(OSError):
            if (now := path.read_bytes()) != seen:
                seen, since = now, time.monotonic()
    os._exit(1)


if __name__ == "__main__":
    # Skip the interpreter's clean-up, as all workers do.
    code = main()
    sys.stderr.flush()
    os._exit(code)
