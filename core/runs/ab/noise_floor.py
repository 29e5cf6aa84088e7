"""Rounds of one spec in two runs, interleaved, for as long as the time allows.

`runner` stops as soon as the medians are decided; a spread needs every round that the time gives,
so the rounds are taken here, through the same doors: order of the blocks, fresh processes, and
repeats of disturbed rounds.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from ...analysis.verdict.noise import Noise, Observed, noise_of
from ...errors import WorkerFailed
from ...machine.clock_lock import locked_clock
from ...machine.clocks import host_tick_ns, processor_mhz
from ...record.environment import device_name, torch_version
from ...record.events import AnyEvent, PassStarted, StageEntered, TelemetrySampled
from ...record.record import Record
from ...spec.models import CUSTOM
from ...spec.spec import RunSpec
from ...storage import locked
from ..records import load_record
from ..supervisor import Cancellation, add_round, disturb_round
from .disturbance import MOST_REPEATS, disturbance
from .experiment import ExperimentDirectory, Side
from .noise import NoiseFloor
from .runner import RoundFinished, RoundStarting

ROUND_SECONDS = 2.0
"""Time that a round measures at most: a floor wants many processes rather than long ones."""

Taken = RoundStarting | RoundFinished | AnyEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """What is done to a round's process from outside, and undone after it.

    Attributes:
        environ: Variables that it starts with.
        cores: Processors that it is pinned to; empty: those of this process.
        clock: GPU as NVML counts, and the MHz at which its SM clock is held.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    cores: frozenset[int] = frozenset()
    clock: tuple[int, int] | None = None


UNTREATED = Treatment()


def default_model(device: str) -> str:
    """Preset that is measured unless another is named: small enough for many rounds."""
    return "cs336-2025/small" if device.startswith("cuda") else "tiny"


class Measurement:
    """Rounds of an experiment's two sides under way.

    Attributes:
        failed: Why it cannot go on; empty while it can.
        seconds: Time that it has taken.
    """

    def __init__(
        self,
        directory: ExperimentDirectory,
        *,
        treated: Treatment = UNTREATED,
        wait: bool = True,
        cancel: Cancellation | None = None,
    ) -> None:
        """Prepare; ``treated`` is done to B's rounds, ``wait`` and ``cancel`` are `add_round`'s."""
        self.directory = directory
        self.failed = ""
        self.seconds = 0.0
        self._plan = directory.experiment()
        self._treated = treated
        self._wait = wait
        self._cancel = cancel or Cancellation()
        self._clocks: dict[tuple[Side, int], float] = {}
        self._longest = 0.0

    def rounds(self) -> Iterator[Taken]:
        """Take rounds until the next one would exceed the experiment's minutes.

        Raises:
            DeviceBusyError: Another process works on this experiment.
            RefusedError: The treatment is not permitted here.
        """
        with locked(self.directory.lock_path, who=f"experiment {self.directory.id}"):
            yield from self._blocks()

    def _blocks(self) -> Iterator[Taken]:
        began = time.monotonic()
        block = 0
        while self._goes_on(began):
            for position, side in enumerate(self._plan.order(block)):
                again = ""
                for repeats in range(MOST_REPEATS + 1):
                    if not self._goes_on(began):
                        return
                    yield RoundStarting(block=block, position=position, side=side, again=again)
                    yield from self._round(side, block, position, repeats)
                    self.seconds = time.monotonic() - began
                    rows = self.of_side(side)  # none when the side's first round was cancelled
                    again = rows[-1].round.disturbed if rows and not self.failed else ""
                    if not again:
                        break
            block += 1

    def _goes_on(self, began: float) -> bool:
        spent = time.monotonic() - began
        out_of_time = spent + self._longest > 60 * self._plan.max_minutes
        return not (self.failed or self._cancel.is_set() or out_of_time)

    def _round(self, side: Side, block: int, position: int, repeats: int) -> Iterator[Taken]:
        began = time.monotonic()
        run = self.directory.run(side)
        earlier = [row.round for row in self.observed()]
        treatment = self._treated if side == "B" else UNTREATED
        clocks: list[float] = []
        with _applied(treatment):
            events = add_round(
                run,
                experiment=self._plan.id,
                block=block,
                position=position,
                side=side,
                wait=self._wait,
                cancel=self._cancel,
            )
            measuring = False
            for event in events:
                match event:
                    case PassStarted():
                        _pin(event.pid, treatment.cores)
                    case StageEntered():
                        measuring = event.stage == "measure"
                    case TelemetrySampled() if measuring and (mhz := processor_mhz()):
                        clocks.append(mhz)
                yield event
        self._longest = max(self._longest, time.monotonic() - began)
        record = load_record(run)
        ended = record.pass_named("timing")
        rows = record.timing.rounds if record.timing else []
        if ended is None or ended.outcome != "finished" or not rows:
            if not self._cancel.is_set():
                self.failed = f"a round ended as {ended.detail if ended else record.status}"
            return
        row = rows[-1]
        if clocks:
            self._clocks[side, row.index] = statistics.median(clocks)
        why = disturbance(row, earlier)
        if why and repeats < MOST_REPEATS:
            disturb_round(run, row.index, why)
            row = self.of_side(side)[-1].round
        yield RoundFinished(side=side, round=row)

    def of_side(self, side: Side) -> list[Observed]:
        """Rounds of one side so far that are over."""
        run = self.directory.run(side)
        timing = load_record(run).timing if run.record_path.exists() else None
        rows = timing.rounds if timing else []
        return [
            Observed(round=row, clock_mhz=self._clocks.get((side, row.index)))
            for row in rows
            if row.experiment == self._plan.id
        ]

    def observed(self) -> list[Observed]:
        """Rounds of both sides so far, in the order of starting."""
        rows = [*self.of_side("A"), *self.of_side("B")]
        return sorted(rows, key=lambda row: row.round.started_ns)

    def noise(self) -> Noise | None:
        """What the rounds say; None while they are too few."""
        observed = self.observed()
        return noise_of(observed, _tick_ns(self.record("A"))) if observed else None

    def record(self, side: Side) -> Record:
        """The run of one side."""
        return load_record(self.directory.run(side))


def _tick_ns(record: Record) -> float | None:
    on_events = record.timing is not None and record.timing.clock == "cuda-events"
    return None if on_events else float(host_tick_ns())


def floor_of(measurement: Measurement, noise: Noise, spec: RunSpec) -> NoiseFloor:
    """The floor to keep.

    Raises:
        WorkerFailed: The record does not name its device.
    """
    record = measurement.record("A")
    device = device_name(record.environment)
    if device is None:
        raise WorkerFailed(f"run {record.id} does not name the device that it measured")
    (between,) = (row for row in noise.sources if row.name == "between processes")
    return NoiseFloor(
        device=device,
        measured_ns=time.time_ns(),
        subject=spec.model if spec.model != CUSTOM else "a custom model",
        identity=spec.identity,
        rounds=noise.rounds,
        between=noise.between,
        drift=noise.drift,
        inside=noise.inside,
        residuals=noise.residuals,
        sources=noise.sources,
        low=between.low,
        high=between.high,
        pair=noise.pair,
        step_ms=noise.median_ms,
        left_out=sum(bool(row.round.disturbed) for row in measurement.observed()),
        seconds=measurement.seconds,
        torch=torch_version(record.environment) or "",
        experiment=measurement.directory.id,
    )


@contextmanager
def _applied(treatment: Treatment) -> Iterator[None]:
    """Variables and clock while a process is started and measures."""
    with ExitStack() as undo:
        if treatment.clock is not None:
            undo.enter_context(locked_clock(*treatment.clock))
        before = {name: os.environ.get(name) for name in treatment.environ}
        undo.callback(_restore, before)
        os.environ.update(treatment.environ)
        yield


def _restore(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _pin(pid: int, cores: frozenset[int]) -> None:
    """Pin a process that has just started, before it has threads that would not follow."""
    if cores:
        with suppress(ProcessLookupError):  # it died at its start, which the round will tell
            os.sched_setaffinity(pid, cores)
