"""The chrome trace for ui.perfetto.dev, as the profiler wrote it."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, cast

from ..errors import DamagedFileError, NotFoundError
from ..runs.directory import RunDirectory
from .files import copy


def write_trace(run: RunDirectory, out: Path) -> list[Path]:
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
