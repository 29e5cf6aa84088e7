"""The decoding process: ``python -m sysbench.core.inspection FILE ENTRY LIMIT [DEVICE [STEPS
[CAPTURE]]]``.

LIMIT is the memory limit in bytes, STEPS such as 2-5. Messages go to standard output, tables into
the entry's folder. The process exits when standard input closes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

from sysbench.core.errors import ForeignFileError
from sysbench.core.formatting import format_bytes
from sysbench.core.inspection.decoding import run_decoder
from sysbench.core.inspection.entries import InspectionEntry, forget_oldest, inspection_entry
from sysbench.core.inspection.inspection import Finished, ProgressSender, encode_inspection
from sysbench.core.inspection.reading import Tables, read_tables
from sysbench.core.storage import write_atomically
from sysbench.core.trace.rank_summary import encode_rank

MAX_TABLES_BYTES = 64 * 2**20
"""Larger tables mean a hostile file: real ones have a few megabytes."""


def main(
    file: str,
    entry: str,
    limit_bytes: str,
    device: str = "",
    steps: str = "",
    capture: str = "",
) -> int:
    """Decode the file into the entry and report the outcome; return the exit code."""
    path = Path(file)
    number = int(device) if device else None
    first, _, last = steps.partition("-")
    chosen = (int(first), int(last)) if steps else None
    joined = Path(capture) if capture else None

    def work() -> Finished:
        tables = read_tables(path, ProgressSender().send, number, chosen, joined)
        # The entry's name contains the file's state at the start.
        if inspection_entry(path, number, chosen, joined).path != Path(entry):
            raise ForeignFileError(
                f"{path} changed while it was read: try again when it is complete"
            )
        return _keep(tables, InspectionEntry(Path(entry)))

    return run_decoder(path, int(limit_bytes), work)


def _keep(tables: Tables, entry: InspectionEntry) -> Finished:
    """Write the tables into the entry, or into a temporary folder if the data folder is full or
    read-only."""
    try:
        _write(tables, entry)
        forget_oldest()
        return Finished()
    except OSError as error:
        reason = OSError(error.errno, os.strerror(error.errno or 0), str(entry.path))
    folder = ""
    try:
        folder = tempfile.mkdtemp(prefix="sysbench-inspection-")
        _write(tables, InspectionEntry(Path(folder)))
        return Finished(os.fsencode(folder))
    except OSError:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        raise reason from None


def _write(tables: Tables, entry: InspectionEntry) -> None:
    """Write the tables into the entry; the inspection comes last and completes it."""
    inspection = encode_inspection(tables.inspection)
    layers = msgspec.json.encode(tables.layers) if tables.layers else b""
    if len(inspection) + len(layers) > MAX_TABLES_BYTES:
        size = format_bytes(len(inspection) + len(layers))
        raise ForeignFileError(
            f"{tables.inspection.file} has {size} of tables, too many for a real file"
        )
    if tables.rank:
        write_atomically(entry.rank_path, encode_rank(tables.rank))
    entry.layers_path.parent.mkdir(exist_ok=True)
    # The names of the parts are constants of `bundle_reading`, and the run's id is a plain word.
    folder = entry.path / "bundle" / tables.run if tables.run else entry.path
    for name, data in tables.parts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, data)
    if tables.lanes:
        write_atomically(entry.lanes_path, tables.lanes)
    if layers:
        write_atomically(entry.layers_path, layers)
    write_atomically(entry.inspection_path, inspection)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
