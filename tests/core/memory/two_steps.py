"""Phases of a build and two steps, shared by hand-written snapshots."""

from __future__ import annotations

from sysbench.core.memory.allocations import PhaseMark

START_US = 1_800_000_000_000_000


def at(microseconds: int) -> int:
    """Nanoseconds of a note, from microseconds after the start."""
    return (START_US + microseconds) * 1000


def phases() -> list[PhaseMark]:
    """A build from 0 to 90, a warm-up step from 100, a steady one from 200, in microseconds."""
    steps = [("forward", 0), ("backward", 40), ("", 70)]
    return [
        PhaseMark(at(0), -1, "build"),
        PhaseMark(at(90), -1, ""),
        *(PhaseMark(at(100 + after), 0, name) for name, after in steps),
        *(PhaseMark(at(200 + after), 1, name) for name, after in steps),
    ]
