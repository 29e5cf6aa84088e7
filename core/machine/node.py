"""Nodes of a cluster: their names in records, the ranks and the locks there.

Nodes share one data folder, so a single lock for ``cpu`` would make them wait for each other.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from sysbench.core.errors import ClusterError
from sysbench.core.storage import home, locked, make_folder

ANSWER_SECONDS = 60.0


def node_name(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return Slurm's name of the node inside a job, else None."""
    name = environ.get("SLURMD_NODENAME") if "SLURM_JOB_ID" in environ else None
    return name if name and _NAME.fullmatch(name) else None


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def hosts_of(ranks: int, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the nodes of the ranks, this one first; empty if all ranks are here.

    They are those of Slurm's job, or of the step of this process, at most one per rank.

    Raises:
        ClusterError: This process is on none of them, or Slurm does not name them.
    """
    count = environ.get("SLURM_NNODES", "")
    if ranks == 1 or "SLURM_JOB_ID" not in environ or not count.isdecimal() or int(count) < 2:
        return ()
    lists = (environ.get(name, "") for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    expanded = (_expand(nodes) for nodes in lists if nodes)
    names = next((nodes for nodes in expanded if len(nodes) == int(count)), ())
    this_node = node_name(environ)
    if this_node not in names:
        raise ClusterError(
            f"a job of {count} nodes, and this process is on none of them: start it there, by "
            "sbatch, or by `srun --overlap --nodes=1 --ntasks=1 --preserve-env`; without "
            "--preserve-env its ranks stay on one node"
        )
    return (this_node, *(name for name in names if name != this_node))[:ranks]


@lru_cache(maxsize=8)
def _expand(nodes: str) -> tuple[str, ...]:
    """Expand ``n[1-2,5]`` to ``n1``, ``n2`` and ``n5``."""
    command = ("scontrol", "show", "hostnames", nodes)
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=ANSWER_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ClusterError(f"the nodes of this job are not known: {error}") from error
    return tuple(name for name in answer.stdout.split() if _NAME.fullmatch(name))


def shares(ranks: int, hosts: int) -> list[int]:
    """Distribute ranks over hosts evenly, the first ones one more."""
    hosts = max(1, hosts)
    return [ranks // hosts + (host < ranks % hosts) for host in range(hosts)]


def describe_node(
    environ: Mapping[str, str] = os.environ, ranks: int = 1
) -> dict[str, dict[str, str]]:
    """Return facts on the nodes for a record's environment; empty outside a job.

    Records get published, so ``node`` is not the host name but the digits of `alias`. ``nodes`` are
    those of all nodes of the ranks. ``gpus`` are the numbers of the job's GPUs on this node.

    Raises:
        ClusterError: As `hosts_of`.
    """
    name = node_name(environ)
    if name is None:
        return {}
    gpus, hosts = _gpus(environ), hosts_of(ranks, environ)
    return {
        "cluster": {"node": alias(name)}
        | ({"nodes": ",".join(map(alias, hosts))} if hosts else {})
        | ({"gpus": ",".join(gpus)} if gpus else {})
    }


def device_lock(
    device: str, environ: Mapping[str, str] = os.environ, *, node: str | None = None
) -> Path:
    """Return the lock that a run holds while it measures on a device.

    Inside a job the lock depends on the node and the GPU's number there: every job calls its first
    GPU ``cuda:0``.

    Args:
        node: Another node of the job (default: this one). Slurm reports only the GPU numbers of
            this node, so they are used for the other one too.
    """
    folder, name = home() / "locks", node or node_name(environ)
    kind, _, number = device.partition(":")
    if name is not None:
        folder /= name
        gpus = _gpus(environ)
        if kind == "cuda" and number.isdecimal() and int(number) < len(gpus):
            number = gpus[int(number)]
    return folder / f"{kind}{'-' if number else ''}{number}.lock"


def rank_locks(devices: Sequence[str], ranks: int) -> dict[Path, str]:
    """Return the locks of the devices of the ranks, on all nodes, and the devices' names.

    Raises:
        ClusterError: As `hosts_of`.
    """
    hosts = hosts_of(ranks)
    return {
        device_lock(device, node=host): f"{device} of {host}" if hosts else device
        for host, share in zip(hosts or (None,), shares(ranks, len(hosts)), strict=True)
        for device in devices[:share]
    }


def locked_devices(devices: Sequence[str]) -> AbstractContextManager[None]:
    """Exclude other runs from these devices inside ``with``."""
    return hold_locks({device_lock(device): device for device in devices})


@contextmanager
def hold_locks(locks: Mapping[Path, str]) -> Iterator[None]:
    """Hold all these locks, or raise DeviceBusyError with the name of the one that is held."""
    with ExitStack() as stack:
        # Every run locks in the same order, so that no two wait for each other.
        for path, device in sorted(locks.items()):
            stack.enter_context(locked(path, who=device))
        yield


def _gpus(environ: Mapping[str, str]) -> list[str]:
    text = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or ""
    gpus = [part for part in text.split(",") if part]
    return gpus if all(gpu.isdecimal() for gpu in gpus) else []


def alias(name: str) -> str:
    """Return the six random digits that replace a node's name, drawn by the first job there.

    They are the target of a dangling link, because creating a link is atomic even if several jobs
    of a node start at once.
    """
    path = home() / "nodes" / name
    make_folder(path.parent)
    with suppress(FileExistsError):
        path.symlink_to(secrets.token_hex(3))
    return os.readlink(path)
