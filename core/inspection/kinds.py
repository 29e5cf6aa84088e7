"""What a file is, by what it begins with: names of foreign files tell nothing."""

from __future__ import annotations

import gzip
import shlex
import stat
import zlib
from pathlib import Path
from typing import Literal

from ..errors import ForeignFileError

Format = Literal["chrome-trace", "memory-snapshot", "nsys-export"]
Kind = Format | Literal["profiled-allocations"]
"""Of a chrome trace only its end tells whether there are allocations in it."""

GZIP, PICKLE, SQLITE, ZIP = b"\x1f\x8b", b"\x80", b"SQLite format 3\x00", b"PK"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
HEAD_BYTES = 4096
REPORT_ENDINGS = (".nsys-rep", ".qdrep")

READABLE = "a chrome trace (.json, .json.gz), a memory snapshot (pickle) or an nsys SQLite export"


def format_of(path: Path) -> Format:
    """The format of a file.

    Raises:
        ForeignFileError: There is no such file, it cannot be read, or it is in none of the formats.
    """
    head = _head(path)
    if head.startswith(SQLITE):
        return "nsys-export"
    if head.startswith(PICKLE):
        return "memory-snapshot"
    packed = head.startswith(GZIP)
    text = _unpacked(path) if packed else head
    if packed and text.startswith((PICKLE, SQLITE)):
        raise ForeignFileError(f"{path} is packed; unpack it (gunzip -k) and inspect that")
    if text.removeprefix(BYTE_ORDER_MARK).lstrip().startswith((b"{", b"[")):
        return "chrome-trace"
    if path.name.endswith(REPORT_ENDINGS):
        words = ("nsys", "export", "--type", "sqlite", "-o", path.with_suffix(".sqlite"), path)
        raise ForeignFileError(
            f"{path} is a report that only nsys reads; export it, and inspect the export:\n"
            f"  {shlex.join(map(str, words))}"
        )
    raise ForeignFileError(f"{path} is {_guess(head)}, not {READABLE}")


def _head(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            what = "the folder of a run: see `sysbench-tui show`" if _is_run(path) else "a folder"
            raise ForeignFileError(f"{path} is {what}; name a file in it")
        if not stat.S_ISREG(mode):
            raise ForeignFileError(f"{path} is not a regular file; save it to one first")
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ForeignFileError(f"{path} cannot be read: {reason}") from error


def _is_run(path: Path) -> bool:
    return (path / "run.json").is_file()


def _unpacked(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return file.read(HEAD_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise ForeignFileError(f"{path} is not whole gzip data: {error}") from error


def _guess(head: bytes) -> str:
    if not head:
        return "empty"
    if head.startswith(ZIP):
        return "a zip, as torch.save writes weights"
    return "of an unknown kind"
