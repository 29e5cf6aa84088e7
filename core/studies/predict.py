"""What a cell will take, said before it starts: memory by arithmetic, time from cells before it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from ..devices import capacity_bytes
from ..estimate.closed_form import predict, why_not_predicted
from ..spec import RunSpec
from .accounting import score_matrices_bytes
from .grid import Cell
from .state import Entry, list_studies

PASS_SECONDS = 6.0
"""To start a process, import torch, build a model and write the result, without its steps."""

COMPILE_SECONDS = 30.0
UNSETTLED_STEPS = 30
"""A stop rule by precision ends about there, warm-up not counted; a guess until cells ran."""

OTHER_STEPS = 5
"""Steps of a pass that does not time them."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a cell before it runs.

    Attributes:
        peak_bytes: Predicted; None where nothing is known.
        is_least: The peak is a lower bound: what is resident for sure.
        capacity_bytes: What it is held against: the device's memory, or the spec's limit.
        seconds: Of all its passes.
        is_timed: Steps of this kind were timed here before; else ``seconds`` is only what
            starting takes.
    """

    peak_bytes: int | None = None
    is_least: bool = False
    capacity_bytes: int | None = None
    seconds: float = 0.0
    is_timed: bool = False

    @property
    def fits(self) -> bool | None:
        """Whether the peak is within the capacity; None where one of both is unknown."""
        if self.peak_bytes is None or self.capacity_bytes is None:
            return None
        return self.peak_bytes <= self.capacity_bytes


class Forecaster:
    """Forecasts cells of one home; learns from entries."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._timed: dict[str, list[Entry]] = {}
        self._capacity: dict[str, int | None] = {}
        for entry in entries:
            self.learn(entry)

    def learn(self, entry: Entry) -> None:
        """Take a cell that ended into account."""
        if entry.median_ms and entry.kind and entry.work > 0:
            self._timed.setdefault(entry.kind, []).append(entry)

    def forecast(self, cell: Cell) -> Forecast:
        """Memory and time of one cell; nothing for one that is refused."""
        spec = cell.spec
        if spec is None:
            return Forecast(is_timed=True)
        peak, is_least = _peak(spec)
        step_ms = self._step_ms(spec)
        return Forecast(
            peak_bytes=peak,
            is_least=is_least,
            capacity_bytes=spec.memory_limit or self._capacity_of(spec.device),
            seconds=_seconds(spec, cell.passes, step_ms or 0.0),
            is_timed=step_ms is not None,
        )

    def _step_ms(self, spec: RunSpec) -> float | None:
        """From the cell of this kind whose work is nearest, in proportion."""
        alike = self._timed.get(kind_of(spec))
        if not alike:
            return None
        work = work_of(spec)
        nearest = min(reversed(alike), key=lambda entry: abs(math.log(entry.work / work)))
        return (nearest.median_ms or 0.0) * work / nearest.work

    def _capacity_of(self, device: str) -> int | None:
        if device not in self._capacity:
            self._capacity[device] = capacity_bytes(device)
        return self._capacity[device]


def past_entries(root: Path | None = None) -> list[Entry]:
    """Entries of every study of a home."""
    return [entry for study in list_studies(root) for entry in study.entries().values()]


def kind_of(spec: RunSpec) -> str:
    """What a time depends on besides the work."""
    compiled = "compiled" if spec.compile != "off" else "eager"
    parallel = f"{spec.parallel} x{spec.ranks}"
    return "|".join((spec.device, spec.workload, spec.precision, compiled, parallel))


def work_of(spec: RunSpec) -> float:
    """Operations of a step, in any unit that is the same for one kind; 1 where unknown."""
    if spec.workload == "transformer":
        return float(max(1, predict(spec).step_flops))
    if spec.workload == "attention":
        return float(spec.batch * spec.context**2 * (spec.d_model + 16))
    return 1.0


def _peak(spec: RunSpec) -> tuple[int | None, bool]:
    """Predicted bytes, and whether they are a lower bound."""
    if spec.workload == "attention":
        return score_matrices_bytes(spec), True
    if spec.workload != "transformer":
        return None, False
    if why_not_predicted(spec) is None:
        return predict(spec).peak_bytes, False
    copies = 4 if spec.step == "train" and spec.optimizer != "sgd" else 1 + spec.has_backward
    sharded = spec.parallel == "fsdp2"
    return None if sharded else copies * predict(spec).parameter_bytes, True


def _seconds(spec: RunSpec, passes: Sequence[str], step_ms: float) -> float:
    seconds = PASS_SECONDS * len(passes)
    if spec.compile != "off":
        seconds += COMPILE_SECONDS * len(passes)
    warmup = 8 if spec.warmup == "auto" else spec.warmup
    for name in passes:
        steps = (spec.steps or UNSETTLED_STEPS) if name == "timing" else OTHER_STEPS
        measuring = steps * step_ms / 1e3
        limit = math.inf if spec.steps else spec.max_seconds
        seconds += min(measuring, limit) + warmup * step_ms / 1e3
    return seconds
