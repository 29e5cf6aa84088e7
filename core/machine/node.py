"""The node of a cluster that this process runs on: its name in records, and the locks there.

Nodes share one home, so a lock of ``cpu`` would have them wait for each other.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..storage import home, make_folder


def node_name(environ: Mapping[str, str] = os.environ) -> str | None:
    """Slurm's name of the node, inside a job; None elsewhere."""
    name = environ.get("SLURMD_NODENAME") if "SLURM_JOB_ID" in environ else None
    return name if name and _NAME.fullmatch(name) else None


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def describe_node(environ: Mapping[str, str] = os.environ) -> dict[str, dict[str, str]]:
    """Facts on the node for a record's environment; empty outside a job.

    Records get published, so ``node`` is no host name: it is six random digits that this home
    keeps for the node in ``nodes/NAME``. ``gpus`` are the numbers of the job's GPUs on the node.
    """
    name = node_name(environ)
    if name is None:
        return {}
    gpus = _gpus(environ)
    return {"cluster": {"node": _alias(name)} | ({"gpus": ",".join(gpus)} if gpus else {})}


def device_lock(device: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The lock that is held while a run measures on a device.

    Inside a job it is one of the node's, and of the GPU by its number there: every job calls its
    first GPU ``cuda:0``.
    """
    folder, name = home() / "locks", node_name(environ)
    kind, _, number = device.partition(":")
    if name is not None:
        folder /= name
        gpus = _gpus(environ)
        if kind == "cuda" and number.isdecimal() and int(number) < len(gpus):
            number = gpus[int(number)]
    return folder / f"{kind}{'-' if number else ''}{number}.lock"


def _gpus(environ: Mapping[str, str]) -> list[str]:
    """Numbers of the job's GPUs, counted over the node; empty where Slurm names none."""
    text = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or ""
    gpus = [part for part in text.split(",") if part]
    return gpus if all(gpu.isdecimal() for gpu in gpus) else []


def _alias(name: str) -> str:
    """The digits that stand for a node, drawn by the first job there.

    They are the target of a link that leads nowhere: a link is made whole or not at all, however
    many jobs of a node begin at once.
    """
    path = home() / "nodes" / name
    make_folder(path.parent)
    with suppress(FileExistsError):
        path.symlink_to(secrets.token_hex(3))
    return os.readlink(path)
