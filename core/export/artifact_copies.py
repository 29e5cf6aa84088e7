"""Artifacts for other tools as they stand: the chrome trace and the allocator snapshot."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import IO, cast

from sysbench.core.errors import DamagedFileError, NotFoundError
from sysbench.core.export.written_files import copy
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import open_regular


def write_trace(run: RunDirectory, out: Path, *, force: bool) -> list[Path]:
    """Copy the gzip'd trace; to a name that ends in ``.json`` it is unpacked.

    Raises:
        NotFoundError: The run has no trace.
        DamagedFileError: The trace is not gzip'd JSON, lies outside the run, or unpacks to far more
            than a trace does.
    """
    source = run.trace_path
    if not source.is_file():
        raise NotFoundError(
            f"run {run.id} has no trace: run it again with --passes timing,trace "
            f"(looked for {source})"
        )
    with open_regular(source, inside=run.path) as packed:
        _check_head(packed, source)
        packed.seek(0)
        if out.suffix != ".json":
            return [copy(packed, out)]
        most_bytes = max(SMALL_BYTES, MOST_PACKING * os.fstat(packed.fileno()).st_size)
        try:
            with gzip.open(packed) as unpacked:
                return [copy(cast(IO[bytes], unpacked), out, most_bytes)]
        except (EOFError, zlib.error, gzip.BadGzipFile, DamagedFileError) as error:
            raise DamagedFileError(f"{source} is damaged: {error}") from error


SMALL_BYTES = 2**30
MOST_PACKING = 100
"""Times that a trace of more than `SMALL_BYTES` may be larger than packed. Real ones are up to 30
times; a file that is made to fill a disk is 1000 times."""


def _check_head(packed: IO[bytes], source: Path) -> None:
    try:
        with gzip.open(packed) as file:
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
        DamagedFileError: The file is not a pickle that memory_viz reads, or lies outside the run.
    """
    source = run.snapshot_path
    if not source.is_file():
        raise NotFoundError(_why_absent(run))
    with open_regular(source, inside=run.path) as file:
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
