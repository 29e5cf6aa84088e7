"""Turns of two processes that are measured side by side: one runs while the other waits."""

from __future__ import annotations

from contextlib import suppress

from sysbench.core.machine.children import private_pipe
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
        self._ends = ends and (private_pipe(ends[0], "rb"), private_pipe(ends[1], "wb"))
        self._is_alone = ends is None

    def take(self) -> None:
        """Wait, without using the processor, until it is this process's turn."""
        if self._ends is not None and not self._is_alone:
            self._is_alone = self._ends[0].read(1) in (_LAST, b"")

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
            end.close()
        self._ends = None

    def _pass(self, byte: bytes) -> None:
        if self._ends is not None:
            with suppress(BrokenPipeError):  # the partner died: reading says so
                self._ends[1].write(byte)
