"""From a file to its tables, in this process: meant for a child with a memory limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..analysis.chrome_trace import read_trace
from ..analysis.kernels import kernel_table
from ..analysis.memory import describe_snapshot
from ..analysis.nsys_export import read_export
from ..analysis.snapshot import read_snapshot
from ..analysis.time_ledger import time_ledger
from ..analysis.work_costs import noted_work, with_costs
from ..record import Kernels
from .inspection import Inspection
from .kinds import kind_of

Progress = Callable[[str, int, int], None]
"""Told the stage, ``decode`` or ``analyse``, how much of it is done and of how much; 0 of 0
where that cannot be told."""


class Tables(NamedTuple):
    """An inspection, and its kernels layer by layer where it has any."""

    inspection: Inspection
    layers: Kernels | None


def read_tables(path: Path, progress: Progress) -> Tables:
    """All tables of a file. Time and memory are those that the file asks for.

    Raises:
        DamagedFileError: It cannot be read; the message says why.
        MemoryError: It takes more than this process may have.
    """
    match kind_of(path):
        case "chrome-trace":
            return _read_trace(path, progress)
        case "memory-snapshot":
            return _read_snapshot(path, progress)
        case "nsys-export":
            return _read_export(path, progress)


def _read_trace(path: Path, progress: Progress) -> Tables:
    trace = read_trace(path, lambda done, total: progress("decode", done, total))
    progress("analyse", 0, 0)
    ledger = time_ledger(trace)
    work = noted_work(trace, ledger)
    inspection = Inspection(
        kind="chrome-trace",
        file=_name(path),
        file_bytes=path.stat().st_size,
        kernels=with_costs(kernel_table(ledger), work),
        missing={"memory": "a chrome trace has no allocations with their owners"},
    )
    return Tables(inspection, with_costs(kernel_table(ledger, by_layer=True), work))


def _read_snapshot(path: Path, progress: Progress) -> Tables:
    snapshot = read_snapshot(path, lambda done, total: progress("decode", done, total))
    progress("analyse", 0, 0)
    inspection = Inspection(
        kind="memory-snapshot",
        file=_name(path),
        file_bytes=path.stat().st_size,
        memory=describe_snapshot(snapshot),
        missing={"kernels": "a memory snapshot has no times of kernels"},
    )
    return Tables(inspection, None)


def _read_export(path: Path, progress: Progress) -> Tables:
    progress("decode", 0, 0)
    export = read_export(path)
    inspection = Inspection(
        kind="nsys-export",
        file=_name(path),
        file_bytes=path.stat().st_size,
        kernels=export.folded,
        nvtx=export.nvtx,
        clocks=export.clocks,
        kernel_summary=export.kernel_summary,
        memory_summary=export.memory_summary,
        devices=export.devices,
        export_schema=export.schema,
        nsys_version=export.nsys_version,
        missing=export.missing | {"memory": "nsys does not record the allocator"},
    )
    return Tables(inspection, export.kernels)


def _name(path: Path) -> str:
    """The path as text that JSON can hold: names on disk are bytes."""
    return str(path).encode("utf-8", "backslashreplace").decode()
