"""The content of a foreign file: the blocks of a record, and those of nsys alone."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sysbench.core.errors import DamagedFileError
from sysbench.core.inspection.kinds import Kind
from sysbench.core.record.nsys import Clocks, KernelSummary, NsysDevice, Nvtx
from sysbench.core.record.record import Finding, Kernels, Memory, Nsys, Record
from sysbench.core.storage import UNREADABLE_JSON


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of one foreign file; public JSON like the record.

    ``device`` is the name of the device of ``kernels``, null where the file has none. A block
    without data in the file is null, and ``missing`` has the reason. The fields from ``nvtx`` on
    are of an nsys export; its ``kernel_summary``, ``memory_summary`` and ``api_summary`` are
    NVIDIA's own ``cuda_gpu_kern_sum``, ``cuda_gpu_mem_time_sum`` and ``cuda_api_sum``. A trace has
    the last too.
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

    @property
    def nsys(self) -> Nsys | None:
        """The block of an nsys export, in the form of a record."""
        if self.kernels is None or self.nvtx is None or self.clocks is None:
            return None
        return Nsys(
            kernels=self.kernels,
            kernel_summary=self.kernel_summary,
            memory_summary=self.memory_summary,
            api_summary=self.api_summary,
            nvtx=self.nvtx,
            clocks=self.clocks,
            devices=self.devices,
            schema=self.export_schema,
            nsys_version=self.nsys_version,
            missing={key: why for key, why in self.missing.items() if key != "memory"},
        )

    def as_record(self) -> Record:
        """The blocks as a record with an empty spec, for code that shows records."""
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
    """As JSON."""
    return msgspec.json.encode(inspection)


def decode_inspection(data: bytes, source: Path) -> Inspection:
    """From JSON.

    Raises:
        DamagedFileError: Not an inspection.
    """
    try:
        return msgspec.json.decode(data, type=Inspection)
    except UNREADABLE_JSON as error:
        raise DamagedFileError(f"{source} is not an inspection: {error}") from error
