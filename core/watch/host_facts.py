"""Read what `core/watch/hook/host_recorder.py` wrote of a process: its block of the record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import fsum
from pathlib import Path
from typing import NamedTuple

import msgspec

from sysbench.core.errors import DamagedFileError
from sysbench.core.record.job import (
    JobCompilation,
    JobHost,
    JobLine,
    JobOptimizer,
    JobStep,
)
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
