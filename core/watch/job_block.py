"""Blocks of the record of a watched command: sums of its steps, and what its recorder wrote."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import fsum
from pathlib import Path
from typing import NamedTuple

import msgspec

from sysbench.core.compare.statistics import MIN_MEASURED, NEWEST, settled, spread
from sysbench.core.errors import DamagedFileError
from sysbench.core.record.events import RankReading
from sysbench.core.record.job import (
    MAX_STEPS,
    PHASES,
    JobCompilation,
    JobHost,
    JobLine,
    JobLoader,
    JobOptimizer,
    JobRank,
    JobStep,
    JobWindow,
    WatchedJob,
    step_phases,
)
from sysbench.core.record.timing import AUTO_WARMUP, Timing
from sysbench.core.storage import open_regular

MAX_LINES = 60
MAX_TEXT = 120
MAX_SOURCE_BYTES = 2**22
MAX_BYTES = 2**24
PHASE_OF = {"i": "input", "f": "forward", "b": "backward", "o": "optimizer", "": "other"}


class LineRow(NamedTuple):
    bucket: int
    phase: str
    tag: str
    file: str
    line: int
    columns: tuple[int, int] | None
    function: str
    opcode: str
    callee: str
    samples: int


class PauseRow(NamedTuple):
    bucket: int
    collections: int
    ns: int
    full: int
    longest_ns: int


class CompilationRow(NamedTuple):
    function: str
    file: str
    line: int
    start_us: int
    end_us: int
    reason: str
    failure: str


class OptimizerRow(JobOptimizer, frozen=True, array_like=True):
    """A `JobOptimizer`, by the order of its fields."""


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of `host_recorder.HostRecorder`."""

    pid: int
    lines: list[LineRow] = []
    pauses: list[PauseRow] = []
    points: list[tuple[int, int]] = []
    compilations: list[CompilationRow] = []
    breaks: dict[str, int] = {}
    optimizers: list[OptimizerRow] = []
    parallel: tuple[bool, int, int] | None = None
    processor_ms: float = 0.0
    failure: str = ""


def read_host_facts(folder: Path, inside: Path) -> dict[int, HostFacts]:
    """Return the facts of each process by its id; raises DamagedFileError for what is no file."""
    found = {}
    for path in sorted(folder.glob("*.host")):
        with open_regular(path, inside=inside) as file:
            facts = msgspec.json.decode(file.read(MAX_BYTES), type=HostFacts)
        found[facts.pid] = facts
    return found


def host_block(facts: HostFacts, rank: int, steps: Sequence[JobStep], warmup: int) -> JobHost:
    """Sum up a process over its steps after the warm-up."""
    first, end = max(1, warmup), len(steps)
    rows = [row for row in facts.lines if first <= row.bucket < end]
    samples = sum(row.samples for row in rows)
    walls_ms = {number: step.wall_ms for number, step in enumerate(steps)}
    pauses = [row for row in facts.pauses if first <= row.bucket < end]
    wall_ms = fsum(walls_ms[number] for number in range(first, end))
    all_ms = fsum(walls_ms.values())
    pause_ms = fsum(row.ns for row in pauses) / 1e6
    exchanging, saving = facts.parallel[1:] if facts.parallel else (0, 0)
    return JobHost(
        rank=rank,
        samples=samples,
        lines=_lines(rows, samples),
        pauses=sum(row.collections for row in pauses),
        full_pauses=sum(row.full for row in pauses),
        pause_share=min(1.0, pause_ms / wall_ms) if wall_ms else None,
        longest_pause_ms=max((row.longest_ns / 1e6 for row in pauses), default=None),
        resident=list(facts.points),
        compilations=_compilations(facts.compilations, steps),
        breaks=facts.breaks,
        optimizers=[JobOptimizer(**msgspec.structs.asdict(row)) for row in facts.optimizers],
        finds_unused=facts.parallel[0] if facts.parallel else None,
        exchange_share=exchanging / (exchanging + saving) if exchanging + saving else None,
        processor_share=facts.processor_ms / all_ms if all_ms else None,
    )


def _lines(rows: Sequence[LineRow], samples: int) -> list[JobLine]:
    counts: defaultdict[LineRow, int] = defaultdict(int)
    for row in rows:
        counts[row._replace(bucket=0, samples=0)] += row.samples
    largest = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0].file, pair[0].line))
    sources = {row.file: _source(row.file) for row, _ in largest[:MAX_LINES]}
    return [
        JobLine(
            place=f"{Path(row.file).name}:{row.line}" if row.file else "",
            text=_text(sources[row.file], row),
            function=row.function,
            callee=row.callee,
            phase=PHASE_OF.get(row.phase, "other"),
            kind=_kind_of(row),
            samples=count,
            share=count / samples,
        )
        for row, count in largest[:MAX_LINES]
    ]


def _kind_of(row: LineRow) -> str:
    """Its tag, ``branch`` on a value, or ``python`` for bytecode that calls nothing; else empty."""
    opcode = row.opcode if row.tag in ("", "before") and not row.callee else ""
    if ("JUMP" in opcode and "IF" in opcode) or opcode in ("TO_BOOL", "UNARY_NOT"):
        return "branch" if not row.tag else "python"
    return row.tag if "CALL" in opcode or not opcode else "python"


def _source(file: str) -> list[bytes]:
    """Lines of a source file; none if it is gone, as that of a notebook's cell."""
    try:
        with open_regular(Path(file)) as source:
            return source.read(MAX_SOURCE_BYTES).splitlines()
    except (OSError, DamagedFileError):
        return []


def _text(source: Sequence[bytes], row: LineRow) -> str:
    if not 0 < row.line <= len(source):
        return ""
    line = source[row.line - 1]
    part = line[slice(*row.columns)] if row.columns else line.strip()
    return part.decode(errors="replace")[:MAX_TEXT]


def _compilations(rows: Sequence[CompilationRow], steps: Sequence[JobStep]) -> list[JobCompilation]:
    functions: defaultdict[tuple[str, str, int], list[CompilationRow]] = defaultdict(list)
    for row in rows:
        functions[row.function, row.file, row.line].append(row)
    blocks = []
    for (function, file, line), made in functions.items():
        spent = [max(0, row.end_us - row.start_us) / 1e3 for row in made]
        blocks.append(
            JobCompilation(
                function=function,
                place=f"{Path(file).name}:{line}",
                steps=[_step_at(row.start_us * 1000, steps) for row in made],
                total_ms=fsum(spent),
                again_ms=fsum(spent[1:]),
                reason=next((row.reason for row in reversed(made) if row.reason), ""),
                failure=next((row.failure for row in reversed(made) if row.failure), ""),
            )
        )
    return sorted(blocks, key=lambda block: -block.total_ms)


def _step_at(time_ns: int, steps: Sequence[JobStep]) -> int:
    """Return the number of the step that ran at a time since the epoch."""
    return sum(step.start_ns + 1e6 * step.wall_ms <= time_ns for step in steps)


def host_blocks(
    facts: Mapping[int, HostFacts],
    pids: Mapping[int, int],
    steps: Mapping[int, Sequence[JobStep]],
    warmup: int,
) -> list[JobHost]:
    """Return the block of each rank that has steps; ``pids`` has the process of each rank."""
    return [
        host_block(facts[pids[rank]], rank, rows, warmup)
        for rank, rows in steps.items()
        if pids.get(rank) in facts
    ]


NO_STEPS = (
    "no process of the command imported torch: one of `python -I`, `-E` or `-S`, in a container, "
    "or in another language cannot be watched"
)
NO_OPTIMIZER = "torch was imported, but no optimizer stepped"


def warmup_steps(walls_ms: Sequence[float]) -> int:
    """Return the number of first steps that are unlike the rest.

    The rule is that of a run's warm-up; a command that ends before it has enough steps for an
    interval has only its first step left out.
    """
    least, most = AUTO_WARMUP
    count = next(
        (n for n in range(least, min(most, len(walls_ms))) if settled(walls_ms[1:n])),
        min(most, len(walls_ms)),
    )
    return count if len(walls_ms) - count >= MIN_MEASURED else min(1, max(0, len(walls_ms) - 1))


def slowest_steps(steps: Mapping[int, Sequence[JobStep]]) -> list[JobStep]:
    """Return step by step that of the slowest rank, as far as every rank has one.

    Steps that a profiler slowed down on any rank are left out.
    """
    rows = [row for row in zip(*steps.values(), strict=False) if not any(s.traced for s in row)]
    return [max(row, key=lambda step: step.wall_ms) for row in rows]


def rank_reading(steps: Sequence[JobStep], held_bytes: int | None) -> RankReading:
    """Sum up the newest steps of a rank; phases that it never had are left out."""
    newest = [step for step in steps[-NEWEST:] if not step.traced] or steps[-1:]
    parts = [step_phases(step) for step in newest]
    means = {name: fsum(part[name] for part in parts) / len(parts) for name in PHASES}
    last = steps[-1]
    return RankReading(
        rank=last.rank,
        steps=len(steps),
        step_ms=fsum(step.wall_ms for step in newest) / len(newest),
        phases_ms={name: mean for name, mean in means.items() if mean},
        held_bytes=held_bytes if last.allocated_bytes is None else last.allocated_bytes,
        peak_bytes=last.peak_bytes,
    )


def job_block(
    command: Sequence[str],
    exit_code: int | None,
    signal: int,
    wall_ms: float,
    ranks: Sequence[JobRank],
    steps: Mapping[int, Sequence[JobStep]],
    loaders: Sequence[JobLoader] = (),
    windows: Sequence[JobWindow] = (),
) -> WatchedJob:
    """Sum up a command, ended (with its code) or not.

    Args:
        wall_ms: Time since it started.
        ranks: Its processes that imported torch.
        steps: Of each rank that has any.
    """
    chosen = slowest_steps(steps)
    count = warmup_steps([step.wall_ms for step in chosen])
    measured = chosen[count:]
    walls = [step.wall_ms for step in measured]
    missing = {}
    if not measured:
        missing["step"] = NO_OPTIMIZER if ranks else NO_STEPS
    return WatchedJob(
        command=list(command),
        exit_code=exit_code,
        signal=signal,
        wall_ms=wall_ms,
        world_size=max(len(steps), 1),
        ranks=[_with_steps(rank, steps.get(rank.rank, ()), count) for rank in ranks],
        steps=[step for rows in steps.values() for step in rows[-MAX_STEPS:]],
        loaders=list(loaders),
        windows=list(windows),
        total_steps=min(map(len, steps.values()), default=0),
        step=spread(walls) if walls else None,
        input_share=fsum(step.input_ms for step in measured) / fsum(walls) if walls else None,
        warmup_steps=count,
        missing=missing,
    )


def _with_steps(rank: JobRank, steps: Sequence[JobStep], warmup: int) -> JobRank:
    measured = [step for step in steps[warmup:] if not step.traced]
    waits = [step.communication_ms for step in measured if step.communication_ms is not None]
    return msgspec.structs.replace(
        rank,
        steps=len(steps),
        median_ms=statistics.median(step.wall_ms for step in measured) if measured else None,
        communication_ms=statistics.median(waits) if waits else None,
    )


def job_timing(steps: Mapping[int, Sequence[JobStep]], reason: str) -> Timing | None:
    """Return the timing block, so that a command is shown and compared as a run is.

    Args:
        reason: Why no further steps were timed.
    """
    chosen = slowest_steps(steps)
    warmup = warmup_steps([step.wall_ms for step in chosen])
    measured = chosen[warmup:]
    if not measured:
        return None
    samples = [step.wall_ms for step in measured]
    parts = [step_phases(step) for step in measured]
    phases = {name: [part[name] for part in parts] for name in PHASES}
    phases = {name: values for name, values in phases.items() if any(values)}
    timing = wall_timing(samples, reason)
    tokens = _tokens_per_step(steps, warmup)
    missing = dict(timing.missing)
    del missing["tokens_per_second"]
    if tokens is None:
        missing["tokens_per_second"] = "no input of its module is a batch of token ids"
    return msgspec.structs.replace(
        timing,
        of_command=False,
        phases={name: spread(values) for name, values in phases.items()},
        first_step_ms=chosen[0].wall_ms,
        warmup_ms=[one.wall_ms for one in chosen[:warmup]],
        warmup_settled=settled([one.wall_ms for one in chosen[1:warmup]]),
        phase_samples_ms=phases,
        tokens_per_second=tokens / timing.step.median_ms * 1e3 if tokens is not None else None,
        missing=missing,
    )


def wall_timing(samples: Sequence[float], reason: str) -> Timing:
    """Return the timing block of wall times in milliseconds, such as that of a whole command."""
    step = spread(samples)
    missing = dict.fromkeys(
        ("mfu", "model_flops", "tflops"), "the FLOPs of a watched command are not counted"
    )
    missing["issue"] = "a watched command is never synchronised"
    missing |= dict.fromkeys(
        ("loss_start", "loss_first", "loss_last"), "a watched command keeps its loss"
    )
    missing["throttled"] = "its counters were not read"
    missing["tokens_per_second"] = "the wall time of a whole command"
    return Timing(
        clock="host",
        step=step,
        phases={},
        issue=None,
        wall_ms=step.mean_ms,
        first_step_ms=samples[0],
        warmup_ms=[],
        warmup_settled=True,
        samples_ms=list(samples),
        phase_samples_ms={},
        stop_reason=reason,
        settled=True,  # nobody asked for a precision
        tokens_per_second=None,
        model_flops=None,
        tflops=None,
        mfu=None,
        missing=missing,
        of_command=True,
    )


def _tokens_per_step(steps: Mapping[int, Sequence[JobStep]], warmup: int) -> float | None:
    """Median over the steps of the tokens of all ranks; None if they are unknown."""
    sums = [
        [step.tokens for step in row]
        for number, row in enumerate(zip(*steps.values(), strict=False))
        if number >= warmup
    ]
    known = [sum(count or 0 for count in row) for row in sums if None not in row]
    return statistics.median(known) if known and len(known) == len(sums) else None
