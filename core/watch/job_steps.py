"""Marks of a watched process, read and divided into steps."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import fsum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sysbench.core.record.job import JobLoader, JobStep, JobWindow
from sysbench.core.storage import UNREADABLE_JSON, open_regular


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The process behind a file of marks; ``epoch_ns`` is the time since the epoch at clock 0."""

    pid: int
    host: str
    rank: int | None = None
    world_size: int | None = None
    python: str = ""
    torch: str = ""
    program: str = ""
    epoch_ns: int = 0
    device: str = "cpu"
    device_name: str = ""


class StepMark(NamedTuple):
    """One part of a step; ``kind`` and ``facts`` are those of `step_recorder.Recorder`."""

    kind: str
    start_ns: int
    end_ns: int
    device_ns: int | None
    facts: tuple[Any, ...]

    @property
    def ms(self) -> float:
        """Time on the device, or the host's."""
        spent = self.end_ns - self.start_ns if self.device_ns is None else self.device_ns
        return spent / 1e6


_FACTS = msgspec.json.Decoder(tuple[str, ProcessFacts])
_MARK = msgspec.json.Decoder(list[str | int | bool | None])
MAX_LINE_BYTES = 2**16
CHUNK_BYTES = 2**22


class MarkFile:
    """A growing file of marks of one process.

    Attributes:
        facts: Of the process; None until the file has a whole line.
        problem: Error of the recorder in that process; empty if it had none.
        unreadable: Lines that are no marks.
    """

    def __init__(self, path: Path, inside: Path) -> None:
        self.path = path
        self.facts: ProcessFacts | None = None
        self.problem = ""
        self.unreadable = 0
        self._inside = inside
        self._offset = 0
        self._rest = b""

    def read(self) -> Iterator[StepMark]:
        """Yield the marks since the last call; raises DamagedFileError for what is no file."""
        with open_regular(self.path, inside=self._inside) as file:
            file.seek(self._offset)
            while data := file.read(CHUNK_BYTES):
                self._offset += len(data)
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    yield from self._marks_in(line)
                self._rest = self._rest[:MAX_LINE_BYTES]

    def _marks_in(self, line: bytes) -> Iterator[StepMark]:
        try:
            if self.facts is None:
                _, self.facts = _FACTS.decode(line)
                return
            kind, *rest = _MARK.decode(line)
            if kind == "error":
                self.problem = str(rest[0])
                return
            start, end, device, *facts = rest
            if not (isinstance(start, int) and isinstance(end, int) and end >= start):
                raise ValueError(line)
            device_ns = device if isinstance(device, int) else None
            yield StepMark(str(kind), start, end, device_ns, tuple(facts))
        except (ValueError, *UNREADABLE_JSON):
            self.unreadable += 1


PROVISIONAL_ENDS = 8
LEARNED_ENDS = 64
"""Optimizer steps after which the pattern of several optimizers is known, first and finally."""
PARTS = {
    "i": "input_ms",
    "f": "forward_ms",
    "b": "backward_ms",
    "o": "optimizer_ms",
    "": "evaluation_ms",
    "c": "communication_ms",
}
"""Kinds of marks whose time is a part of a step."""


class StepFold:
    """Takes the marks of one process in order; ``steps`` are those so far.

    A step ends with a call of the function that the user named (``s``), else with the update of a
    gradient scaler, which also comes when the scaler held the optimizer back, else with a backward
    that ran optimizers inside of it, else with the last optimizer of the repeating pattern. The
    pattern is not known before it has repeated: the first marks are kept, and divided again if it
    turns out to be another one.
    """

    def __init__(self, rank: int, epoch_ns: int) -> None:
        self.rank = rank
        self.epoch_ns = epoch_ns
        self.steps: list[JobStep] = []
        self._waits: defaultdict[tuple[str, int | None], list[StepMark]] = defaultdict(list)
        self._communicates = False
        self._windows: list[StepMark] = []
        self._kept: list[StepMark] = []
        self._ends = 0
        self._is_final = False
        self._divider: _Divider | None = None

    @property
    def traces(self) -> list[str]:
        """Names of the traces of its windows."""
        names = [str(mark.facts[1]) for mark in self._windows]
        return [name for name in names if name.startswith("window-")]

    @property
    def windows(self) -> list[JobWindow]:
        """Traced steps, and what tracing cost: their time beyond that of the median step."""
        untraced = [step.wall_ms for step in self.steps if not step.traced]
        rows = []
        for mark in self._windows:
            slowed = [step for step in self.steps if self._is_in(step, mark)]
            cost = fsum(step.wall_ms for step in slowed) - len(slowed) * (
                statistics.median(untraced) if untraced else 0.0
            )
            rows.append(
                JobWindow(
                    rank=self.rank,
                    step=slowed[0].step if slowed else 0,
                    count=int(mark.facts[0]),
                    trace=str(mark.facts[1]),
                    cost_ms=cost if untraced and slowed else None,
                )
            )
        return rows

    def _is_in(self, step: JobStep, window: StepMark) -> bool:
        start_ns = step.start_ns - self.epoch_ns
        return start_ns < window.end_ns and start_ns + 1e6 * step.wall_ms > window.start_ns

    @property
    def loaders(self) -> list[JobLoader]:
        """Loaders that the process waited for, the longest wait first."""
        rows = [
            JobLoader(
                rank=self.rank,
                place=place,
                workers=workers,
                # The last time the loader is asked it has no batch.
                waits=sum(mark.facts[2:3] != (False,) for mark in waits),
                input_ms=_sum(waits),
            )
            for (place, workers), waits in self._waits.items()
        ]
        return sorted(rows, key=lambda row: -row.input_ms)

    def take(self, mark: StepMark) -> None:
        if mark.kind == "w":
            self._windows.append(mark)
            self.steps = [self._as_traced(step) for step in self.steps]
            return
        if mark.kind == "i":
            self._waits[(str(mark.facts[0]), mark.facts[1])].append(mark)
        self._communicates |= mark.kind == "c"
        if not self._is_final:
            is_end = mark.kind in ("o", "u", "s")
            self._ends += is_end
            if is_end and self._ends >= PROVISIONAL_ENDS:
                self._learn([*self._kept, mark])
            self._kept.append(mark)
            if self._ends >= LEARNED_ENDS:
                self._is_final, self._kept = True, []
        self._add(mark)

    def finish(self) -> None:
        """Divide what was kept; call it at the end of the process."""
        if not self._is_final:
            self._learn(self._kept)
            self._is_final, self._kept = True, []

    def _learn(self, marks: Sequence[StepMark]) -> None:
        """Divide the kept marks again if these marks have another rule than the last ones."""
        divider = _Divider(marks)
        if self._divider is not None and divider.rule == self._divider.rule:
            return
        self._divider, self.steps = divider, []
        for mark in self._kept:
            self._add(mark)

    def _add(self, mark: StepMark) -> None:
        if self._divider is None:
            return
        marks = self._divider.take(mark)
        if marks is not None:
            self.steps.append(self._as_traced(self._step(*marks)))

    def _as_traced(self, step: JobStep) -> JobStep:
        if not self._windows:
            return step
        is_traced = any(self._is_in(step, window) for window in self._windows)
        return msgspec.structs.replace(step, traced=True) if is_traced else step

    def _step(self, began_ns: int, marks: Sequence[StepMark]) -> JobStep:
        end_ns = marks[-1].end_ns
        wall_ms = (end_ns - began_ns) / 1e6
        kinds = [mark.kind for mark in marks]
        micro_batches = kinds.count("b")
        parts: dict[str, Any] = dict.fromkeys(PARTS.values(), 0.0)
        inside: list[tuple[int, float]] = []
        forward: list[StepMark] = []
        last_optimizer: StepMark | None = None
        # A mark comes after those inside of it, whose times it includes: an optimizer that calls a
        # closure has a forward and a backward.
        for mark in marks:
            if mark.kind not in PARTS:
                continue
            start_ns, ms = mark.start_ns, mark.ms
            alone = ms
            while inside and inside[-1][0] >= start_ns:
                alone -= inside.pop()[1]
            inside.append((start_ns, ms))
            name = PARTS[mark.kind]
            if mark.kind == "f":
                if mark.facts[0] or not micro_batches:
                    forward.append(mark)
                else:
                    name = "evaluation_ms"
            elif mark.kind == "o":
                last_optimizer = mark
            parts[name] += max(0.0, alone)
        rest_ms = max(0.0, wall_ms - sum(parts.values()))
        communication_ms = parts.pop("communication_ms")
        memory = (None, None, None)
        if marks[-1].kind == "s":
            memory = marks[-1].facts
        elif last_optimizer is not None:
            memory = last_optimizer.facts[2:5]
        return JobStep(
            step=len(self.steps),
            rank=self.rank,
            start_ns=began_ns + self.epoch_ns,
            wall_ms=wall_ms,
            other_ms=rest_ms,
            allocated_bytes=memory[0],
            peak_bytes=memory[1],
            reserved_bytes=memory[2],
            tokens=_total(mark.facts[1] for mark in forward),
            samples=_total(mark.facts[2] for mark in forward),
            micro_batches=micro_batches,
            skipped=bool(micro_batches) and last_optimizer is None,
            communication_ms=communication_ms if self._communicates else None,
            eval_mode_ms=fsum(mark.ms for mark in forward if mark.facts[3:4] == (False,)),
            **parts,
        )


class _Divider:
    """Collects marks until one ends a step."""

    def __init__(self, marks: Sequence[StepMark]) -> None:
        kinds = {mark.kind for mark in marks}
        optimizers = [mark for mark in marks if mark.kind == "o"]
        if "s" in kinds or "u" in kinds:
            self.rule: tuple[str, object] = ("s" if "s" in kinds else "u", 1)
        elif any(mark.facts[1] for mark in optimizers):
            self.rule = ("b", 1)
        else:
            self.rule = ("o", pattern([mark.facts[0] for mark in optimizers]))
        self._began_ns: int | None = None
        self._open: list[StepMark] = []
        self._seen = 0

    def take(self, mark: StepMark) -> tuple[int, list[StepMark]] | None:
        """Add a mark; return the step that it ends, with the time at which that began."""
        if self._began_ns is None:
            self._began_ns = mark.start_ns
        self._open.append(mark)
        if not self._ends_step(mark):
            return None
        # The mark that ends the first step may have begun before those inside of it.
        step = (min(self._began_ns, mark.start_ns), self._open)
        self._began_ns, self._open = mark.end_ns, []
        return step

    def _ends_step(self, mark: StepMark) -> bool:
        kind, rule = self.rule
        if kind == "b":
            return mark.kind == "b" and any(other.kind == "o" for other in self._open)
        if mark.kind != kind:
            return False
        if isinstance(rule, int):
            self._seen += 1
            return self._seen % rule == 0
        return bool(mark.facts[0] == rule[0]) if isinstance(rule, tuple) else True


def pattern(numbers: Sequence[int]) -> int | tuple[int]:
    """Return the number of optimizer steps in a training step.

    It is the length of the shortest sequence that repeats from the first step on, and twice at
    least, and 1 if optimizers follow one another without return. Otherwise a training step ends
    with the optimizer that steps least often: its number is returned in a tuple.
    """
    for length in range(1, len(numbers) // 2 + 1):
        if all(a == b for a, b in zip(numbers, numbers[length:], strict=False)):
            return length
    if len(numbers) == len(set(numbers)):
        return max(1, len(numbers))
    runs = [number for number, _ in groupby(numbers)]
    if len(runs) == len(set(runs)):
        return 1
    counts = Counter(numbers)
    return (min(counts, key=lambda number: (counts[number], -number)),)


def _sum(marks: Iterable[StepMark]) -> float:
    return fsum(mark.ms for mark in marks)


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None if there is none, or one of them is unknown."""
    known = [*counts]
    return sum(count or 0 for count in known) if known and None not in known else None
