"""The record's block of a watched command: its processes and their steps."""

from __future__ import annotations

from typing import Literal

import msgspec

from sysbench.core.record.timing import Spread

MAX_STEPS = 1000
"""Steps of each rank in the record, the last ones; all are in the files of marks."""


class JobRank(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the command that ran steps.

    ``rank`` is that of torchrun, or the place in the order of starting. ``median_ms`` is of its
    untraced steps after the warm-up, ``communication_ms`` the median of what they waited for
    collectives: the rank that the others wait for has the least. Both are null without such a step.
    ``problem`` is empty, or why its marks are not whole.
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
    communication_ms: float | None = None


Metric = Literal["steps", "wall"]
"""``steps``: the median step of a command; ``wall``: its time from the start to the end."""


class JobStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank, from the end of the step before it to its own end.

    ``start_ns`` is since the Unix epoch. ``input_ms`` is the time in which the process waited for
    its DataLoaders. Of a process on CUDA, ``forward_ms`` (the outermost module, with gradients),
    ``backward_ms``, ``optimizer_ms`` and ``evaluation_ms`` (the module without gradients, beside a
    backward) are between events on the device, else of the host's clock. ``other_ms`` is the rest
    of ``wall_ms``. ``peak_bytes`` is the largest allocation of the process so far. ``tokens`` and
    ``samples`` are those of the inputs of all forward passes with gradients. ``micro_batches``
    counts backward passes; ``skipped`` is a step whose optimizer a gradient scaler held back, and
    ``traced`` one that a profiler slowed down: it is in no statistic. ``eval_mode_ms`` is the part
    of ``forward_ms`` in which a module in evaluation mode kept its graph.
    ``communication_ms`` is the time that the process waited for collectives: in ``Work.wait``, the
    first 64 times in a step, and at the end of a backward after its own last gradient, as
    `DistributedDataParallel` does. What a sharded model waits for in the midst of its forward or
    backward is in these; a traced window has it. It is null until the process waits for the first.
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
    communication_ms: float | None = None
    eval_mode_ms: float = 0.0


PHASES = ("input", "forward", "backward", "optimizer", "evaluation", "communication", "other")
"""Parts of a step: its ``…_ms`` sum to ``wall_ms``, unless the device runs behind the host.
Communication that is unknown is in the other parts."""


def step_phases(step: JobStep) -> dict[str, float]:
    """Return the milliseconds of each phase."""
    return {name: getattr(step, f"{name}_ms") or 0.0 for name in PHASES}


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


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code at which its main thread was sampled, after the warm-up.

    ``place`` is its file's name and number, ``text`` the expression that ran, ``function`` the one
    that has it, ``callee`` the function of torch or a package that it called; empty if it called
    C alone. ``phase`` is one of `PHASES`. ``kind`` is empty, or what torch did there: ``save``,
    ``print``, ``compile``, ``recompute``, ``wait`` for other ranks, ``ddp``; or ``branch`` on a
    value, ``python`` for bytecode that calls nothing, or ``before`` if Python's lock was held
    until there: what ran came before it; ``gc`` if that was the garbage collector. ``share`` is of
    all samples of the steps.
    """

    place: str
    text: str
    function: str
    callee: str
    phase: str
    kind: str
    samples: int
    share: float


class JobCompilation(msgspec.Struct, frozen=True, kw_only=True):
    """Compilations of one function by torch.compile; ``steps`` are those in which they began.

    ``again_ms`` is the time of all but the first, ``reason`` and ``failure`` of the last that has
    one.
    """

    function: str
    place: str
    steps: list[int]
    total_ms: float
    again_ms: float
    reason: str = ""
    failure: str = ""


class JobOptimizer(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer; ``idle_…`` is of parameters that had no gradient when it stepped.

    ``foreach`` and ``fused`` are as it was made; null is torch's choice.
    """

    name: str
    tensors: int
    elements: int
    idle_tensors: int
    idle_elements: int
    foreach: bool | None
    fused: bool | None
    devices: list[str]


class JobHost(msgspec.Struct, frozen=True, kw_only=True):
    """What the Python of one rank did, by ``samples`` of its main thread after the warm-up.

    ``pause_share`` is the part of the steps in which garbage was collected, ``resident`` pairs of
    step and resident bytes of the process, ``breaks`` reasons of graph breaks with their counts.
    ``finds_unused`` is the setting of DistributedDataParallel, null without it;
    ``exchange_share`` the part of the samples inside of backward passes in which it was to
    exchange gradients. ``processor_share`` is the processor time of the sampling thread.
    """

    rank: int
    samples: int
    lines: list[JobLine] = []
    pauses: int = 0
    full_pauses: int = 0
    pause_share: float | None = None
    longest_pause_ms: float | None = None
    resident: list[tuple[int, int]] = []
    compilations: list[JobCompilation] = []
    breaks: dict[str, int] = {}
    optimizers: list[JobOptimizer] = []
    finds_unused: bool | None = None
    exchange_share: float | None = None
    processor_share: float | None = None


class WatchedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A command that ran unchanged while its steps were recorded.

    ``signal`` is the number of the one that ended it, else 0, and ``exit_code`` is then 128 more,
    as in a shell. ``step`` is
    the wall time after the warm-up, of the slowest rank step by step; null without one.
    ``input_share`` is the part of those steps in which that rank waited for input. ``steps`` are
    the last `MAX_STEPS` of each rank, ``total_steps`` all of one rank. ``processes`` imported torch
    or ran steps. ``hosts`` are by rank.
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
    hosts: list[JobHost] = []

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
