"""The append-only ``events.jsonl`` of one run, and a little room kept for its end."""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType

from .record.events import AnyEvent, encode_event
from .runs.directory import RunDirectory

RESERVE_BYTES = 2**20


class EventLog:
    """Writes whole lines; the kernel has them when `append` returns.

    A reserve file is freed before the end of the run is written, so that a full disk can
    still hold the record that says so.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._path = run.events_path
        self._reserve = run.path / ".reserve"

    def __enter__(self) -> EventLog:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        # A full disk at this point is found by the first event.
        with suppress(OSError):
            self._reserve.write_bytes(b"\0" * RESERVE_BYTES)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release_reserve()
        os.close(self._file)

    def append(self, event: AnyEvent) -> None:
        """Add one line.

        Raises:
            OSError: The disk is full or gone; the line may be torn.
        """
        data = encode_event(event)
        while data:
            data = data[os.write(self._file, data) :]

    def release_reserve(self) -> None:
        """Give the kept room back."""
        self._reserve.unlink(missing_ok=True)
