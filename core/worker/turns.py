"""Turns of two processes that are measured side by side: one runs while the other waits."""

from __future__ import annotations

import os
from contextlib import suppress

from sysbench.core.runs.worker_process import FIRST_TURN

_NEXT, _LAST = FIRST_TURN, b"!"
"""Bytes that pass the turn; after the last one its sender takes no more turns."""


class Turns:
    """One process's share of the turns; a process without a partner never waits.

    Args:
        ends: Descriptors of two pipes, to read the turn from and to pass it on; None without a
            partner. A partner that dies closes them, and this process goes on alone.
    """

    def __init__(self, ends: tuple[int, int] | None = None) -> None:
        self.is_pair = ends is not None
        self._ends = ends
        self._is_alone = ends is None

    def take(self) -> None:
        """Wait, without using the processor, until it is this process's turn."""
        if self._ends is not None and not self._is_alone:
            self._is_alone = os.read(self._ends[0], 1) in (_LAST, b"")

    def give_way(self) -> None:
        """Let the partner have its turn, and wait for the next one."""
        if self._ends is not None and not self._is_alone:
            self._pass(_NEXT)
            self.take()

    def finish(self) -> None:
        """Take no more turns; return when the partner takes none either, or died."""
        if self._ends is None:
            return
        self._pass(_LAST)
        while not self._is_alone:
            self.take()
        for end in self._ends:
            os.close(end)
        self._ends = None

    def _pass(self, byte: bytes) -> None:
        if self._ends is not None:
            with suppress(BrokenPipeError):  # the partner died: reading says so
                os.write(self._ends[1], byte)
