"""Read this machine in a thread while somebody looks at it."""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import NamedTuple

from sysbench.core.machine.machine_reader import MachineReader
from sysbench.core.machine.sample import MachineState
from sysbench.core.runs.run_directory import newest_record
from sysbench.core.storage import home
from sysbench.core.tables.machine_tables import OtherProcess, disturbed_words, others_of

FIRST_SECONDS = 0.5
INTERVAL_SECONDS = 2.0
LIVE_INTERVAL_SECONDS = 5.0
"""While a run is live: a reading takes some ten milliseconds of a core."""


class LastRun(NamedTuple):
    """The newest run that measured something, and what its record names beside it."""

    id: str
    ended_ns: int | None
    words: str
    others: list[OtherProcess]


def machine_reader() -> MachineReader:
    return MachineReader({"library": home(), "temporary": Path(tempfile.gettempdir())})


def last_run() -> LastRun | None:
    record = newest_record()
    if record is None:
        return None
    return LastRun(record.id, record.ended_ns, disturbed_words(record), others_of(record))


class MachineWatch:
    """Reads from `start` to `stop` in a daemon thread; ``error`` has what ended it early."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.is_live = False
        """Whether a run is being measured."""
        self._newest: deque[MachineState] = deque(maxlen=1)
        self._stopping: threading.Event | None = None

    def start(self) -> None:
        if self._stopping is None:
            self.error, self._stopping = None, threading.Event()
            threading.Thread(
                target=self._run, args=(self._stopping,), name="machine", daemon=True
            ).start()

    def stop(self) -> None:
        """Stop without waiting for a reading in progress: a driver may hang."""
        if self._stopping is not None:
            self._stopping.set()
            self._stopping = None

    def latest(self) -> MachineState | None:
        return self._newest.pop() if self._newest else None

    def _run(self, stopping: threading.Event) -> None:
        try:
            with machine_reader() as reader:
                reader.take()  # the next one has what needs two readings
                seconds = FIRST_SECONDS
                while not stopping.wait(seconds):
                    self._newest.append(reader.take())
                    seconds = LIVE_INTERVAL_SECONDS if self.is_live else INTERVAL_SECONDS
        except Exception as error:
            self.error = error
