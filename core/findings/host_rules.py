"""Rules on the Python of a watched command: its lines, collector, compiler and optimizers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import fsum, sqrt

from sysbench.core.formatting import counted, format_count, format_duration, percent
from sysbench.core.record.job import JobHost, JobLine, JobOptimizer, WatchedJob
from sysbench.core.record.record import Finding, Kernels, Record

MIN_SHARE = 0.05
"""Share of the steps above which a rule speaks; of samples, their interval's lower end."""
MIN_LOOP_SHARE = 0.10
MIN_LINE_SHARE = 0.20
MIN_IDLE_SHARE = 0.05
MIN_PAUSES = 5
"""The share of fewer collections, as in a short job, is no estimate."""
Z = 1.645
"""One-sided 95 %."""
MIN_SAMPLES = 10
MIN_COMPILATIONS = 3
COMPILE_LIMIT = 8
"""Graphs of one function after which torch.compile gives it up (``recompile_limit``)."""
MIN_TENSORS = 32
MIN_IDLE_PARAMETERS = 0.05
ALL_EXCHANGE = 0.95
READS_BACK = re.compile(
    r"\.(item|tolist|cpu|numpy|nonzero)\(\)|\.to\(\s*['\"]cpu|synchronize\(\)|^(float|int|bool|print)\("
)
"""Expressions that wait for the device."""
MOVES = re.compile(r"\.cpu\(\)|\.to\(\s*['\"]cpu")
"""Expressions that copy to the host: of data they are no read of a value, see `_moves_to_host`."""
SAVES = re.compile(r"\b(save\w*|dump|write_\w+|to_(csv|hdf|json|parquet|pickle))\(")
"""Expressions that write a file, by the names that libraries give to such functions."""
PRINTS = re.compile(r"^print\(|\.(info|debug|warning|write)\(")


def lower_share(count: int, samples: int) -> float:
    """Return the lower end of the one-sided 95 % interval of a share (Wilson).

    Returns 0 below `MIN_SAMPLES`, for which that end is too high.
    """
    if samples < MIN_SAMPLES:
        return 0.0
    share, z2 = count / samples, Z * Z
    middle = share + z2 / (2 * samples)
    width = Z * sqrt(share * (1 - share) / samples + z2 / (4 * samples * samples))
    return (middle - width) / (1 + z2 / samples)


def _sampled(
    job: WatchedJob | None, is_meant: Callable[[JobLine], bool], limit: float = MIN_SHARE
) -> tuple[float, list[JobLine]]:
    """Share of the steps of the rank that spends most at the lines that are meant, and the lines.

    The share is 0 if fewer samples than the limit's support it.
    """
    best: tuple[float, list[JobLine]] = (0.0, [])
    for host in job.hosts if job is not None else []:
        lines = [line for line in host.lines if is_meant(line)]
        count = sum(line.samples for line in lines)
        if lower_share(count, host.samples) >= limit and count / host.samples > best[0]:
            best = count / host.samples, lines
    return best


def _where(lines: Iterable[JobLine]) -> str:
    """``train.py:41 (loss.item())``, of the line with most samples."""
    line = max(lines, key=lambda line: line.samples)
    place = f"{line.place} ({line.text})" if line.text else line.place
    return f"before {place}" if line.kind == "before" and not _saves(line) else place


def reads_back(record: Record) -> Finding | None:
    """The loop waits for the device to read a value."""
    job = record.job
    if job is None or not any(rank.device.startswith("cuda") for rank in job.ranks):
        return None
    kernels = record.kernels
    moves = kernels is not None and _moves_to_host(kernels)
    share, lines = _sampled(
        job,
        lambda line: (
            line.kind in ("", "branch", "print")
            and not line.callee.startswith("backward")
            and (line.kind != "" or bool(READS_BACK.search(line.text)))
            and not (moves and MOVES.search(line.text))
        ),
    )
    idle = fsum(row.share for row in kernels.idle) if kernels is not None else None
    if not lines or (idle is not None and idle < MIN_IDLE_SHARE):
        return None
    of_idle = (
        f"In the traced steps the GPU is idle for {percent(idle, 0)}."
        if idle is not None
        else "Trace some steps (--window 100:3) to see how long the GPU is idle."
    )
    return Finding(
        rule="reads-back",
        severity="warning" if idle is not None else "note",
        verdict=f"The loop waits for the GPU in {percent(share, 0)} of a step, to read a value: "
        f"{_where(lines)}.",
        why=f"Until the value is there nothing more is launched. {of_idle}",
        next="Keep the value on the GPU (loss.detach()), and read it every 100 steps.",
        numbers={"share": share, "limit": MIN_SHARE, **({} if idle is None else {"idle": idle})},
        cost=min(share, idle) if idle is not None else 0.0,
    )


def _moves_to_host(kernels: Kernels) -> bool:
    """Whether copies to the host take part of the busy time; one of a value takes microseconds."""
    copied_ns = sum(row.total_ns for row in kernels.copies if row.direction == "DtoH")
    return copied_ns > MIN_SHARE * kernels.busy_ns * kernels.steps


def _finding_on_lines(
    record: Record,
    rule: str,
    is_meant: Callable[[JobLine], bool],
    verdict: str,
    why: str,
    next: str,
    limit: float = MIN_SHARE,
) -> Finding | None:
    """What takes time at some lines; ``verdict`` has places for ``share`` and ``where``."""
    share, lines = _sampled(record.job, is_meant, limit)
    if not lines:
        return None
    return Finding(
        rule=rule,
        severity="warning",
        verdict=verdict.format(share=percent(share, 0), where=_where(lines)),
        why=why,
        next=next,
        numbers={"share": share, "limit": limit},
        cost=share,
    )


def prints(record: Record) -> Finding | None:
    return _finding_on_lines(
        record,
        "prints",
        lambda line: (
            line.phase == "other"
            and (line.kind == "print" or (line.kind == "" and bool(PRINTS.search(line.text))))
        ),
        "Printing takes {share} of a step: {where}.",
        why="Formatting a tensor reads each shown element, and a terminal is slower than a step.",
        next="Print every 100 steps, and numbers in place of tensors.",
    )


def _saves(line: JobLine) -> bool:
    """Whether it saves; one that gives Python's lock up when it writes has kept it until then."""
    is_call = line.kind in ("", "before") and line.phase == "other"
    return line.kind == "save" or (is_call and bool(SAVES.search(line.text)))


def saves(record: Record) -> Finding | None:
    return _finding_on_lines(
        record,
        "checkpoint-stalls",
        _saves,
        "Saving takes {share} of the time: {where}.",
        why="The loop waits until the file is written.",
        next="Save less often, or with torch.distributed.checkpoint.async_save.",
    )


def python_loop(record: Record) -> Finding | None:
    """Code outside of the phases that holds Python's lock takes part of the step."""
    return _finding_on_lines(
        record,
        "python-loop",
        lambda line: (
            line.kind in ("python", "before") and line.phase == "other" and not _saves(line)
        ),
        "Python between the phases takes {share} of a step: {where}.",
        why="Bytecode runs there, or code in C that keeps the interpreter's lock.",
        next="Use operations on whole tensors, or do it in the loader's workers.",
        limit=MIN_LOOP_SHARE,
    )


def slow_line(record: Record) -> Finding | None:
    """One line outside of the phases takes a large part of the step."""
    job = record.job
    if job is None or any(rank.device != "cpu" for rank in job.ranks):
        return None  # such a line may wait until a queue of launches has room
    lines = [
        line
        for host in job.hosts
        for line in host.lines
        if (line.phase, line.kind) == ("other", "")
        if not PRINTS.search(line.text) and not _saves(line)
        if lower_share(line.samples, host.samples) >= MIN_LINE_SHARE
    ]
    line = max(lines, key=lambda line: line.share, default=None)
    if line is None:
        return None
    return Finding(
        rule="slow-line",
        severity="note",
        verdict=f"One line takes {percent(line.share, 0)} of a step: {_where([line])}.",
        why="It runs outside of the model's forward and backward and of the optimizer.",
        next="See whether it has to run in each step, or in this process.",
        numbers={"share": line.share, "limit": MIN_LINE_SHARE},
        cost=line.share,
    )


def recomputes(record: Record) -> Finding | None:
    """Activation checkpointing costs time while memory is free."""
    share, lines = _sampled(record.job, lambda line: line.kind == "recompute")
    if not lines or record.job is None:
        return None
    peaks = [step.peak_bytes for step in record.job.steps if step.peak_bytes is not None]
    memory = f" The peak is {max(peaks) / 2**30:.3g} GiB." if peaks else ""
    return Finding(
        rule="recomputes",
        severity="note",
        verdict=f"Activations are computed again for {percent(share, 0)} of a step.",
        why=f"Checkpointing runs forward a second time inside of backward.{memory}",
        next="If they fit into memory, leave checkpointing off, or use it for some layers only.",
        numbers={"share": share, "limit": MIN_SHARE},
        cost=share,
    )


def collects_garbage(record: Record) -> Finding | None:
    host = max(
        record.job.hosts if record.job is not None else [],
        key=lambda host: host.pause_share or 0.0,
        default=None,
    )
    if host is None or (share := host.pause_share or 0.0) < MIN_SHARE or host.pauses < MIN_PAUSES:
        return None
    return Finding(
        rule="gc-pauses",
        severity="warning",
        verdict=f"Python's garbage collector takes {percent(share, 0)} of the time.",
        why=f"{counted(host.full_pauses, 'full collection')} and "
        f"{host.pauses - host.full_pauses:,} small ones; the longest pause is "
        f"{format_duration(1e6 * (host.longest_pause_ms or 0))}.",
        next="Call gc.collect() and gc.freeze() before the loop, and gc.disable() with a "
        "collection every 1,000 steps.",
        numbers={"share": share, "limit": MIN_SHARE},
        cost=share,
    )


def recompiles(record: Record) -> Finding | None:
    """torch.compile compiles a function again and again."""
    job = record.job
    rows = [row for host in job.hosts[:1] for row in host.compilations] if job is not None else []
    rows = [row for row in rows if len(row.steps) >= MIN_COMPILATIONS]
    if job is None or not rows:
        return None
    row = max(rows, key=lambda row: row.again_ms)
    first = job.steps[0].rank if job.steps else 0
    wall = fsum(step.wall_ms for step in job.steps if step.rank == first)
    share = min(1.0, row.again_ms / wall) if wall else 0.0
    gave_up = len(row.steps) >= COMPILE_LIMIT
    if share < MIN_SHARE and not gave_up:
        return None
    limit = (
        f" From torch's default limit of {COMPILE_LIMIT} on, new shapes run eagerly."
        if gave_up
        else ""
    )
    reason = row.reason.splitlines()[0] if row.reason else "unknown"
    return Finding(
        rule="recompiles",
        severity="warning",
        verdict=f"torch.compile compiled {row.function} ({row.place}) {len(row.steps)} times, "
        f"{percent(share, 0)} of the time.",
        why=f"The last time because {reason}.{limit}",
        next="Pad inputs to few sizes, mark the dimension with torch._dynamo.mark_dynamic, or "
        "compile with dynamic=True; pass Python numbers that change as tensors.",
        numbers={"share": share, "limit": MIN_SHARE, "compilations": len(row.steps)},
        cost=share,
    )


def graph_breaks(record: Record) -> Finding | None:
    host = record.job.hosts[0] if record.job is not None and record.job.hosts else None
    count = sum(host.breaks.values()) if host is not None else 0
    if host is None or not count:
        return None
    reason = max(host.breaks, key=lambda name: host.breaks[name])
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return Finding(
        rule="graph-breaks",
        severity="note",
        verdict=f"torch.compile splits the model at {counted(count, 'graph break')}.",
        why=f"Most often: {' '.join(lines)[:160]}.",
        next="Compile with fullgraph=True to see each line; move prints, .item() and numpy out "
        "of the model.",
        numbers={"breaks": count},
    )


def _optimizers(record: Record) -> list[JobOptimizer]:
    hosts: list[JobHost] = record.job.hosts if record.job is not None else []
    return [row for host in hosts[:1] for row in host.optimizers]


def loop_optimizer(record: Record) -> Finding | None:
    """The optimizer updates one tensor after the other."""
    timing = record.timing
    if timing is None or "optimizer" not in timing.phases or not timing.step.median_ms:
        return None
    share = timing.phases["optimizer"].median_ms / timing.step.median_ms
    loops = [
        row
        for row in _optimizers(record)
        if not row.fused
        and (row.foreach is False or (row.foreach is None and row.devices != ["cuda"]))
        and row.tensors >= MIN_TENSORS
    ]
    if not loops or share < MIN_LOOP_SHARE:
        return None
    row = max(loops, key=lambda row: row.tensors)
    why = "foreach=False" if row.foreach is False else "torch's default on the CPU"
    return Finding(
        rule="loop-optimizer",
        severity="warning",
        verdict=f"The optimizer takes {percent(share, 0)} of a step: {row.name} updates "
        f"{row.tensors:,} tensors one after the other.",
        why=f"It is a loop in Python ({why}), with several operators for each tensor.",
        next=f"Make it with {row.name}(…, fused=True) or foreach=True, whichever it has.",
        numbers={"share": share, "limit": MIN_LOOP_SHARE, "tensors": row.tensors},
        cost=share,
    )


def idle_parameters(record: Record) -> Finding | None:
    """Parameters never get a gradient."""
    rows = _optimizers(record)
    idle, whole = (
        sum(getattr(row, name) for row in rows) for name in ("idle_elements", "elements")
    )
    if not whole or idle < MIN_IDLE_PARAMETERS * whole:
        return None
    host = record.job.hosts[0] if record.job is not None else None
    averaged = host is not None and host.finds_unused is not None
    cost = " DistributedDataParallel looks for them in each step." if averaged else ""
    return Finding(
        rule="unused-parameters",
        severity="warning",
        verdict=f"{percent(idle / whole, 0)} of the parameters had no gradient when the optimizer "
        f"stepped: {format_count(idle)} of {format_count(whole)}, in "
        f"{counted(sum(row.idle_tensors for row in rows), 'tensor')}.",
        why=f"They had none in the calls of the optimizer that were looked at.{cost}",
        next="If no loss depends on them, leave them out, or freeze them with requires_grad_(False)"
        + ("; then find_unused_parameters=False." if averaged else "."),
        numbers={"share": idle / whole, "limit": MIN_IDLE_PARAMETERS},
    )


def exchanges_too_often(record: Record) -> Finding | None:
    """Gradients are exchanged after each micro-batch."""
    job = record.job
    host = job.hosts[0] if job is not None and job.hosts else None
    if job is None or host is None or (host.exchange_share or 0.0) < ALL_EXCHANGE:
        return None
    counts = sorted(step.micro_batches for step in job.steps if step.step >= job.warmup_steps)
    count = counts[len(counts) // 2] if counts else 0
    if count < 2 or job.world_size < 2:
        return None
    return Finding(
        rule="exchanges-each-micro-batch",
        severity="warning",
        verdict=f"Gradients are exchanged {count} times a step, once for each micro-batch.",
        why=f"DistributedDataParallel was to exchange in {percent(host.exchange_share or 0, 0)} of "
        f"the samples inside of backward; {count - 1} of {count} exchanges are not needed.",
        next="Run all micro-batches but the last inside of `with model.no_sync():`.",
        numbers={"micro_batches": count, "share": (count - 1) / count},
    )


RULES: tuple[Callable[[Record], Finding | None], ...] = (
    reads_back,
    prints,
    saves,
    recomputes,
    python_loop,
    slow_line,
    collects_garbage,
    recompiles,
    graph_breaks,
    loop_optimizer,
    idle_parameters,
    exchanges_too_often,
)
