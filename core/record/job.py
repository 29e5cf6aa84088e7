"""The record's block of a watched command: its processes and their steps."""

from __future__ import annotations

import msgspec

from sysbench.core.record.timing import Spread

MAX_STEPS = 1000
"""Steps of each rank in the record, the last ones; all are in the files of marks."""


class JobRank(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the command that ran steps.

    ``rank`` is that of torchrun, or the place in the order of starting. ``median_ms`` is of its
    steps after the warm-up; null below one. ``problem`` is empty, or why its marks are not whole.
    """

    rank: int
    host: str
    pid: int
    program: str = ""
    device: str = "cpu"
    device_name: str = ""
    python: str = ""
    torch: str = ""
    steps: int = 0
    median_ms: float | None = None
    problem: str = ""


class JobStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank, from the end of the step before it to its own end.

    ``start_ns`` is since the Unix epoch. ``input_ms`` is the time in which the process waited for
    its DataLoaders. Of a process on CUDA, ``forward_ms`` (the outermost module, with gradients),
    ``backward_ms``, ``optimizer_ms`` and ``evaluation_ms`` (the module without gradients, beside a
    backward) are between events on the device, else of the host's clock. ``other_ms`` is the rest
    of ``wall_ms``. ``peak_bytes`` is the largest allocation of the process so far. ``tokens`` and
    ``samples`` are those of the inputs of all forward passes with gradients. ``micro_batches``
    counts backward passes; ``skipped`` is a step whose optimizer a gradient scaler held back, and
    ``traced`` one that a profiler slowed down: it is in no statistic.
    """

    step: int
    rank: int
    start_ns: int
    wall_ms: float
    input_ms: float
    forward_ms: float
    backward_ms: float
    optimizer_ms: float
    evaluation_ms: float
    other_ms: float
    allocated_bytes: int | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    tokens: int | None = None
    samples: int | None = None
    micro_batches: int = 1
    skipped: bool = False
    traced: bool = False


PHASES = ("input", "forward", "backward", "optimizer", "evaluation", "other")
"""Parts of a step: its ``…_ms`` sum to ``wall_ms``, unless the device runs behind the host."""


def step_phases(step: JobStep) -> dict[str, float]:
    """Return the milliseconds of each phase."""
    return {name: getattr(step, f"{name}_ms") for name in PHASES}


class JobLoader(msgspec.Struct, frozen=True, kw_only=True):
    """A DataLoader of one rank: ``place`` is the line that iterates over it.

    ``input_ms`` is the time that the process waited for it, ``waits`` times in all; ``workers`` are
    its processes, 0 if it loads in the process itself, null if torch does not have the number.
    """

    rank: int
    place: str
    workers: int | None
    waits: int
    input_ms: float


class JobWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one rank under a profiler, or in which the holders of its memory were counted.

    ``trace`` is the file in the run's folder ``timing/marks``, ``cost_ms`` the time that profiling
    or counting, and writing the file, added to the command; null if no other step has a time.
    """

    rank: int
    step: int
    count: int
    trace: str
    cost_ms: float | None = None

    @property
    def is_of_memory(self) -> bool:
        return self.trace.startswith("memory-")


class WatchedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A command that ran unchanged while its steps were recorded.

    ``signal`` is the number of the one that ended it, else 0, and ``exit_code`` is then 128 more,
    as in a shell. ``step`` is
    the wall time after the warm-up, of the slowest rank step by step; null without one.
    ``input_share`` is the part of those steps in which that rank waited for input. ``steps`` are
    the last `MAX_STEPS` of each rank, ``total_steps`` all of one rank. ``processes`` imported torch
    or ran steps.
    """

    command: list[str]
    exit_code: int | None
    signal: int = 0
    wall_ms: float
    world_size: int
    ranks: list[JobRank]
    steps: list[JobStep]
    loaders: list[JobLoader] = []
    windows: list[JobWindow] = []
    total_steps: int = 0
    step: Spread | None = None
    input_share: float | None = None
    warmup_steps: int = 0
    missing: dict[str, str] = {}

    @property
    def measured_span(self) -> tuple[int, int, int] | None:
        """First and last ``t_ns`` of the first rank's steps that count, and their number.

        Without the warm-up, and without steps up to the last traced one, whose export they share.
        """
        steps = [step for step in self.steps if step.rank == self.steps[0].rank]
        traced = max((step.step for step in steps if step.traced), default=-1)
        counting = [step for step in steps if step.step >= max(self.warmup_steps, traced + 1)]
        if not counting:
            return None
        last = counting[-1]
        return counting[0].start_ns, last.start_ns + round(1e6 * last.wall_ms), len(counting)
