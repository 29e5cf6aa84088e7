"""Signal handling of a command that measures."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from sysbench.core.runs.job_directory import Cancellation


@contextmanager
def cancelled_by_signals(cancel: Cancellation) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run in order, and SIGHUP only detach the terminal.

    A line that drops must not kill a run: after a hang-up the standard streams lead
    nowhere and the measurement goes on.
    """
    handlers = {
        signal.SIGINT: lambda *_: cancel.set(),
        signal.SIGTERM: lambda *_: cancel.set(),
        signal.SIGHUP: lambda *_: _leave_terminal(),
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_terminal() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
