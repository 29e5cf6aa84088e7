"""What the worker noted beside the allocator's history: phases, modules, owners."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
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
    """All notes of a pass, each list in order of time.

    Attributes:
        released_ns: When the libraries were made to give back their workspaces, all steps done.
    """

    phases: list[PhaseMark] = []
    modules: list[ModuleMark] = []
    tags: list[Tag] = []
    released_ns: int | None = None

    @property
    def steps(self) -> list[int]:
        """The steps that were noted, building not among them."""
        return sorted({mark.step for mark in self.phases if mark.step >= 0})

    def step_span(self, step: int) -> tuple[int, int]:
        """When a step began and when it was over."""
        times = [mark.time_ns for mark in self.phases if mark.step == step]
        return times[0], times[-1]

    def forward_end_ns(self, step: int) -> int | None:
        """When a step's forward was over and its output there; None where that was not seen."""
        marks = [mark for mark in self.phases if mark.step == step]
        for mark, after in pairwise(marks):
            if mark.phase == "forward" and after.phase:
                return after.time_ns
            if mark.phase == "forward":  # the step ends with its output dropped
                return self._last_output_ns(mark.time_ns, after.time_ns)
        return None

    def _last_output_ns(self, began_ns: int, ended_ns: int) -> int | None:
        times = (tag.time_ns for tag in self.tags if tag.owner == "outputs")
        return max((time for time in times if began_ns <= time <= ended_ns), default=None)

    def phase_at(self, time_ns: int) -> str:
        """The phase of that time; ``""`` outside of all."""
        at = bisect_right(self.phases, time_ns, key=lambda mark: mark.time_ns)
        return self.phases[at - 1].phase if at else ""
