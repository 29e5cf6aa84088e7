"""Artifacts for other tools as they stand: the chrome trace and the allocator snapshot."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, cast

from ..errors import DamagedFileError, NotFoundError
from ..runs.directory import RunDirectory
from .files import copy


def write_trace(run: RunDirectory, out: Path, *, force: bool) -> list[Path]:
    """Copy the gzip'd trace; to a name that ends in ``.json`` it is unpacked.

    Raises:
        NotFoundError: The run has no trace.
        DamagedFileError: The trace is not gzip'd JSON.
    """
    source = run.trace_path
    if not source.is_file():
        raise NotFoundError(
            f"run {run.id} has no trace: run it again with --passes timing,trace "
            f"(looked for {source})"
        )
    _check_head(source)
    if out.suffix != ".json":
        with source.open("rb") as packed:
            return [copy(packed, out)]
    try:
        with gzip.open(source) as unpacked:
            return [copy(cast(IO[bytes], unpacked), out)]
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFileError(f"{source} is damaged: {error}") from error


def _check_head(source: Path) -> None:
    try:
        with gzip.open(source) as file:
            head = file.read(4096).lstrip()
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFileError(f"{source} is not a gzip'd trace: {error}") from error
    if head[:1] not in (b"{", b"["):
        raise DamagedFileError(f"{source} is not a chrome trace: it does not begin like JSON")


_PROTOCOL_4 = b"\x80\x04"


def write_snapshot(run: RunDirectory, out: Path, *, force: bool) -> list[Path]:
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
