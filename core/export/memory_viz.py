"""The CUDA allocator snapshot for pytorch.org/memory_viz."""

from __future__ import annotations

from pathlib import Path

from ..errors import DamagedFileError, NotFoundError
from ..runs.directory import RunDirectory
from .files import copy

_PROTOCOL_4 = b"\x80\x04"


def write_snapshot(run: RunDirectory, out: Path) -> list[Path]:
    """Copy the snapshot, a pickle of protocol 4; it is never loaded here.

    Raises:
        NotFoundError: The run has no snapshot, and why.
        DamagedFileError: The file is not a pickle that memory_viz reads.
    """
    source = run.snapshot_path
    if not source.is_file():
        raise NotFoundError(_why_absent(run))
    with source.open("rb") as file:
        if file.read(2) != _PROTOCOL_4:
            raise DamagedFileError(f"{source} is not a pickle of protocol 4")
        file.seek(0)
        return [copy(file, out)]


def _why_absent(run: RunDirectory) -> str:
    if run.header().spec.on_cuda:
        return f"run {run.id} has no memory snapshot: run it again with --passes memory"
    return (
        f"run {run.id} was on the CPU, and memory_viz reads snapshots of the CUDA allocator only; "
        "`export RUN csv` has the same ledger, modules and largest allocations as tables"
    )
