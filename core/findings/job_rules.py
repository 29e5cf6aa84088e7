"""Rules on the steps of a watched command."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from math import fsum
from operator import attrgetter

from sysbench.core.compare.statistics import slowest_rank
from sysbench.core.formatting import counted, format_bytes, format_duration, percent
from sysbench.core.record.job import PHASES, JobHost, JobStep, WatchedJob, step_phases
from sysbench.core.record.record import Finding, Record
from sysbench.core.trace.module_tree import group_by

MIN_SHARE = 0.05
"""Share of a step below which a cause is not named."""
HANDOVER_MS = 0.2
"""Time that the main process needs at least for a batch of another process: it takes a message from
a queue and maps the shared memory. Chosen well below the 0.9 ms that a batch took on a busy machine
with two cores. A process that loads a batch in less gains nothing from workers."""
SLOW_STEP = 2.0
"""A step is slow if it takes this many times the median."""
MIN_SLOW_STEPS = 3
MIN_GROWTH_STEPS = 12
GROWS_IN = 0.8
"""Share of the steps in which memory that grows is larger than before."""
MIN_GROWTH = 0.03
"""Least growth over the run, as a share of what was allocated at its begin."""
GROWTH_PARTS = 8
MIN_PART, MAX_JUMP = 0.2, 0.5
"""Least growth of a part that grows, over its equal share, and the largest share of all growth that
one part may have: more is a jump, such as a first use."""
MIN_GROWN_BYTES = 16 * 2**20
MAX_UNUSED = 0.50
"""Share of reserved memory that was never in use."""
MIN_UNUSED_BYTES = 64 * 2**20
MIN_FIRST_MS, MIN_FIRST_SHARE = 1000.0, 0.20
MIN_RANK_SHARE = 0.10


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
    """The process waits for its loader, and loading elsewhere would take less of its time."""
    job = record.job
    if job is None or job.input_share is None or job.input_share < MIN_SHARE:
        return None
    loader = max(job.loaders, key=lambda row: row.input_ms, default=None)
    workers = loader.workers if loader is not None else None
    if loader is not None and workers == 0 and loader.input_ms < HANDOVER_MS * loader.waits:
        return None
    settings = "" if workers is None else f" (num_workers={workers})"
    place = f" Waiting at {loader.place}." if loader is not None and loader.place else ""
    if workers == 0:
        remedy = "Load in other processes: num_workers=4 and persistent_workers=True."
    else:
        remedy = "Add workers, prefetch more batches, or make loading a sample cheaper."
    mean = job.step.mean_ms if job.step is not None else 0.0
    return Finding(
        rule="input-bound",
        severity="warning",
        verdict=f"The loader takes {percent(job.input_share, 0)} of a step{settings}.",
        why=f"{format_duration(1e6 * job.input_share * mean)} of a step of "
        f"{format_duration(1e6 * mean)} (means) pass before the batch is there.{place}",
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
    if grows < GROWS_IN or held[-1] - held[0] < MIN_GROWTH * held[0]:
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


def growing_process(record: Record) -> Finding | None:
    """The process itself grows from step to step, on the host."""
    host = _host(record.job)
    if record.job is None or host is None or growing_memory(record) is not None:
        return None
    # A profiler leaves memory behind: the part before or after it says more, whichever is longer.
    ends = [row.step + 2 * row.count for row in record.job.windows]
    begins = [row.step for row in record.job.windows]
    after = [point for point in host.resident if not ends or point[0] > max(ends)]
    before = [point for point in host.resident if begins and point[0] < min(begins)]
    slope = _slope(max(after, before, key=len))
    if slope is None:
        return None
    rate, first, last, part = slope
    return Finding(
        rule="growing-memory",
        severity="warning",
        verdict=f"The process grows by {format_bytes(round(rate))} a step, on the host.",
        why=f"{format_bytes(first)} to {format_bytes(last)} resident, in "
        f"{percent(part, 0)} of the parts of the run.",
        next="Look for a list, dict or cache that keeps tensors or losses of each step: keep "
        "loss.item() or detached copies of few of them.",
        numbers={"bytes_per_step": round(rate)},
    )


def _slope(points: Sequence[tuple[int, int]]) -> tuple[float, int, int, float] | None:
    """Bytes a step, first and last bytes, and the share of eighths of the run in which it grew.

    The first quarter is left out, in which allocators fill; the rest must grow steadily.
    """
    low, high = (points[0][0], points[-1][0]) if points else (0, 0)
    chosen = [point for point in points if point[0] >= max(2, low + (high - low) // 4)]
    steps = sorted({step for step, _ in chosen})
    if len(steps) < MIN_GROWTH_STEPS:
        return None
    bounds = [
        steps[0] + (steps[-1] - steps[0]) * part / GROWTH_PARTS for part in range(GROWTH_PARTS + 1)
    ]
    levels = [
        statistics.median(held) if held else None
        for low, high in pairwise(bounds)
        for held in [[size for step, size in chosen if low <= step <= high]]
    ]
    known = [level for level in levels if level is not None]
    changes = [after - before for before, after in pairwise(known)]
    first, last = chosen[0][1], chosen[-1][1]
    rate = (last - first) / (steps[-1] - steps[0])
    least = MIN_PART * (last - first) / GROWTH_PARTS
    grows = sum(change > least for change in changes) / len(changes) if changes else 0.0
    is_steady = bool(changes) and max(changes) < MAX_JUMP * (last - first)
    if grows < GROWS_IN or last - first < MIN_GROWN_BYTES or not is_steady:
        return None
    return rate, first, last, grows


def fragmented(record: Record) -> Finding | None:
    """The allocator reserved far more than was ever in use."""
    job = record.job
    steps = [step for step in (job.steps if job else []) if step.reserved_bytes]
    if not steps:
        return None
    last = steps[-1]
    reserved, peak = last.reserved_bytes or 0, last.peak_bytes or 0
    unused = reserved - peak
    if unused < MIN_UNUSED_BYTES or unused < MAX_UNUSED * reserved:
        return None
    return Finding(
        rule="fragmentation",
        severity="warning",
        verdict=f"{percent(unused / reserved, 0)} of the reserved memory was never in use at once: "
        f"{format_bytes(unused)} of {format_bytes(reserved)}.",
        why=f"The largest sum of allocations was {format_bytes(peak)}: free blocks of sizes "
        "that no later request fits are one cause, other streams and graph pools are others.",
        next="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or pad inputs to few sizes.",
        numbers={"share": unused / reserved, "limit": MAX_UNUSED, "bytes": unused},
    )


def evaluation_with_gradients(record: Record) -> Finding | None:
    """A module in evaluation mode keeps graphs that no backward uses."""
    job = record.job
    steps = _measured(job) if job is not None else []
    wall = fsum(step.wall_ms for step in steps)
    spent = fsum(step.eval_mode_ms for step in steps)
    trained = fsum(step.forward_ms for step in steps) - spent
    share = spent / wall if wall else 0.0
    if share < MIN_SHARE or trained <= 0:
        return None
    return Finding(
        rule="evaluation-with-gradients",
        severity="warning",
        verdict=f"A module in evaluation mode keeps gradients' graphs for "
        f"{percent(share, 0)} of the time.",
        why=f"{format_duration(1e6 * spent)} of forward passes after .eval() ran with gradients: "
        "their activations are stored, and no backward uses them.",
        next="Evaluate inside of `with torch.no_grad():` or torch.inference_mode().",
        numbers={"share": share, "limit": MIN_SHARE},
        cost=share,
    )


def first_steps(record: Record) -> Finding | None:
    """The first steps are far longer than the rest."""
    job = record.job
    if job is None or job.step is None:
        return None
    median, ranks = job.step.median_ms, sorted({step.rank for step in job.steps})
    own = [step for step in job.steps if step.rank == ranks[0] and not step.traced]
    count = 0
    for number, step in enumerate(own):
        if step.step != number or step.wall_ms < SLOW_STEP * median:
            break
        count += 1
    extra = fsum(step.wall_ms - median for step in own[:count])
    share = extra / fsum(step.wall_ms for step in own)
    if extra < MIN_FIRST_MS or share < MIN_FIRST_SHARE:
        return None
    parts = {name: fsum(step_phases(step)[name] for step in own[:count]) for name in PHASES}
    longest = max(parts, key=parts.__getitem__)
    compiled = fsum(
        row.total_ms for host in job.hosts for row in host.compilations if min(row.steps) < count
    )
    cause = (
        f" torch.compile took {format_duration(1e6 * compiled)} of them."
        if compiled > extra / 4
        else ""
    )
    return Finding(
        rule="first-steps",
        severity="note",
        verdict=f"The first {counted(count, 'step')} took {format_duration(1e6 * extra)} more than "
        f"later ones, {percent(share, 0)} of the time of all.",
        why=f"Later ones take {format_duration(1e6 * median)}; most of the first is "
        f"{'code outside of its phases' if longest == 'other' else longest}.{cause}",
        next="Leave them out when you compare. A cache that stays on disk shortens the next "
        "start: TORCHINDUCTOR_CACHE_DIR, prepared data.",
        numbers={"share": share, "limit": MIN_FIRST_SHARE, "steps": count},
        cost=share,
    )


def slow_rank(record: Record) -> Finding | None:
    """One rank computes longer than the others, which wait for it."""
    job = record.job
    steps = [step for step in job.steps if step.step >= job.warmup_steps] if job else []
    by_rank = group_by(steps, attrgetter("rank"))
    found = slowest_rank(by_rank)
    if found is None:
        return None
    slowest, late_ms = found
    wall = statistics.median(step.wall_ms for step in steps)
    share = late_ms / wall
    if share < MIN_RANK_SHARE:
        return None
    others = [step for step in steps if step.rank != slowest]
    where = _grown_phase(by_rank[slowest], others)
    return Finding(
        rule="slow-rank",
        severity="warning",
        verdict=f"Rank {slowest} is slower: the others wait for it for {percent(share, 0)} of a "
        "step.",
        why=f"It is {format_duration(1e6 * late_ms)} behind the next rank in a step of "
        f"{format_duration(1e6 * wall)}, most of it in {where}.",
        next="Give each rank the same work: equal batches, a loader of its own, no logging or "
        "saving on one rank alone within the step.",
        numbers={"rank": slowest, "share": share, "limit": MIN_RANK_SHARE},
        cost=share,
    )


def _host(job: WatchedJob | None) -> JobHost | None:
    return job.hosts[0] if job is not None and job.hosts else None


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
    growing_process,
    fragmented,
    evaluation_with_gradients,
    first_steps,
    slow_rank,
)
