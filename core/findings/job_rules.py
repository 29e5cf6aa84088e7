"""Rules on the steps of a watched command."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from math import fsum

from sysbench.core.formatting import counted, format_bytes, format_duration, percent
from sysbench.core.record.job import PHASES, JobStep, WatchedJob, step_phases
from sysbench.core.record.record import Finding, Record

MIN_SHARE = 0.05
"""Share of a step below which a cause is not named."""
SLOW_STEP = 2.0
"""A step is slow if it takes this many times the median."""
MIN_SLOW_STEPS = 3
MIN_GROWTH_STEPS = 12
GROWS_IN = 0.8
"""Share of the steps in which memory that grows is larger than before."""


def command_failed(record: Record) -> Finding | None:
    job = record.job
    if job is None or not job.exit_code or record.status == "oom":
        return None
    last = record.passes[-1].detail if record.passes else ""
    return Finding(
        rule="command-failed",
        severity="problem",
        verdict=f"{last[:1].upper()}{last[1:]}.",
        why=f"{counted(job.total_steps, 'step')} in {format_duration(1e6 * job.wall_ms)}.",
        next="See its output.",
        numbers={"exit_code": job.exit_code, "steps": job.total_steps},
    )


def nothing_recorded(record: Record) -> Finding | None:
    """The command ended, and no step was seen."""
    job = record.job
    if job is None or job.total_steps or "step" not in job.missing or record.timing is not None:
        return None
    reason = job.missing["step"]
    return Finding(
        rule="no-steps",
        severity="warning",
        verdict="No step of the command was recorded.",
        why=f"{reason[:1].upper()}{reason[1:]}.",
        next="Watch the command that runs the training itself.",
    )


def input_bound(record: Record) -> Finding | None:
    """The process waits for its loader."""
    job = record.job
    if job is None or job.input_share is None or job.input_share < MIN_SHARE:
        return None
    loader = max(job.loaders, key=lambda row: row.input_ms, default=None)
    workers = loader.workers if loader is not None else None
    settings = "" if workers is None else f" (num_workers={workers})"
    place = f" Waiting at {loader.place}." if loader is not None and loader.place else ""
    if workers == 0:
        remedy = "Load in other processes: num_workers=4 and persistent_workers=True."
    else:
        remedy = "Add workers, prefetch more batches, or make loading a sample cheaper."
    median = job.step.median_ms if job.step is not None else 0.0
    return Finding(
        rule="input-bound",
        severity="warning",
        verdict=f"The loader takes {percent(job.input_share, 0)} of a step{settings}.",
        why=f"{format_duration(1e6 * job.input_share * median)} of a step of "
        f"{format_duration(1e6 * median)} pass before the batch is there.{place}",
        next=remedy,
        numbers={"input_share": job.input_share},
        cost=job.input_share,
    )


def evaluation_share(record: Record) -> Finding | None:
    job = record.job
    steps = _measured(job) if job is not None else []
    wall = fsum(step.wall_ms for step in steps)
    share = fsum(step.evaluation_ms for step in steps) / wall if wall else 0.0
    if share < MIN_SHARE:
        return None
    return Finding(
        rule="evaluation",
        severity="note",
        verdict=f"Evaluation takes {percent(share, 0)} of the time.",
        why="The module ran without gradients between the steps.",
        next="Evaluate less often, or on fewer samples.",
        numbers={"evaluation_share": share},
        cost=share,
    )


def slow_steps(record: Record) -> Finding | None:
    """Some steps take far longer, at equal distances: saving, evaluating, collecting garbage."""
    job = record.job
    steps = _measured(job) if job is not None else []
    if len(steps) < 2 * MIN_SLOW_STEPS:
        return None
    median = statistics.median(step.wall_ms for step in steps)
    slow = [step for step in steps if step.wall_ms > SLOW_STEP * median]
    extra = fsum(step.wall_ms - median for step in slow)
    share = extra / fsum(step.wall_ms for step in steps)
    gaps = {b.step - a.step for a, b in pairwise(slow)}
    if len(slow) < MIN_SLOW_STEPS or len(gaps) != 1 or share < MIN_SHARE:
        return None
    every = gaps.pop()
    phase = _grown_phase(slow, steps)
    return Finding(
        rule="slow-steps",
        severity="warning",
        verdict=f"Each {every}th step is slow, which takes {percent(share, 0)} of the time.",
        why=f"{counted(len(slow), 'step')} take {format_duration(1e6 * extra / len(slow))} more "
        f"than the median, most of it in {phase}.",
        next="See what the code does at those steps: saving, evaluating, logging.",
        numbers={"every": every, "share": share},
        cost=share,
    )


def growing_memory(record: Record) -> Finding | None:
    """Allocated bytes at the end of the steps grow and do not come back."""
    job = record.job if not record.memory or not record.memory.growth else None
    steps = _measured(job) if job is not None else []
    held = [step.allocated_bytes for step in steps if step.allocated_bytes is not None]
    if len(held) < MIN_GROWTH_STEPS:
        return None
    changes = [after - before for before, after in pairwise(held)]
    grows = sum(change > 0 for change in changes) / len(changes)
    rate = (held[-1] - held[0]) / len(changes)
    if grows < GROWS_IN or rate <= 0:
        return None
    return Finding(
        rule="growing-memory",
        severity="warning",
        verdict=f"Memory grows by {format_bytes(round(rate))} a step.",
        why=f"It was larger than before in {percent(grows, 0)} of {counted(len(changes), 'step')}: "
        f"{format_bytes(held[0])} to {format_bytes(held[-1])}.",
        next="Look for a list or cache that keeps tensors, or losses kept with their graphs.",
        numbers={"bytes_per_step": round(rate)},
    )


def _measured(job: WatchedJob) -> list[JobStep]:
    """Steps of the first rank after the warm-up, as far as the record has them."""
    ranks = sorted({step.rank for step in job.steps})
    return [
        step
        for step in job.steps
        if step.rank == ranks[0] and step.step >= job.warmup_steps and not step.traced
    ]


def _grown_phase(slow: Sequence[JobStep], steps: Sequence[JobStep]) -> str:
    """The phase whose time grows most in slow steps."""

    def median(rows: Sequence[JobStep], name: str) -> float:
        return statistics.median(step_phases(row)[name] for row in rows)

    longest = max(PHASES, key=lambda name: median(slow, name) - median(steps, name))
    return "code outside of its phases" if longest == "other" else f"its {longest}"


RULES = (
    command_failed,
    nothing_recorded,
    input_bound,
    evaluation_share,
    slow_steps,
    growing_memory,
)
