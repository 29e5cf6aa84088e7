"""Full garbage collections while nobody types.

Python begins one whenever enough objects were made: as often as not between a key and its answer,
which it holds up by tens of milliseconds. The younger generations stay Python's.
"""

from __future__ import annotations

import gc

QUIET_TICKS = 2
"""Ticks in a row without input, after which somebody is taken not to type."""

PATIENCE = 10
"""Times the usual number of younger collections, after which input is waited for no longer."""

NEVER = 2**31 - 1


class Garbage:
    """The collector of this process, from the first tick to the end of an app.

    Attributes:
        waits: It was turned off for the start of the app, and nothing has been collected yet.
    """

    def __init__(self) -> None:
        self.waits = not gc.isenabled()
        self._usual: tuple[int, int, int] | None = None
        self._quiet = self._done = 0

    def note_input(self) -> None:
        """Take note that somebody types, or moves the mouse."""
        self._quiet = 0

    def tick(self) -> None:
        """Turn the collector on at the first tick; later collect, when it is due and quiet."""
        self._quiet += 1
        if self.waits:
            self.waits = False
            gc.freeze()
            self._usual = gc.get_threshold()
            gc.set_threshold(*self._usual[:2], NEVER)
            gc.enable()
            self._done = _younger_collections()
        # A reading in a thread may have turned it off for a while.
        if self._usual is None or not gc.isenabled():
            return
        waiting = _younger_collections() - self._done
        is_quiet = self._quiet > QUIET_TICKS
        if waiting >= self._usual[2] * (1 if is_quiet else PATIENCE):
            gc.collect()
            self._done = _younger_collections()

    def end(self) -> None:
        """Leave the collector as Python has it."""
        if self._usual is not None:
            gc.set_threshold(*self._usual)


def _younger_collections() -> int:
    """How often the middle generation has been collected."""
    return int(gc.get_stats()[1]["collections"])
