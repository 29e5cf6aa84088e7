"""Forecast the remaining time of a study from the cells that ran."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from sysbench.core.errors import DamagedFileError, SysbenchError
from sysbench.core.machine.devices import DeviceCapacity, device_capacity
from sysbench.core.machine.peaks import find_card
from sysbench.core.predict.closed_form import predict, why_not_predicted
from sysbench.core.predict.fit_grid import (
    AvailableMemory,
    available_memory,
    card_elsewhere,
    card_here,
    closed_form_fits,
)
from sysbench.core.runs.library import Entry, Library
from sysbench.core.runs.run_directory import find_run
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.details import score_matrices_bytes
from sysbench.core.studies.study_directory import (
    FINAL_STATUSES,
    CellEntry,
    StudyProgress,
    list_studies,
)
from sysbench.core.studies.study_grid import MOST_CELLS, Cell

MAX_SCALE = 8.0
"""Largest ratio of work for which times are scaled in proportion."""
UNSETTLED_STEPS = 30
"""Estimated steps of a stop rule by precision, without warm-up."""
OTHER_STEPS = 5
LONG_STUDY_SECONDS = 600.0
"""Forecast from which on a study asks before it starts."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted memory and time of a cell before it runs.

    Attributes:
        is_least: True if the peak is a lower bound.
        capacity_bytes: The device's memory, or the spec's limit.
        room: Memory available to a step.
        seconds: Of all passes; None if no similar cell ran here.
        is_run: False if the cell exceeds host memory: the system would kill it, while a GPU's
            allocator only raises.
    """

    peak_bytes: int | None = None
    is_least: bool = False
    capacity_bytes: int | None = None
    room: AvailableMemory | None = None
    seconds: float | None = None
    is_run: bool = True

    @property
    def fits(self) -> bool | None:
        """True if the peak certainly fits, False if it certainly does not, else None."""
        if self.peak_bytes is None or self.room is None:
            return None
        if self.peak_bytes > self.room.most:
            return False
        return True if closed_form_fits(self.peak_bytes, self.room) else None


class Forecaster:
    def __init__(self, entries: Iterable[CellEntry] = ()) -> None:
        self._entries: dict[tuple[str, ...], list[CellEntry]] = {}
        self._capacity = cache(device_capacity)
        for entry in entries:
            self.learn(entry)

    def learn(self, entry: CellEntry) -> None:
        has_time = entry.median_ms is None or entry.median_ms > 0
        has_start = entry.start_seconds is not None and entry.start_seconds >= 0
        if entry.kind and entry.work > 0 and has_time and has_start:
            self._entries.setdefault((entry.kind, *entry.passes), []).append(entry)

    def forecast(self, cell: Cell) -> Forecast:
        spec = cell.spec
        if spec is None:
            return Forecast(seconds=0.0)
        if cell.card:
            known = find_card(cell.card)
            memory = DeviceCapacity(known.memory_bytes, known.capability)
            card = card_elsewhere(known)
        else:
            memory = self._capacity(spec.device)
            card = card_here(memory.capability)
        capacity = spec.memory_limit or memory.capacity_bytes
        forecast = Forecast(
            capacity_bytes=capacity,
            room=None if capacity is None else available_memory(spec, capacity, card),
        )
        if cell.is_predicted:
            known_seconds = self._entries.get((predicted_kind(spec),), ())
            past = [entry.start_seconds for entry in known_seconds if entry.start_seconds]
            seconds = statistics.median(past) if past else None
            return msgspec.structs.replace(forecast, seconds=seconds)
        facts = _facts_of(spec, memory.capability)
        forecast = msgspec.structs.replace(
            forecast, peak_bytes=facts.peak_bytes, is_least=facts.is_least
        )
        if forecast.fits is False and not (spec.on_cuda or spec.memory_limit):
            return msgspec.structs.replace(forecast, seconds=0.0, is_run=False)
        seconds = self._seconds(spec, cell.passes, facts, may_end=forecast.fits is not False)
        return msgspec.structs.replace(forecast, seconds=seconds)

    def step_ms(self, spec: RunSpec) -> float | None:
        """Forecast a step from timed cells of its kind and of similar work; None without any."""
        facts = _facts_of(spec, None)
        entries = [entry for rows in self._entries.values() for entry in rows]
        alike = _closest(
            facts,
            (
                entry
                for entry in entries
                if entry.kind == facts.kind and entry.median_ms is not None
            ),
        )
        steps = [entry.median_ms / entry.work for entry in alike if entry.median_ms is not None]
        return facts.work * statistics.median(steps) if steps else None

    def _seconds(
        self, spec: RunSpec, passes: Sequence[str], facts: _Facts, *, may_end: bool
    ) -> float | None:
        """Scale the median time of cells of this kind and of the most similar work.

        If the cell may have the memory for its steps (``may_end``), those that ended early are no
        evidence.
        """
        known = self._entries.get((facts.kind, *passes), ())
        usable = (entry for entry in known if entry.status == "finished" or not may_end)
        alike = _closest(facts, usable)
        if not alike:
            return None
        steps = [entry.median_ms / entry.work for entry in alike if entry.median_ms is not None]
        start = statistics.median(entry.start_seconds or 0.0 for entry in alike)
        step_ms = facts.work * statistics.median(steps) if steps else 0.0
        return start * len(passes) + steps_seconds(spec, passes, step_ms)


def _closest(facts: _Facts, entries: Iterable[CellEntry]) -> list[CellEntry]:
    """Return the entries whose work differs least, by `MAX_SCALE` at most."""
    by_scale: dict[float, list[CellEntry]] = {}
    for entry in entries:
        by_scale.setdefault(abs(math.log(facts.work / entry.work)), []).append(entry)
    closest = min(by_scale, default=math.inf)
    return by_scale[closest] if closest <= math.log(MAX_SCALE) else []


def total_seconds(forecasts: Iterable[Forecast]) -> tuple[float | None, bool]:
    """Return the sum of the known seconds, if any, and whether some are unknown."""
    every = [forecast.seconds for forecast in forecasts]
    known = [seconds for seconds in every if seconds is not None]
    return (sum(known) if known or not every else None), len(known) < len(every)


def past_entries(root: Path | None = None) -> list[CellEntry]:
    entries: list[CellEntry] = []
    for study in list_studies(root):
        with suppress(DamagedFileError):
            entries += study.entries().values()
    return entries


MAX_RUNS = 50
"""Newest runs of the library to learn from."""


def expected_step_ms(spec: RunSpec) -> float | None:
    """Forecast a step from the runs and studies of a home; None if none did similar work."""
    runs = [entry for entry in Library().entries()[:MAX_RUNS] if entry.median_ms]
    for entry in runs:
        if entry.identity == spec.identity:
            return entry.median_ms
    entries = past_entries()
    for entry in runs:
        if (entry.device, entry.precision) != (spec.device, spec.precision):
            continue
        with suppress(SysbenchError):  # the run is damaged, or of a later version
            entries.append(_entry_of_run(entry, find_run(entry.id).header().spec))
    return Forecaster(entries).step_ms(spec)


def _entry_of_run(entry: Entry, spec: RunSpec) -> CellEntry:
    return CellEntry(
        cell=entry.id,
        status="finished",
        median_ms=entry.median_ms,
        kind=cell_kind(spec),
        work=work_of(spec),
        start_seconds=0.0,
    )


def cell_kind(spec: RunSpec) -> str:
    """Return a key of specs whose times differ only by their work."""
    compiled = "compiled" if spec.compile != "off" else "eager"
    parallel = f"{spec.parallel} x{spec.ranks}"
    # The work of these is unknown, so that any other setting is another kind.
    unknown = (spec.identity,) if spec.is_own or spec.workload == "all-reduce" else ()
    return "|".join((spec.device, spec.workload, spec.precision, compiled, parallel, *unknown))


def predicted_kind(spec: RunSpec) -> str:
    """Return a key of specs whose predictions take about as long."""
    return f"predicted|{spec.model}"


def work_of(spec: RunSpec) -> float:
    """Return the operations of a step, in any unit that is constant per kind; 1 if unknown."""
    return _facts_of(spec, None).work


def steps_seconds(spec: RunSpec, passes: Sequence[str], step_ms: float) -> float:
    warmup = 8 if spec.warmup == "auto" else spec.warmup
    seconds = 0.0
    for name in passes:
        steps = (spec.steps or UNSETTLED_STEPS) if name == "timing" else OTHER_STEPS
        # A step that begins within the limit is finished.
        limit = math.inf if spec.steps else spec.max_seconds + step_ms / 1e3
        seconds += min(steps * step_ms / 1e3, limit) + warmup * step_ms / 1e3
    return seconds


class _Facts(NamedTuple):
    """Closed-form facts of a spec; ``is_least`` marks a lower bound."""

    kind: str
    work: float = 1.0
    peak_bytes: int | None = None
    is_least: bool = False


@lru_cache(maxsize=2 * MOST_CELLS)  # of a GPU's cells also without its capability
def _facts_of(spec: RunSpec, capability: str | None) -> _Facts:
    """Cached, because screens request all cells again whenever one ends."""
    kind = cell_kind(spec)
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


def waiting_forecasts(
    progress: StudyProgress, forecasts: Mapping[str, Forecast]
) -> Iterator[Forecast]:
    for id, status in progress.statuses.items():
        if status not in FINAL_STATUSES:
            yield forecasts[id]
