"""The wall clock held against one that nobody sets."""

from __future__ import annotations

import time

LEAST_MOVE_SECONDS = 1.0
"""Smaller corrections are those of a clock that follows a time server; samples are 0.5 s apart."""


class ClockGuard:
    """Notices that the wall clock was set, or that the machine slept, which stops the other."""

    def __init__(self) -> None:
        self._offset_ns = _offset_ns()

    def moved_seconds(self) -> float | None:
        """Seconds by which the wall clock moved since the last move; None for less than one."""
        seconds = (_offset_ns() - self._offset_ns) / 1e9
        if abs(seconds) < LEAST_MOVE_SECONDS:
            return None
        self._offset_ns = _offset_ns()
        return seconds


def _offset_ns() -> int:
    return time.time_ns() - time.monotonic_ns()
