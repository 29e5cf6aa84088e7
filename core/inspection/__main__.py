"""The decoding process: ``python -m sysbench.core.inspection FILE ENTRY LIMIT [DEVICE [STEPS
[CAPTURE]]]``.

LIMIT is of memory in bytes, STEPS such as 2-5. It writes messages to standard output and the tables
into the entry's folder. It exits when standard input closes.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import ForeignFileError, SysbenchError
from ..formatting import format_bytes
from ..machine.children import die_with_input
from ..machine.processes import die_with_parent, limit_data_memory
from ..storage import write_atomically
from .entries import Entry, entry_of, forget_oldest
from .inspection import encode_inspection
from .messages import Finished, Message, Progressed, Refused, encode_message
from .reading import Tables, read_tables

PROGRESS_SECONDS = 0.05
LARGEST_TABLES_BYTES = 64 * 2**20
"""A file with larger tables is hostile: real ones have a few megabytes."""


def main(
    file: str,
    entry: str,
    limit_bytes: str,
    device: str = "",
    steps: str = "",
    capture: str = "",
) -> int:
    """Decode the file into the entry and report the outcome; returns the exit code."""
    die_with_parent(os.getppid())
    die_with_input()
    limit_data_memory(int(limit_bytes))
    path = Path(file)
    try:
        number = int(device) if device else None
        first, _, last = steps.partition("-")
        chosen = (int(first), int(last)) if steps else None
        joined = Path(capture) if capture else None
        tables = read_tables(path, _ProgressSender().send, number, chosen, joined)
        # The name of the entry stands for the state of the file that was to be read.
        if entry_of(path, number, chosen, joined).path != Path(entry):
            raise ForeignFileError(f"{path} changed while it was read: look again when it is whole")
        _write(tables, Entry(Path(entry)))
    except Exception as error:  # A foreign file can raise anything; the log has it all.
        traceback.print_exc()
        _send(Refused(_reason(error, path, int(limit_bytes))))
        return 1
    _send(Finished())
    return 0


class _ProgressSender:
    """Sends the progress every `PROGRESS_SECONDS`; the start of a stage at once."""

    def __init__(self) -> None:
        self._stage = ""
        self._sent_s = 0.0

    def send(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage != self._stage or now - self._sent_s >= PROGRESS_SECONDS:
            self._stage, self._sent_s = stage, now
            _send(Progressed(stage, done, total))


def _write(tables: Tables, entry: Entry) -> None:
    """Write the tables into the entry; the inspection comes last and completes it."""
    inspection = encode_inspection(tables.inspection)
    layers = msgspec.json.encode(tables.layers) if tables.layers else b""
    if len(inspection) + len(layers) > LARGEST_TABLES_BYTES:
        size = format_bytes(len(inspection) + len(layers))
        raise ForeignFileError(f"{tables.inspection.file} has {size} of tables: no real file does")
    if layers:
        entry.layers_path.parent.mkdir(exist_ok=True)
        write_atomically(entry.layers_path, layers)
    write_atomically(entry.inspection_path, inspection)
    forget_oldest()


def _reason(error: Exception, path: Path, limit_bytes: int) -> str:
    """One message for the user; bytes of the path that are no text are made visible."""
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
    return text.encode("utf-8", "backslashreplace").decode()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _send(message: Message) -> None:
    sys.stdout.buffer.write(encode_message(message))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
