"""The ranks of one host, run by torchrun, which meets those of the other hosts through a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import psutil
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from sysbench.core.machine.devices import shares
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.limits import OMP_VARIABLE, available_threads
from sysbench.core.worker.ranks.rank import MEETING, PARENT_VARIABLE

SHUTDOWN_SECONDS = 5
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Number of a host of the job; host 0 has rank 0."""

    host: int = 0
    hosts: int = 1

    def ranks(self, spec: RunSpec) -> range:
        counts = shares(spec.ranks, self.hosts)
        begin = sum(counts[: self.host])
        return range(begin, begin + counts[self.host])


ALONE = RankPlace()


def environment_of(
    spec: RunSpec, environ: Mapping[str, str], place: RankPlace = ALONE, address: str = "127.0.0.1"
) -> dict[str, str]:
    """Environment variables for the ranks of a host; variables set by the user are not changed.

    Args:
        address: Address of this host for the other ranks.
    """
    wanted = {
        PARENT_VARIABLE: str(os.getpid()),
        "PYTHONSAFEPATH": "1",
        # The store that torchrun shares with its workers would listen on every interface.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    if interface := _interface_with(address):
        # gloo would take the one that the host's name leads to, often the loopback. On one host
        # NCCL, too, would listen on another than that; between hosts it knows the fastest.
        names = INTERFACES if place.hosts == 1 else INTERFACES[:1]
        wanted |= {name: interface for name in names if name not in environ}
    if not spec.threads and not environ.get(OMP_VARIABLE):
        wanted[OMP_VARIABLE] = str(max(1, available_threads() // len(place.ranks(spec))))
    return wanted


def torchrun(job: Job, place: RankPlace = ALONE) -> dict[int, int]:
    """Run the ranks of this host to their end; return exit codes of failed ranks."""
    meeting = job.path / MEETING
    options = parse_args(  # type: ignore[no-untyped-call]
        [
            *("--nnodes", str(place.hosts), "--nproc-per-node", str(len(place.ranks(job.spec)))),
            *("--rdzv-backend", "c10d", "--rdzv-id", job.path.parent.name),
            *("--rdzv-endpoint", str(meeting / "torchrun")),
            # Hosts that are silent are noticed by their agents, and not by the time of day, in
            # which hosts may differ.
            *("--rdzv-conf", "store_type=file,keep_alive_max_attempt=1000000"),
            # Nothing connects to it; it only orders the hosts.
            *("--local-addr", f"127.0.0.1/{place.host:05}" if place.hosts > 1 else "127.0.0.1"),
            *("--log-dir", str(meeting / f"logs-{place.host}"), "--max-restarts", "0"),
            *("-m", "sysbench.core.worker.ranks.rank", str(job.path)),
        ]
    )
    if hasattr(options, "shutdown_timeout"):
        options.shutdown_timeout = SHUTDOWN_SECONDS
    try:
        run(options)  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    return {}


def _interface_with(address: str) -> str | None:
    return next(
        (
            name
            for name, addresses in psutil.net_if_addrs().items()
            if any(one.address == address for one in addresses)
        ),
        None,
    )
