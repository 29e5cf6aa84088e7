"""All checks of ``doctor``: the state of the machine, and the cost of each missing part."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil

from sysbench.core.formatting import format_bytes
from sysbench.core.machine import doctor_gpu, doctor_tools
from sysbench.core.machine.devices import torch_facts
from sysbench.core.machine.doctor_check import Check, row
from sysbench.core.machine.host_sampler import memory_capacity_bytes
from sysbench.core.machine.read_environment import is_wsl
from sysbench.core.storage import home

LITTLE_DISK_BYTES = 2 * 2**30
LITTLE_MEMORY_BYTES = 2 * 2**30
"""Torch takes 0.2 to 0.6 GiB of this in a worker before it builds a model."""


def examine() -> list[Check]:
    """Run all checks, the most important first. They change nothing and do not import torch."""
    devices = doctor_gpu.survey()
    nsys = doctor_tools.nsys_version()
    python = doctor_tools.check_python()
    # The other checks need an interpreter that can run workers.
    is_usable = python is None or python.status == "ok"
    checks = [
        *doctor_gpu.checks(devices),
        *([python] if python else []),
        *([doctor_tools.check_torch(torch_facts(), devices)] if is_usable else []),
        doctor_tools.check_nsys(nsys),
        *([doctor_tools.check_nvtx(nsys)] if is_usable else []),
        doctor_tools.check_compiler(os.environ),
        _memory(),
        _load(),
        check_terminal(os.environ, _terminal_size()),
        check_home(home()),
    ]
    return [*checks, row("WSL", "Linux under Windows", "WSL")] if is_wsl() else checks


def _memory() -> Check:
    capacity = memory_capacity_bytes()
    free = min(psutil.virtual_memory().available, capacity)
    text = f"{format_bytes(free)} free of {format_bytes(capacity)}"
    return row("host memory", text, "" if free >= LITTLE_MEMORY_BYTES else "little memory")


def _load() -> Check:
    load, threads = os.getloadavg()[0], len(os.sched_getaffinity(0))
    text = f"{load:.1f} over the last minute, {threads} processors available"
    return row("load", text, "" if load < threads / 2 else "busy")


def _terminal_size() -> tuple[int, int] | None:
    try:
        return os.get_terminal_size(1)
    except OSError:
        return None


def check_terminal(environ: Mapping[str, str], size: tuple[int, int] | None) -> Check:
    """Check whether the terminal can show the screens, and how well."""
    term = environ.get("TERM", "")
    locale = next((environ[k] for k in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(k)), "")
    is_utf8 = "utf8" in locale.lower().replace("-", "")
    has_colours = environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    signs = [
        term or "TERM is not set",
        f"{size[0]}×{size[1]}" if size else "no terminal on standard output",
        "24-bit colour" if has_colours else "",
        "UTF-8" if is_utf8 else f"locale {locale or 'not set'}",
        "NO_COLOR" if environ.get("NO_COLOR") else "",
        "tmux" if environ.get("TMUX") else "",
        "over SSH" if environ.get("SSH_CONNECTION") else "",
    ]
    troubles = []
    if size is None or term in ("", "dumb"):
        troubles.append(("the screens do not work, all commands do", "run it in a terminal"))
    if size and (size[0] < 80 or size[1] < 24):
        troubles.append(("screens are cut off below 80×24", "enlarge the terminal"))
    if not is_utf8:
        troubles.append(("plots use plain ASCII", "set LANG=C.UTF-8"))
    if not has_colours and not environ.get("NO_COLOR"):
        if environ.get("TMUX"):
            troubles.append(
                ("tmux supports 256 colours only", "set COLORTERM=truecolor inside tmux")
            )
        elif environ.get("SSH_CONNECTION"):
            remedy = "SendEnv COLORTERM in ~/.ssh/config, AcceptEnv COLORTERM on this machine"
            troubles.append(("256 colours or fewer: COLORTERM was not forwarded", remedy))
    return Check(
        name="terminal",
        status="warning" if troubles else "ok",
        found=", ".join(filter(None, signs)),
        costs="; ".join(cost for cost, _ in troubles),
        remedy="; ".join(remedy for _, remedy in troubles),
    )


def check_home(path: Path) -> Check:
    """Check that runs can be stored: a writable folder, and free space on its disk."""
    nearest = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return row("home", f"{path} cannot be written", "home not writable")
    free = shutil.disk_usage(nearest).free
    text = f"{path}, {format_bytes(free)} free"
    return row("home", text, "" if free >= LITTLE_DISK_BYTES else "little disk")
