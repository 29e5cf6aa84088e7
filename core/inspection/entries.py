"""Cache of inspections: each file is decoded once."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.core.errors import DamagedFileError
from sysbench.core.inspection.inspection import Inspection, decode_inspection
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import home

if TYPE_CHECKING:
    from sysbench.core.trace.rank_summary import RankTrace

MAX_ENTRIES = 32
"""Number of newest entries to keep."""
MAX_KEPT_BYTES = 2**31
"""Size limit of all entries but the newest, mostly for rank summaries."""

CORE = Path(__file__).parents[1]
SOURCES = (
    "record/*.py",
    "trace/*.py",
    "memory/*.py",
    "ranks/*.py",
    "compare/*.py",
    "findings/*.py",
    "inspection/*.py",
)
"""Sources that decide the tables; a change in them makes entries stale."""


class InspectionEntry:
    """The tables of one file, in a folder laid out like a run's.

    ``inspection.json`` tables, written last · ``trace/kernels.json`` kernels by layer ·
    ``trace/lanes.msgpack`` timeline · ``rank.msgpack`` input of a comparison of ranks ·
    ``log.txt``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def inspection_path(self) -> Path:
        """Exists once the entry is complete."""
        return self.path / "inspection.json"

    @property
    def layers_path(self) -> Path:
        """Kernels by layer; absent if the file has none."""
        return self.as_run.pass_folder("trace") / "kernels.json"

    @property
    def lanes_path(self) -> Path:
        """Timeline; absent if the file has no times."""
        return self.as_run.pass_folder("trace") / "lanes.msgpack"

    @property
    def rank_path(self) -> Path:
        """Input of a comparison of ranks; absent if the file has no collectives."""
        return self.path / "rank.msgpack"

    @property
    def log_path(self) -> Path:
        return self.path / "log.txt"

    @property
    def as_run(self) -> RunDirectory:
        return RunDirectory(self.path)

    def read(self) -> Inspection | None:
        try:
            return decode_inspection(self.inspection_path.read_bytes(), self.inspection_path)
        except (OSError, DamagedFileError):
            return None

    def read_rank(self) -> RankTrace | None:
        from sysbench.core.trace.rank_summary import decode_rank  # lazy: numpy

        try:
            return decode_rank(self.rank_path.read_bytes(), self.rank_path)
        except (OSError, DamagedFileError):
            return None


def inspection_entry(
    path: Path,
    device: int | None = None,
    steps: tuple[int, int] | None = None,
    capture: Path | None = None,
) -> InspectionEntry:
    """Return the entry of a file, also if it is empty.

    The key covers path, size, times, device, steps and capture. The change time is included
    because a copy may keep the modification time.
    """
    joined = _stamps(capture) if capture else ()
    parts = [*_stamps(path), device, steps, *joined, _version()]
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
    return InspectionEntry(entries_folder() / key)


def _stamps(path: Path) -> tuple[bytes | int, ...]:
    facts = path.stat()
    name = os.fsencode(path.resolve())
    return (name, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)


def entries_folder() -> Path:
    return home() / "inspections"


def forget_oldest() -> None:
    """Delete old entries above `MAX_ENTRIES` and, but for the newest, `MAX_KEPT_BYTES`."""
    held_bytes = 0
    for place, (_, path) in enumerate(sorted(_entries_by_age(), reverse=True)):
        held_bytes += _folder_bytes(path)
        if place and (place >= MAX_ENTRIES or held_bytes > MAX_KEPT_BYTES):
            shutil.rmtree(path, ignore_errors=True)


def _folder_bytes(folder: Path) -> int:
    total = 0
    with suppress(FileNotFoundError):  # another process deletes entries too
        for path in folder.rglob("*"):
            total += path.lstat().st_size if path.is_file() else 0
    return total


def _entries_by_age() -> Iterator[tuple[int, Path]]:
    for path in entries_folder().iterdir():
        with suppress(FileNotFoundError):  # another process deletes entries too
            yield path.stat().st_mtime_ns, path


@cache
def _version() -> str:
    files = sorted(file for pattern in SOURCES for file in CORE.glob(pattern))
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()
