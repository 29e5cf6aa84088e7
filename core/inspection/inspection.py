"""The format and content of an imported file, and messages of the decoding process."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
import stat
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from sysbench.core.errors import DamagedFileError, ForeignFileError, SysbenchError
from sysbench.core.formatting import format_bytes
from sysbench.core.ranks.rank_rows import Ranks
from sysbench.core.record.record import Finding, Kernels, Memory, Nsys, Record
from sysbench.core.record.steps import Clocks, KernelSummary, NsysDevice, Nvtx
from sysbench.core.storage import UNREADABLE_JSON
from sysbench.core.trace.protobuf_scan import is_perfetto
from sysbench.core.trace.trace_json import EVENTS_KEY, unpacked

Format = Literal["chrome-trace", "perfetto-trace", "memory-snapshot", "nsys-export", "bundle"]
Kind = Format | Literal["profiled-allocations"]
"""``profiled-allocations`` is a chrome trace with allocations; its head does not show that."""

GZIP, PICKLE, SQLITE, ZIP = b"\x1f\x8b", b"\x80", b"SQLite format 3\x00", b"PK"
BUNDLE_HEAD = b"sysbench-bundle.json"
"""Name of the first file of a bundle, which is a zip archive."""
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

_FIRST = "a chrome trace (.json, .json.gz), a Perfetto trace (.pftrace), a memory snapshot (pickle)"
RECORDINGS = f"{_FIRST} or an nsys SQLite export"
READABLE = f"{_FIRST}, an nsys SQLite export or a bundle (.zip)"
INSTEAD = f"what is read is {READABLE}"
TEXT_HEAD_BYTES = 4096


def path_text(path: Path | str) -> str:
    """Return a path as text for JSON: names on disk are bytes."""
    return str(path).encode("utf-8", "backslashreplace").decode()


JSON_OBJECTS = re.compile(rb"\s*(\{|\[\s*(\{|\]|$))")
"""An object, or a list of objects, and not a section of a TOML file."""


def format_of(path: Path) -> Format:
    """Return the format of a file; ForeignFileError if it has none of them, or cannot be read."""
    head = _head(path)
    if head.startswith(SQLITE) and ROCPD not in head:
        return "nsys-export"
    if head.startswith(PICKLE):
        return "memory-snapshot"
    if head.startswith(ZIP) and _first_name(head) == BUNDLE_HEAD:
        return "bundle"
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


def _first_name(head: bytes) -> bytes:
    """Return the name of an archive's first file, whose header has its length at byte 26."""
    return head[30 : 30 + int.from_bytes(head[26:28], "little")]


def _describe_zip(head: bytes) -> str:
    first = _first_name(head).decode("utf-8", "replace")
    if not first or first.endswith(("/data.pkl", "/.format_version", "/byteorder")):
        return "a zip archive, as torch.save writes weights"
    return f"a zip archive (of {first!r} first); unpack it and inspect the file in it"


FROM_EXPORT = (
    *("kernel_summary", "memory_summary", "api_summary", "nvtx", "clocks", "devices"),
    "nsys_version",
)
"""Fields that an inspection and an export have under the same names."""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """Tables of one imported file; public JSON like the record.

    ``device`` is the name of the device of ``kernels``. A block without data is null, and
    ``missing`` has the reason. ``ranks`` are the devices or processes with collectives, if there
    are several. Fields from ``nvtx`` on belong to nsys exports;
    ``kernel_summary``, ``memory_summary`` and ``api_summary`` are NVIDIA's ``cuda_gpu_kern_sum``,
    ``cuda_gpu_mem_time_sum`` and ``cuda_api_sum``. Traces have the last too.
    """

    kind: Kind
    file: str
    file_bytes: int
    device: str | None = None
    kernels: Kernels | None = None
    memory: Memory | None = None
    nvtx: Nvtx | None = None
    clocks: Clocks | None = None
    kernel_summary: list[KernelSummary] = []
    memory_summary: list[KernelSummary] = []
    api_summary: list[KernelSummary] = []
    devices: list[NsysDevice] = []
    export_schema: str | None = None
    nsys_version: str | None = None
    findings: list[Finding] = []
    missing: dict[str, str] = {}
    ranks: Ranks | None = None

    @property
    def nsys(self) -> Nsys | None:
        if self.kernels is None or self.nvtx is None or self.clocks is None:
            return None
        return Nsys(
            kernels=self.kernels,
            schema=self.export_schema,
            missing={key: why for key, why in self.missing.items() if key != "memory"},
            **{name: getattr(self, name) for name in FROM_EXPORT},
        )

    def as_record(self) -> Record:
        """Return the blocks as a record with an empty spec."""
        return Record(
            id=Path(self.file).name,
            identity="",
            status="finished",
            created_ns=0,
            spec={},
            parameters=0,
            environment={},
            kernels=self.kernels,
            memory=self.memory,
            nsys=self.nsys,
            findings=self.findings,
            missing=self.missing,
        )


def encode_inspection(inspection: Inspection) -> bytes:
    return msgspec.json.encode(inspection)


def decode_inspection(data: bytes, source: Path) -> Inspection:
    """Parse JSON; DamagedFileError if it is no inspection."""
    try:
        return msgspec.json.decode(data, type=Inspection)
    except UNREADABLE_JSON as error:
        raise DamagedFileError(f"{source} is not an inspection: {error}") from error


PROGRESS_SECONDS = 0.05


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    """Progress of a stage in its unit; 0 of 0 if unknown."""

    stage: str
    done: int
    total: int

    @property
    def share(self) -> float | None:
        """Fraction of the stage that is done, if known."""
        return min(1.0, self.done / self.total) if self.total else None


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    message: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The tables are in the entry, or in another folder, named by its bytes."""

    folder: bytes = b""


Message = Progressed | Refused | Finished

_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def decode_message(line: bytes) -> Message:
    """Parse one line; DamagedFileError if it is no message."""
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"the decoding process wrote an invalid message: {error}") from error


def send_message(message: Message) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


class ProgressSender:
    """Sends progress at most every `PROGRESS_SECONDS`, and each new stage at once."""

    def __init__(self) -> None:
        self._stage = ""
        self._sent_s = 0.0

    def send(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage != self._stage or now - self._sent_s >= PROGRESS_SECONDS:
            self._stage, self._sent_s = stage, now
            send_message(Progressed(stage, done, total))


def refusal(error: Exception, path: Path, limit_bytes: int) -> Refused:
    """Describe an error for the user; bytes of the path that are no text are escaped."""
    if any(isinstance(cause, MemoryError) for cause in _chain(error)):
        limit = format_bytes(limit_bytes)
        text = (
            f"{path} takes more than {limit} of memory to decode; "
            "`sysbench-tui inspect` allows more with --memory-limit"
        )
    elif isinstance(error, SysbenchError):
        text = str(error)
    elif isinstance(error, OSError):
        text = f"{error.filename or path}: {error.strerror}"
    else:
        text = f"{path} cannot be read: {type(error).__name__}: {error}"
    if str(path) not in text:
        text = f"{path}: {text}"
    return Refused(path_text(text))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
