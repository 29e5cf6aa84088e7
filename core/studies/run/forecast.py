"""The time that is left of a study, forecast from the cells that ran."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...errors import DamagedFileError
from ...estimate.closed_form import predict, why_not_predicted
from ...estimate.room import AvailableMemory, available_memory, card_here, is_room
from ...machine.devices import DeviceCapacity, device_capacity
from ...spec.spec import RunSpec
from ..report.details import score_matrices_bytes
from .grid import MOST_CELLS, Cell
from .state import (
    FINAL_STATUSES,
    CellStatus,
    Entry,
    StudyDirectory,
    list_studies,
    status_of,
    unique,
)

PASS_SECONDS = 4.0
"""Guess of the start of a pass until cells ran here: a process, the import of torch, the model and
the result, without steps."""

COMPILE_SECONDS = 30.0
UNSETTLED_STEPS = 30
"""Guess of the steps of a stop rule by precision until cells ran, warm-up not counted."""

OTHER_STEPS = 5
"""Steps of a pass that does not time them."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted memory and forecast time of a cell before it runs.

    Attributes:
        peak_bytes: Predicted; None where there is no prediction.
        is_least: The peak is a lower bound: the bytes certain to be resident.
        capacity_bytes: The device's memory, or the spec's limit.
        room: What of it a step can have.
        seconds: Of all passes: their start, from cells of this home, and their steps, if the
            peak fits.
        is_timed: A cell of this kind ran here before. Else ``seconds`` covers only the start.
        is_run: False for a cell that exceeds the host's memory: the system would kill it,
            while a GPU's allocator only raises.
    """

    peak_bytes: int | None = None
    is_least: bool = False
    capacity_bytes: int | None = None
    room: AvailableMemory | None = None
    seconds: float = 0.0
    is_timed: bool = False
    is_run: bool = True

    @property
    def fits(self) -> bool | None:
        """True if the peak is sure to fit, false if sure not to; None where neither is known."""
        if self.peak_bytes is None or self.room is None:
            return None
        if self.peak_bytes > self.room.most:
            return False
        return True if is_room(self.peak_bytes, self.room) else None


class Forecaster:
    """Forecasts cells of one home; learns from entries, of which the newest counts."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._steps: dict[str, dict[float, float]] = {}
        self._starts: dict[tuple[str, ...], dict[float, float]] = {}
        self._by_family: dict[tuple[str, ...], list[float]] = {}
        self._memory: dict[str, DeviceCapacity] = {}
        for entry in entries:
            self.learn(entry)

    def learn(self, entry: Entry) -> None:
        """Take a cell that ended into account."""
        if not entry.kind or entry.work <= 0:
            return
        if entry.median_ms is not None and entry.median_ms > 0:
            self._steps.setdefault(entry.kind, {})[entry.work] = entry.median_ms
        if entry.start_seconds is not None and entry.start_seconds >= 0:
            starts = self._starts.setdefault((entry.kind, *entry.passes), {})
            starts[entry.work] = entry.start_seconds
            self._by_family.setdefault(_family(entry.kind), []).append(entry.start_seconds)

    def forecast(self, cell: Cell) -> Forecast:
        """Memory and time of one cell; nothing for one that is refused."""
        spec = cell.spec
        if spec is None:
            return Forecast(is_timed=True)
        memory = self._memory_of(spec.device)
        facts = _facts_of(spec, memory.capability)
        step_ms = _between(self._steps.get(facts.kind, {}), facts.work)
        start = self._start_seconds(spec, cell.passes, facts)
        capacity = spec.memory_limit or memory.capacity_bytes
        card = card_here(memory.capability)
        forecast = Forecast(
            peak_bytes=facts.peak_bytes,
            is_least=facts.is_least,
            capacity_bytes=capacity,
            room=None if capacity is None else available_memory(spec, capacity, card),
            seconds=start * len(cell.passes),
            is_timed=True,
        )
        if forecast.fits is False:
            is_run = spec.on_cuda or bool(spec.memory_limit)
            return (
                forecast if is_run else msgspec.structs.replace(forecast, seconds=0.0, is_run=False)
            )
        seconds = forecast.seconds + steps_seconds(spec, cell.passes, step_ms or 0.0)
        is_timed = step_ms is not None or (facts.kind, *cell.passes) in self._starts
        return msgspec.structs.replace(forecast, seconds=seconds, is_timed=is_timed)

    def _start_seconds(self, spec: RunSpec, passes: Sequence[str], facts: _Facts) -> float:
        """Seconds to start one pass: of the nearest work of its kind, else of its family."""
        starts = self._starts.get((facts.kind, *passes))
        if starts:
            return starts[min(starts, key=lambda work: abs(math.log(work / facts.work)))]
        family = self._by_family.get(_family(facts.kind))
        if family:
            return statistics.median(family)
        return PASS_SECONDS + (COMPILE_SECONDS if spec.compile != "off" else 0.0)

    def _memory_of(self, device: str) -> DeviceCapacity:
        if device not in self._memory:
            self._memory[device] = device_capacity(device)
        return self._memory[device]


def past_entries(root: Path | None = None) -> list[Entry]:
    """Entries of every study of a home, the oldest first; studies that cannot be read teach
    nothing."""
    entries: list[Entry] = []
    for study in list_studies(root):
        with suppress(DamagedFileError):
            entries += study.entries().values()
    return sorted(entries, key=lambda entry: entry.t_ns)


def kind_of(spec: RunSpec) -> str:
    """Key of the specs whose times differ only by their work."""
    compiled = "compiled" if spec.compile != "off" else "eager"
    parallel = f"{spec.parallel} x{spec.ranks}"
    return "|".join((spec.device, spec.workload, spec.precision, compiled, parallel))


def work_of(spec: RunSpec) -> float:
    """Operations of a step, in any unit that is the same for one kind; 1 where unknown."""
    return _facts_of(spec, None).work


def steps_seconds(spec: RunSpec, passes: Sequence[str], step_ms: float) -> float:
    """Seconds of the steps of these passes, warm-up included."""
    warmup = 8 if spec.warmup == "auto" else spec.warmup
    seconds = 0.0
    for name in passes:
        steps = (spec.steps or UNSETTLED_STEPS) if name == "timing" else OTHER_STEPS
        limit = math.inf if spec.steps else spec.max_seconds
        seconds += min(steps * step_ms / 1e3, limit) + warmup * step_ms / 1e3
    return seconds


class _Facts(NamedTuple):
    """Closed-form facts of a spec; ``is_least``: the peak is a lower bound."""

    kind: str
    work: float = 1.0
    peak_bytes: int | None = None
    is_least: bool = False


@lru_cache(maxsize=2 * MOST_CELLS)  # of a GPU's cells also without its capability
def _facts_of(spec: RunSpec, capability: str | None) -> _Facts:
    """Cached by spec: a screen requests all cells again whenever one ends."""
    kind = kind_of(spec)
    if spec.workload == "attention":
        work = float(spec.batch * spec.context**2 * (spec.d_model + 16))
        return _Facts(kind, work, score_matrices_bytes(spec), is_least=True)
    if spec.workload != "transformer":
        return _Facts(kind)
    prediction = predict(spec, capability)
    work = float(max(1, prediction.step_flops))
    if why_not_predicted(spec) is None:
        return _Facts(kind, work, prediction.peak_bytes)
    copies = 4 if spec.step == "train" and spec.optimizer != "sgd" else 1 + spec.has_backward
    sharded = spec.parallel == "fsdp2"
    least = None if sharded else copies * prediction.parameter_bytes
    return _Facts(kind, work, least, is_least=True)


def _family(kind: str) -> tuple[str, ...]:
    """The device, and whether it compiles: the main factors of a start."""
    return tuple(kind.split("|")[::3])


def _between(timed: Mapping[float, float], work: float) -> float | None:
    """Milliseconds of a step of this work: between two timed ones by a power law, beyond them in
    proportion to the nearest."""
    low = max((timed_work for timed_work in timed if timed_work <= work), default=None)
    high = min((timed_work for timed_work in timed if timed_work >= work), default=None)
    if low is not None and high is not None and low < high:
        share = math.log(work / low) / math.log(high / low)
        return float(timed[low] ** (1 - share) * timed[high] ** share)
    nearest = high if low is None else low
    return None if nearest is None else timed[nearest] * work / nearest


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A study at a moment.

    Attributes:
        statuses: Of each cell by its id.
        is_live: True while a runner works on it.
    """

    statuses: dict[str, CellStatus]
    is_live: bool = False

    @property
    def counts(self) -> Counter[CellStatus]:
        """Count of cells by status."""
        return Counter(self.statuses.values())

    @property
    def total(self) -> int:
        """All cells, those that share a run counted once."""
        return len(self.statuses)

    @property
    def done(self) -> int:
        """Cells that have their value, OOM and failures among them."""
        return sum(self.counts[status] for status in FINAL_STATUSES)

    @property
    def running(self) -> str | None:
        """The id of the cell that is being measured."""
        return next((id for id, status in self.statuses.items() if status == "running"), None)


def progress_of(
    cells: Sequence[Cell],
    entries: Mapping[str, Entry],
    *,
    is_live: bool = False,
    root: Path | None = None,
) -> Progress:
    """Progress of these cells."""
    newest = dict(entries)
    return Progress(
        statuses={
            cell.id: status_of(cell, newest, is_live=is_live, root=root) for cell in unique(cells)
        },
        is_live=is_live,
    )


def progress_in(directory: StudyDirectory, cells: Sequence[Cell]) -> Progress:
    """Progress of the cells of a study on disk."""
    is_live = directory.is_live()
    return progress_of(cells, directory.entries(), is_live=is_live, root=directory.root)


def seconds_left(progress: Progress, forecasts: Mapping[str, Forecast]) -> float:
    """Forecast of the cells without a value."""
    waiting = (id for id, status in progress.statuses.items() if status not in FINAL_STATUSES)
    return sum(forecasts[id].seconds for id in waiting)
