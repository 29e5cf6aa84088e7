"""What the worker noted beside the allocator's history: phases, modules, owners."""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal

import msgspec

Owner = Literal[
    "parameters",
    "buffers",
    "inputs",
    "optimizer state",
    "gradients",
    "autocast weight copies",
    "activations",
    "outputs",
]
"""Who holds a storage. Of several owners of one allocation the first in this order counts."""

WHOLE_MODEL = "model"
"""The path of the model itself, and of what happens outside every module."""


class Note(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that was so at a time, in nanoseconds since the Unix epoch."""

    time_ns: int


class PhaseMark(Note, frozen=True):
    """A phase began; ``""`` means that the step was over. Building the model is step -1."""

    step: int
    phase: str


class ModuleMark(Note, frozen=True):
    """From now on this module computes, forward or backward."""

    module: str


class Tag(Note, frozen=True):
    """At this time the storage at this address belonged to this owner, in this module."""

    address: int
    owner: Owner
    module: str


class Notes(msgspec.Struct, frozen=True):
    """All notes of a pass, each list in order of time."""

    phases: list[PhaseMark] = []
    modules: list[ModuleMark] = []
    tags: list[Tag] = []

    @property
    def steps(self) -> list[int]:
        """The steps that were noted, building not among them."""
        return sorted({mark.step for mark in self.phases if mark.step >= 0})

    def step_span(self, step: int) -> tuple[int, int]:
        """When a step began and when it was over."""
        times = [mark.time_ns for mark in self.phases if mark.step == step]
        return times[0], times[-1]

    def phase_at(self, time_ns: int) -> str:
        """The phase of that time; ``""`` outside of all."""
        at = bisect_right(self.phases, time_ns, key=lambda mark: mark.time_ns)
        return self.phases[at - 1].phase if at else ""
