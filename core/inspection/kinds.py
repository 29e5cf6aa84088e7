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
ROCPD = b"rocpd_"
"""Prefix of the tables of a rocpd database, in its schema at the start of the file."""
UTF_16 = re.compile(rb"\xff\xfe|\xfe\xff|[\[{]\x00|\x00[\[{]")
OTHER_TEXTS = (
    (b'"rocprofiler-sdk-tool"', "a result of rocprofv3, which is not read"),
    (b"speedscope.app/file-format", "a speedscope profile, which is not read"),
    (b"version https://git-lfs.github.com/spec", "a pointer of git-lfs; run `git lfs pull` first"),
    (b"<!DOCTYPE html", "a page of HTML; download the file itself"),
)
"""Words in the first lines of other text files."""
XPLANE = b"\n"
"""First byte of an XPlane: its field ``planes``, each of them with a name such as /device:GPU:0."""
OTHER_FORMATS = (
    (b"NVR\x00", "a report of Nsight Compute, which is not read"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd; unpack it (zstd -d)"),
    (b"\xfd7zXZ\x00", "packed with xz; unpack it (xz -dk)"),
    (b"BZh", "packed with bzip2; unpack it (bzip2 -dk)"),
    (b"7z\xbc\xaf", "a 7z archive; unpack it"),
    (b"\x93NUMPY", "an array of NumPy"),
    (b"\x89HDF", "an HDF5 file"),
)
"""First bytes of other formats."""
OTHER_ENDINGS = (
    (".ncu-rep", "a report of Nsight Compute, which is not read"),
    (".xplane.pb", "an XPlane protobuf of XLA or TensorFlow, which is not read"),
)
PROGRAMS = (
    ("VizTracer", (b'"FEE"', b"viztracer")),
    ("JAX or another program of XLA", (b'"/device:', b'"/host:', b'"TSL:', b"xla_modules")),
    ("rocprof", (b" HIP API", b"CPU HIP", b" HSA API", b"hcc_ops")),
    ("the profiler of torch before 1.8.1", (b'"CPU functions"', b'"CUDA functions"')),
    ("the browser", (b'"v8', b"disabled-by-default-", b'"blink')),
)
"""Words at the start of chrome traces without torch.profiler events."""
REPORT_ENDINGS = (".nsys-rep", ".qdrep")

ARTIFACTS = ("*.json.gz", "*.pickle", "*.sqlite")
"""Artifacts of a run that can be inspected."""
OWN = re.compile(
    rb'\{\s*"(event":\s*"RunStarted"|id":\s*"[^"]*",\s*"created_ns"|schema":\s*\d+,\s*"id"'
    rb'|source":\s*"(kernels|operators)",\s*"steps"|phases":\s*\[\[)'
)
"""First keys of a run's JSON files that are no chrome traces."""

READABLE = (
    "a chrome trace (.json, .json.gz), a Perfetto trace (.pftrace), a memory snapshot (pickle) or "
    "an nsys SQLite export"
)
INSTEAD = f"what is read is {READABLE}"
TEXT_HEAD_BYTES = 4096


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
    if head.startswith(SQLITE) and ROCPD not in head:
        return "nsys-export"
    if head.startswith(PICKLE):
        return "memory-snapshot"
    packed = head.startswith(GZIP)
    text = _unpack_head(path) if packed else head
    if text.startswith(SQLITE) and ROCPD in text:
        raise ForeignFileError(f"{path} is a rocpd database of ROCm, which is not read: {INSTEAD}")
    if packed and text.startswith(PICKLE):
        return "memory-snapshot"
    if is_perfetto(text):
        return "perfetto-trace"
    if packed and text.startswith(SQLITE):
        raise ForeignFileError(f"{path} is packed; unpack it (gunzip -k) and inspect that")
    if OWN.match(text):
        run = _containing_run(path)
        raise ForeignFileError(
            f"{path} is a file of a run, "
            f"{_show_advice(run) if run else 'whose folder `sysbench-tui show` shows'}"
        )
    for known, what in OTHER_TEXTS:
        if known in text[:TEXT_HEAD_BYTES]:
            raise ForeignFileError(f"{path} is {what}: {INSTEAD}")
    if not UTF_16.match(text) and JSON_OBJECTS.match(text.removeprefix(BYTE_ORDER_MARK)):
        return "chrome-trace"
    if head and path.name.endswith(REPORT_ENDINGS):
        words = ("nsys", "export", "--type", "sqlite", "-o", path.with_suffix(".sqlite"), path)
        where = "" if shutil.which("nsys") else " where there is an nsys (here is none)"
        raise ForeignFileError(
            f"{path} is a report that only nsys reads; export it{where}, and inspect the export:\n"
            f"  {shlex.join(map(str, words))}"
        )
    raise ForeignFileError(f"{path} is {_guess(text, path.name)}, not {READABLE}")


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


def _guess(head: bytes, name: str) -> str:
    """Describe a file that is not read by its first bytes, or its name where they say nothing."""
    if not head:
        return "empty"
    if head.startswith(ZIP):
        return _describe_zip(head)
    if UTF_16.match(head):
        return "text in UTF-16; convert it (iconv -f UTF-16 -t UTF-8 FILE > NEW)"
    if head[257:262] == b"ustar":
        return "a tar archive; unpack it (tar xf)"
    if head.startswith(XPLANE) and (b"/device:" in head or b"/host:" in head):
        return "an XPlane protobuf of XLA or TensorFlow, which is not read"
    for first, what in OTHER_FORMATS:
        if head.startswith(first):
            return what
    for ending, what in OTHER_ENDINGS:
        if name.endswith(ending):
            return what
    return "of an unknown kind"


def _describe_zip(head: bytes) -> str:
    """Name the first file of an archive, whose header has the length of its name at byte 26."""
    first = head[30 : 30 + int.from_bytes(head[26:28], "little")].decode("utf-8", "replace")
    if not first or first.endswith(("/data.pkl", "/.format_version", "/byteorder")):
        return "a zip archive, as torch.save writes weights"
    return f"a zip archive (of {first!r} first); unpack it and inspect the file in it"
