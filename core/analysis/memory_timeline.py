"""The memory block's timeline: live bytes over time, few enough points to draw."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..record.record import Timeline
from .memory.residents import Residents

POINTS = 400


def draw_timeline(residents: Residents, first: int, last: int) -> Timeline:
    """At most POINTS instants, half of them between the two given ones.

    Of each equal part of the events the instant of the most live bytes is kept, so that no
    peak is lost; parts of events and not of time, for a model takes longer to build than to
    step.
    """
    end = len(residents.history)
    instants = np.concatenate(
        [
            _maxima(residents, 0, first, POINTS // 4),
            _maxima(residents, first, last + 1, POINTS // 2),
            _maxima(residents, last + 1, end + 1, POINTS // 4),
        ]
    )
    return Timeline(
        t_ms=[residents.time_ms(instant) for instant in instants.tolist()],
        live_bytes=residents.live[instants].tolist(),
        categories={name: at[instants].tolist() for name, at in residents.categories.items()},
        phases=_phase_spans(residents),
    )


def _maxima(residents: Residents, first: int, stop: int, parts: int) -> np.ndarray:
    """The instant of the most live bytes in each of at most ``parts`` equal parts."""
    edges = np.unique(np.linspace(first, stop, parts + 1).astype(np.int64))
    peaks = [residents.peak(begin, end - 1) for begin, end in pairwise(edges.tolist())]
    return np.array(peaks, dtype=np.int64)


def _phase_spans(residents: Residents) -> list[tuple[str, float, float]]:
    marks = residents.notes.phases
    return [
        (
            mark.phase,
            residents.since_start_ms(mark.time_ns),
            residents.since_start_ms(after.time_ns),
        )
        for mark, after in pairwise(marks)
        if mark.phase
    ]
