"""Limits of this process by the kernel's control groups: containers, Slurm, systemd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def memory_limit_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """The least memory limit over this process's groups; None without one."""
    limits = [
        int(text)
        for folder in _folders("memory", root, membership)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _read(folder / name)).isdigit()
    ]
    return min(limits, default=None)


def cpu_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """The least processor time over this process's groups, in processors; None without a cap."""
    quotas = []
    for folder in _folders("cpu", root, membership):
        version_2 = _read(folder / "cpu.max").split()
        version_1 = [_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        for pair in (version_2, version_1):
            # "max" and -1 mean no cap.
            if len(pair) == 2 and all(text.isdigit() for text in pair):
                quotas.append(int(pair[0]) / int(pair[1]))
    return min(quotas, default=None)


def _folders(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """Folders of this process's groups and of all above them, of both versions.

    A line of the membership file is ``number:controllers:path``; version 2 leaves the
    controllers empty, version 1 keeps each under its own folder.
    """
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top = root
        elif controller in controllers.split(","):
            top = root / controller
        else:
            continue
        folder = top / path.lstrip("/")
        yield folder
        yield from (above for above in folder.parents if above.is_relative_to(top))


def _read(path: Path) -> str:
    """The text of a small kernel file; empty when it is not there."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
