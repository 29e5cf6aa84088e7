"""Cache of inspections, each file decoded once, and the files that can be opened."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sysbench.core.errors import DamagedFileError, ForeignFileError
from sysbench.core.inspection.inspection import (
    Inspection,
    Kind,
    decode_inspection,
    format_of,
    is_other_json,
    path_text,
)
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import UNREADABLE_JSON, home, write_atomically

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

    @property
    def bundled_run(self) -> RunDirectory | None:
        """The run of a bundle; None for another file."""
        folders = sorted((self.path / "bundle").glob("*"))
        return RunDirectory(folders[0]) if folders else None

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


FILE = "opened.json"
MAX_LISTED = 500
"""Names of a folder that are looked at."""


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was inspected, with the verdict of its first finding, which may be empty.

    The texts are untrusted: escape them for display.
    """

    path: str
    kind: Kind
    bytes: int
    verdict: str = ""
    opened_ns: int = 0


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A readable file of a folder, or with the kind ``folder`` a folder in it."""

    path: Path
    kind: str
    bytes: int | None
    changed_ns: int


def remember(entry: InspectionEntry, path: Path, inspection: Inspection) -> None:
    """Note that a file was opened."""
    verdict = inspection.findings[0].verdict if inspection.findings else ""
    recent = Recent(
        path=path_text(path), kind=inspection.kind, bytes=inspection.file_bytes, verdict=verdict
    )
    with suppress(OSError):  # a full disk, or a folder of another user: only the list lacks it
        write_atomically(entry.path / FILE, msgspec.json.encode(recent))


def recent_files() -> list[Recent]:
    """Return the inspected files that still exist, the last opened first."""
    found: dict[str, Recent] = {}
    for recent in sorted(_remembered(), key=lambda recent: recent.opened_ns):
        found.pop(recent.path, None)
        found[recent.path] = recent
    return [recent for recent in reversed(found.values()) if os.path.exists(recent.path)]


def _remembered() -> Iterator[Recent]:
    for path in islice(entries_folder().glob(f"*/{FILE}"), 2 * MAX_ENTRIES):
        with suppress(OSError, *UNREADABLE_JSON):  # another process deletes entries too
            recent = msgspec.json.decode(path.read_bytes(), type=Recent)
            yield msgspec.structs.replace(recent, opened_ns=path.stat().st_mtime_ns)


def readable_files(folder: Path) -> list[Listed]:
    """Return the folders in a folder by name, then its readable files, newest first.

    The format is detected from the content. Hidden names are left out. Raises OSError.
    """
    folders, files = [], []
    with os.scandir(folder) as entries:
        for entry in islice((one for one in entries if one.name[0] != "."), MAX_LISTED):
            with suppress(OSError, ForeignFileError):
                if entry.is_dir():
                    folders.append(_listed(folder, entry, "folder"))
                elif entry.is_file() and (kind := _kind_of(folder / entry.name)):
                    files.append(_listed(folder, entry, kind))
    folders.sort(key=lambda one: one.path.name)
    files.sort(key=lambda one: one.changed_ns, reverse=True)
    return [*folders, *files]


def bundle_files(folder: Path) -> list[Path]:
    """Return the bundles that were opened here, the last one first, then those of a folder.

    Raises OSError.
    """
    opened = [Path(one.path) for one in recent_files() if one.kind == "bundle"]
    listed = [one.path for one in readable_files(folder) if one.kind == "bundle"]
    return [*dict.fromkeys(path.resolve() for path in (*opened, *listed))]


def _listed(folder: Path, entry: os.DirEntry[str], kind: str) -> Listed:
    facts = entry.stat()
    size = None if kind == "folder" else facts.st_size
    return Listed(path=folder / entry.name, kind=kind, bytes=size, changed_ns=facts.st_mtime_ns)


def _kind_of(path: Path) -> str:
    """Return the format of a file; empty for JSON without events, such as settings."""
    kind = format_of(path)
    return "" if kind == "chrome-trace" and is_other_json(path) else kind
