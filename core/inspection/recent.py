"""Files to open: those that were inspected last, and the readable ones of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from sysbench.core.errors import ForeignFileError
from sysbench.core.inspection.entries import MAX_ENTRIES, InspectionEntry, entries_folder
from sysbench.core.inspection.inspection import Inspection
from sysbench.core.inspection.kinds import Kind, format_of, is_other_json, path_text
from sysbench.core.storage import UNREADABLE_JSON, write_atomically

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

    The format is detected from the content. Hidden names are left out.

    Raises:
        OSError: The folder cannot be read.
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


def _listed(folder: Path, entry: os.DirEntry[str], kind: str) -> Listed:
    facts = entry.stat()
    size = None if kind == "folder" else facts.st_size
    return Listed(path=folder / entry.name, kind=kind, bytes=size, changed_ns=facts.st_mtime_ns)


def _kind_of(path: Path) -> str:
    """Return the format of a file; empty for JSON without events, such as settings."""
    kind = format_of(path)
    return "" if kind == "chrome-trace" and is_other_json(path) else kind
