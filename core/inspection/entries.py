"""Cache of inspections: a file is decoded once."""

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

KEPT = 32
"""Count of newest entries that are kept."""
MOST_KEPT_BYTES = 2**31
"""Of all that are kept, the newest aside: what the summaries of a folder's ranks may take."""

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
"""Sources that decide the tables of a file; a change in them makes its entry stale."""


class InspectionEntry:
    """The tables of one file, in a folder laid out like a run's.

    ``inspection.json`` the tables, written last · ``trace/kernels.json`` the kernels layer
    by layer, as a trace pass leaves them · ``rank.msgpack`` what a comparison of ranks takes of a
    trace with collectives · ``log.txt``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def inspection_path(self) -> Path:
        """Its presence means that the entry is whole."""
        return self.path / "inspection.json"

    @property
    def layers_path(self) -> Path:
        """A row for every layer; absent where the file has no kernels."""
        return self.as_run.pass_folder("trace") / "kernels.json"

    @property
    def rank_path(self) -> Path:
        """The file as one rank of several; absent where it cannot be compared with others."""
        return self.path / "rank.msgpack"

    @property
    def log_path(self) -> Path:
        """Standard error of the decoding process."""
        return self.path / "log.txt"

    @property
    def as_run(self) -> RunDirectory:
        """The folder in the type that readers of a run's artifacts take."""
        return RunDirectory(self.path)

    def read(self) -> Inspection | None:
        """The inspection, or None if there is none that can be read."""
        try:
            return decode_inspection(self.inspection_path.read_bytes(), self.inspection_path)
        except (OSError, DamagedFileError):
            return None

    def read_rank(self) -> RankTrace | None:
        """The file as one rank of several, or None if there is none that can be read."""
        from sysbench.core.trace.rank_summary import (
            decode_rank,  # numpy, for which files alone do not ask
        )

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
    """The entry of a file, whether its inspection was made or not.

    Another file, size or time of change is another entry, and so are chosen devices and steps and
    another capture. Of the two times the later can only be set by the system: a copy may keep the
    other.

    Raises:
        OSError: There is no such file.
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
    """The folder of all entries."""
    return home() / "inspections"


def forget_oldest() -> None:
    """Delete all but the `KEPT` newest entries, and of these the older ones from where all together
    take more than `MOST_KEPT_BYTES`; the newest stays, whatever it takes."""
    held_bytes = 0
    for place, (_, path) in enumerate(sorted(_aged(), reverse=True)):
        held_bytes += _bytes_of(path)
        if place and (place >= KEPT or held_bytes > MOST_KEPT_BYTES):
            shutil.rmtree(path, ignore_errors=True)


def _bytes_of(folder: Path) -> int:
    total = 0
    with suppress(FileNotFoundError):  # another process deletes entries too
        for path in folder.rglob("*"):
            total += path.lstat().st_size if path.is_file() else 0
    return total


def _aged() -> Iterator[tuple[int, Path]]:
    for path in entries_folder().iterdir():
        with suppress(FileNotFoundError):  # another process deletes entries too
            yield path.stat().st_mtime_ns, path


@cache
def _version() -> str:
    files = sorted(file for pattern in SOURCES for file in CORE.glob(pattern))
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()
