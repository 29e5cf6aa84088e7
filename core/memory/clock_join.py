"""The allocator's clock and that of the worker's notes, joined by allocations of known time.

An allocator's history has times of the processor's counter, converted to the Unix epoch with the
process's own calibration; the notes have the system's clock, which may be slewed meanwhile. An
address that is used again within microseconds takes the wrong owner where the two differ. So the
worker makes allocations of odd sizes between two readings of its clock, before and after everything
else: their events tell the difference at both ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from sysbench.core.memory.history import History
from sysbench.core.memory.owners import Note, Notes, Sounding

WITHIN_US = 20.0
"""A larger difference deserves a notice."""

N = TypeVar("N", bound=Note)


class Offset(NamedTuple):
    """The allocator's clock minus that of the notes at a time of the notes; ``error_ns`` is the
    most by which that can be off."""

    time_ns: int
    offset_ns: int
    error_ns: int


class Joined(NamedTuple):
    """A history without the soundings, notes in its clock, and the offsets at both ends; one or
    none where events of soundings are lost."""

    history: History
    notes: Notes
    offsets: list[Offset]

    @property
    def offset_us(self) -> float | None:
        """The offset that is farther from zero, in microseconds; None without any."""
        worst = max(self.offsets, key=lambda one: abs(one.offset_ns), default=None)
        return None if worst is None else worst.offset_ns / 1e3


def joined(history: History, notes: Notes) -> Joined:
    """Shift the notes into the clock of the history, and take the soundings out of it.

    Between the ends the offset changes evenly. Without soundings nothing changes.
    """
    found = [
        (sounding, index)
        for sounding in notes.soundings
        if (index := _event_of(history, sounding)) is not None
    ]
    offsets = _ends([_offset(history, sounding, index) for sounding, index in found])
    if not offsets:
        return Joined(history, notes, [])
    shifted = msgspec.structs.replace(
        notes,
        phases=_shifted(notes.phases, offsets),
        modules=_shifted(notes.modules, offsets),
        tags=_shifted(notes.tags, offsets),
        released_ns=None
        if notes.released_ns is None
        else notes.released_ns + _offset_at(notes.released_ns, offsets),
    )
    return Joined(_without(history, [index for _, index in found]), shifted, offsets)


def _event_of(history: History, sounding: Sounding) -> int | None:
    """The event of a sounding: of those with its size the nearest in time."""
    candidates = np.flatnonzero(history.change == sounding.bytes)
    if not len(candidates):
        return None
    distance = np.abs(history.time_ns[candidates] - sounding.middle_ns)
    return int(candidates[np.argmin(distance)])


def _offset(history: History, sounding: Sounding, index: int) -> Offset:
    middle_ns = sounding.middle_ns
    # The history's times are the middles of microseconds.
    error_ns = (sounding.after_ns - sounding.before_ns) // 2 + 500
    return Offset(middle_ns, int(history.time_ns[index]) - middle_ns, error_ns)


def _ends(offsets: Sequence[Offset]) -> list[Offset]:
    """The most exact offset of either end: of the soundings before and after the middle."""
    if not offsets:
        return []
    times = [one.time_ns for one in offsets]
    middle_ns = (min(times) + max(times)) // 2
    sides = (
        [one for one in offsets if one.time_ns <= middle_ns],
        [one for one in offsets if one.time_ns > middle_ns],
    )
    return [min(side, key=lambda one: one.error_ns) for side in sides if side]


def _offset_at(time_ns: int, offsets: Sequence[Offset]) -> int:
    first, last = offsets[0], offsets[-1]
    between = last.time_ns - first.time_ns
    if not between:
        return first.offset_ns
    since = min(max(time_ns - first.time_ns, 0), between)
    return first.offset_ns + (last.offset_ns - first.offset_ns) * since // between


def _shifted(notes: Sequence[N], offsets: Sequence[Offset]) -> list[N]:
    return [
        msgspec.structs.replace(note, time_ns=note.time_ns + _offset_at(note.time_ns, offsets))
        for note in notes
    ]


def _without(history: History, births: Sequence[int]) -> History:
    """The history without these allocations and the events that free them."""
    gone = list(births)
    for birth in births:
        later = np.flatnonzero(history.address[birth + 1 :] == history.address[birth])
        gone += [birth + 1 + int(later[0])] if len(later) else []
    kept = np.ones(len(history), dtype=np.bool_)
    kept[gone] = False
    columns: dict[str, Any] = {
        field.name: column[kept]
        for field in fields(history)
        if isinstance(column := getattr(history, field.name), np.ndarray) and len(column)
    }
    return replace(history, **columns)
