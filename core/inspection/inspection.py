"""The content of an imported file, and messages of the decoding process."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sysbench.core.errors import DamagedFileError, SysbenchError
from sysbench.core.formatting import format_bytes
from sysbench.core.inspection.kinds import Kind, path_text
from sysbench.core.ranks.rank_rows import Ranks
from sysbench.core.record.nsys import Clocks, KernelSummary, NsysDevice, Nvtx
from sysbench.core.record.record import Finding, Kernels, Memory, Nsys, Record
from sysbench.core.storage import UNREADABLE_JSON

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
    """Yield the error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
