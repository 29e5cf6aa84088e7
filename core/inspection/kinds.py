"""Detect the format from the first bytes: names are not reliable."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
import stat
import zlib
from pathlib import Path
from typing import Literal

from sysbench.core.errors import ForeignFileError
from sysbench.core.trace.protobuf_scan import is_perfetto
from sysbench.core.trace.trace_json import EVENTS_KEY, unpacked

Format = Literal["chrome-trace", "perfetto-trace", "memory-snapshot", "nsys-export"]
Kind = Format | Literal["profiled-allocations"]
"""``profiled-allocations`` is a chrome trace with allocations; its head does not show that."""

GZIP, PICKLE, SQLITE, ZIP = b"\x1f\x8b", b"\x80", b"SQLite format 3\x00", b"PK"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
HEAD_BYTES = 2**16
ROCPROF = b'"rocprofiler-sdk-tool"'
PROGRAMS = (
    ("JAX or another program of XLA", (b'"/device:', b'"/host:', b'"TSL:', b"xla_modules")),
    ("rocprof", (b" HIP API", b"CPU HIP", b" HSA API", b"hcc_ops")),
    ("the profiler of torch before 1.8.1", (b'"CPU functions"', b'"CUDA functions"')),
    ("the browser", (b'"v8', b"disabled-by-default-", b'"blink')),
)
"""Words at the start of chrome traces without torch.profiler events."""
REPORT_ENDINGS = (".nsys-rep", ".qdrep")

ARTIFACTS = ("*.json.gz", "*.pickle", "*.sqlite")
"""Artifacts of a run that can be inspected."""
OWN = ("run.json", "record.json", "events.jsonl", "kernels.json", "notes.json", "nsys.json")
"""JSON files of a run that are no chrome traces."""

READABLE = (
    "a chrome trace (.json, .json.gz), a Perfetto trace (.pftrace), a memory snapshot (pickle) or "
    "an nsys SQLite export"
)


def path_text(path: Path | str) -> str:
    """Return a path as text for JSON: names on disk are bytes."""
    return str(path).encode("utf-8", "backslashreplace").decode()


JSON_OBJECTS = re.compile(rb"\s*(\{|\[\s*(\{|\]|$))")
"""An object, or a list of objects, and not a section of a TOML file."""


def format_of(path: Path) -> Format:
    """Return the format of a file.

    Raises:
        ForeignFileError: It does not exist, cannot be read, or has none of the formats.
    """
    head = _head(path)
    if head.startswith(SQLITE):
        return "nsys-export"
    if head.startswith(PICKLE):
        return "memory-snapshot"
    packed = head.startswith(GZIP)
    text = _unpack_head(path) if packed else head
    if packed and text.startswith(PICKLE):
        return "memory-snapshot"
    if is_perfetto(text):
        return "perfetto-trace"
    if packed and text.startswith(SQLITE):
        raise ForeignFileError(f"{path} is packed; unpack it (gunzip -k) and inspect that")
    if path.name in OWN and (run := _containing_run(path)):
        raise ForeignFileError(f"{path} is a file of a run, {_show_advice(run)}")
    if ROCPROF in text:
        raise ForeignFileError(
            f"{path} is a result of rocprofv3, which is not read: what is read is {READABLE}"
        )
    if JSON_OBJECTS.match(text.removeprefix(BYTE_ORDER_MARK)):
        return "chrome-trace"
    if head and path.name.endswith(REPORT_ENDINGS):
        words = ("nsys", "export", "--type", "sqlite", "-o", path.with_suffix(".sqlite"), path)
        where = "" if shutil.which("nsys") else " where there is an nsys (here is none)"
        raise ForeignFileError(
            f"{path} is a report that only nsys reads; export it{where}, and inspect the export:\n"
            f"  {shlex.join(map(str, words))}"
        )
    raise ForeignFileError(f"{path} is {_guess(head)}, not {READABLE}")


def is_other_json(path: Path) -> bool:
    """Return whether a complete JSON object has no events, as a settings file."""
    try:
        with path.open("rb") as file:
            text = unpacked(file).read(HEAD_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        return False  # its decoder reports why
    is_object = text.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"{")
    return is_object and len(text) <= HEAD_BYTES and not EVENTS_KEY.search(text)


def program_of(path: Path) -> str | None:
    """Return the program that wrote a chrome trace without torch.profiler events, if known."""
    text = _head(path)
    text = _unpack_head(path) if text.startswith(GZIP) else text
    return next((program for program, words in PROGRAMS if any(w in text for w in words)), None)


def _head(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            run = _containing_run(path / "any file")
            ranks = shlex.join(("sysbench-tui", "inspect", str(path)))
            what = (
                f"a folder of a run, {_show_advice(run)}"
                if run
                else f"a folder; name a file in it, or see it as the ranks of a job:\n  {ranks}"
            )
            raise ForeignFileError(f"{path} is {what}")
        if not stat.S_ISREG(mode):
            raise ForeignFileError(f"{path} is not a regular file; save it to one first")
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ForeignFileError(f"{path} cannot be read: {reason}") from error


def _containing_run(path: Path) -> Path | None:
    """Return the folder of the run or pass that contains the file."""
    folders = path.absolute().parents[:2]
    return next((folder for folder in folders if (folder / "run.json").is_file()), None)


def _show_advice(run: Path) -> str:
    """Return the command that shows a run, and its files for inspection."""
    files = sorted(file for pattern in ARTIFACTS for file in run.glob(f"*/{pattern}"))
    names = ", ".join(str(file.relative_to(run)) for file in files)
    text = f"which is shown by:\n  {shlex.join(('sysbench-tui', 'show', str(run)))}"
    return f"{text}\nand of which can be inspected: {names}" if names else text


def _unpack_head(path: Path) -> bytes:
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
