"""The noise doctor: measures a spec against itself, keeps the noise floor, and gives advice.

`runner` stops as soon as the medians are decided. A spread needs every round that the time gives,
so the rounds are measured here, with the same blocks, fresh processes and repeats of disturbed
rounds.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ...analysis.verdict.conditions import others_load
from ...analysis.verdict.noise import LEAST_ROUNDS, Noise, Observed, noise_of
from ...analysis.verdict.power import ROUNDS_A_BLOCK, smallest_difference
from ...analysis.verdict.records import verdict_of
from ...analysis.verdict.verdict import Verdict
from ...errors import WorkerFailed
from ...formatting import counted, percent, signed_percent
from ...machine.clocks import host_tick_ns, processor_mhz
from ...machine.neighbours import Neighbour, Neighbours
from ...record.environment import device_name, torch_version
from ...record.events import AnyEvent, StageEntered, TelemetrySampled
from ...record.record import Record
from ...spec.models import CUSTOM
from ...spec.spec import RunSpec
from ...storage import locked
from ..records import load_record
from ..supervisor import Cancellation, add_round, disturb_round
from .disturbance import MOST_REPEATS, disturbance
from .experiment import Ended, Ending, ExperimentDirectory, Side, create_experiment
from .noise import NoiseFloor, Remedy, keep_noise_floor
from .runner import RoundFinished, RoundStarting

ROUND_SECONDS = 2.0
"""Longest measurement of a round: a floor needs many processes rather than long ones."""
_BLOCKS = (3, 8, 24)
_NOTABLE_LOAD = 0.05
_NOTABLE_STOLEN_CORES = 0.02


class Finds(msgspec.Struct, frozen=True):
    """Smallest slowdown that a comparison of ``rounds`` rounds finds with a chance of 80 %."""

    rounds: int
    difference: float


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """The result.

    Attributes:
        floor: The floor, which was kept; null where too few rounds finished.
        finds: What comparisons can find on such noise.
        verdict: A against A, as any comparison is judged; null unless both sides have a round.
        rounds: Rounds that count.
        ending: How it ended.
        detail: That in a sentence.
    """

    floor: NoiseFloor | None = None
    finds: list[Finds] = []
    verdict: Verdict | None = None
    rounds: int = 0
    ending: Ending
    detail: str


def default_model(device: str) -> str:
    """Preset that is measured unless another is named: small enough for many rounds."""
    return "cs336-2025/small" if device.startswith("cuda") else "tiny"


def examine_noise(
    spec: RunSpec,
    *,
    minutes: float = 3.0,
    wait: bool = True,
    cancel: Cancellation | None = None,
    root: Path | None = None,
) -> Iterator[RoundStarting | RoundFinished | AnyEvent | Examined]:
    """Measure the noise of a spec here and keep it as the device's floor; Examined comes last.

    Fewer than 8 rounds are no floor. What was measured until a cancellation counts.

    Args:
        spec: What to measure, resolved.
        minutes: Time of the measurement.
        wait: Wait for the device if another run measures on it.
        cancel: Ends it when set.
        root: Home (default: the user's).
    """
    cancel = cancel or Cancellation()
    directory = create_experiment(spec, spec, max_minutes=minutes, purpose="noise", root=root)
    others = Neighbours()
    measurement = Measurement(directory, wait=wait, cancel=cancel)
    for item in measurement.rounds():
        if isinstance(item, RoundFinished):
            others.look()  # between two rounds, where it disturbs none
        yield item
    noise = measurement.noise()
    result = _examined(measurement, noise, cancel)
    directory.write_end(
        Ended(
            ending=result.ending,
            detail=result.detail,
            verdict=result.verdict or Verdict(verdict="not decidable", why=result.detail),
            seconds=measurement.seconds,
        )
    )
    if noise is not None:
        floor = msgspec.structs.replace(
            floor_of(measurement, noise, spec),
            remedies=advice(
                noise,
                measurement.observed(),
                others.busiest(),
                others.stolen_cores(),
                _governor(measurement.record("A")),
            ),
        )
        keep_noise_floor(floor, root)
        finds = [
            Finds(ROUNDS_A_BLOCK * blocks, difference)
            for blocks in _BLOCKS
            if (difference := smallest_difference(noise.residuals, blocks)) is not None
        ]
        result = msgspec.structs.replace(result, floor=floor, finds=finds)
    yield result


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
        wait: bool = True,
        cancel: Cancellation | None = None,
    ) -> None:
        self.directory = directory
        self.failed = ""
        self.seconds = 0.0
        self._plan = directory.experiment()
        self._wait = wait
        self._cancel = cancel or Cancellation()
        self._clocks: dict[tuple[Side, int], float] = {}
        self._longest = 0.0

    def rounds(self) -> Iterator[RoundStarting | RoundFinished | AnyEvent]:
        """Measure rounds until the next one would exceed the experiment's minutes.

        Raises:
            DeviceBusyError: Another process works on this experiment.
        """
        with locked(self.directory.lock_path, who=f"experiment {self.directory.id}"):
            yield from self._blocks()

    def _blocks(self) -> Iterator[RoundStarting | RoundFinished | AnyEvent]:
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

    def _round(
        self, side: Side, block: int, position: int, repeats: int
    ) -> Iterator[RoundFinished | AnyEvent]:
        began = time.monotonic()
        run = self.directory.run(side)
        earlier = [row.round for row in self.observed()]
        clocks: list[float] = []
        measuring = False
        for event in add_round(
            run,
            experiment=self._plan.id,
            block=block,
            position=position,
            side=side,
            wait=self._wait,
            cancel=self._cancel,
        ):
            match event:
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
        """The noise of the rounds; None while they are too few."""
        observed = self.observed()
        if not observed:
            return None
        timing = self.record("A").timing
        on_events = timing is not None and timing.clock == "cuda-events"
        return noise_of(observed, None if on_events else float(host_tick_ns()))

    def record(self, side: Side) -> Record:
        """The record of one side's run."""
        return load_record(self.directory.run(side))


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


def _examined(measurement: Measurement, noise: Noise | None, cancel: Cancellation) -> Examined:
    rounds = sum(row.round.counts for row in measurement.observed())
    taken = f"{counted(rounds, 'round')} in {measurement.seconds / 60:.1f} minutes"
    few = f"; {LEAST_ROUNDS} are the least for a floor, so none is written" if noise is None else ""
    ending: Ending = "out-of-time"
    if measurement.failed:
        ending, taken = "failed", f"{measurement.failed}, after {taken}"
    elif cancel.is_set():
        ending, taken = "cancelled", f"stopped on request after {taken}"
    both = measurement.of_side("A") and measurement.of_side("B")
    return Examined(
        verdict=verdict_of(measurement.record("A"), measurement.record("B")) if both else None,
        rounds=rounds,
        ending=ending,
        detail=f"{taken}{few}",
    )


def advice(
    noise: Noise,
    observed: Sequence[Observed],
    others: Sequence[Neighbour],
    stolen_cores: float,
    governor: str | None,
) -> list[Remedy]:
    """What to do against the noise, each with the figure behind it.

    Args:
        noise: The floor's.
        observed: Its rounds.
        others: Other processes that took the most processor time during the rounds.
        stolen_cores: Cores that the hypervisor gave to other machines.
        governor: Frequency governor of the processors, where there is one.
    """
    sources = {source.name: source for source in noise.sources}
    between, drift, touch = (
        sources[name] for name in ("between processes", "drift", "first touch")
    )
    inside = noise.inside / statistics.NormalDist().inv_cdf(0.975)
    loads = sorted(load for row in observed if (load := others_load(row.round)) is not None)
    load = loads[len(loads) // 2] if loads else 0.0
    names = ", ".join(f"{row.name} {row.cores:.2g} cores" for row in others)
    unseen = sum(row.cores for row in others) < load * (os.cpu_count() or 1) / 2
    rows = (
        (
            between.low is not None and between.low > inside,
            "more processes, not more steps",
            f"they differ by {percent(noise.between, 2)}, of which the steps alone explain "
            f"{percent(inside, 2)} at most: `ab`, or `run --repeat`",
        ),
        (
            drift.found,
            "interleave",
            f"the machine changed by {signed_percent(drift.share or 0.0)} during the measurement: "
            "`ab` takes turns, two runs one after the other carry the drift",
        ),
        (
            touch.found and (touch.share or 0.0) > 0,
            "longer warm-up",
            f"the first quarter of the measured steps is {signed_percent(touch.share or 0.0)} "
            "against the rest: `--set warmup=50`, or more steps",
        ),
        (
            sources["neighbours"].found or load > _NOTABLE_LOAD,
            "quiet the neighbours",
            f"others took {percent(load, 0)} of all cores{f' ({names})' if names else ''}"
            f"{', most of it not visible from here' if unseen else ''}: end them, or measure "
            "when they rest",
        ),
        (
            stolen_cores > _NOTABLE_STOLEN_CORES,
            "another machine",
            f"the hypervisor gave {stolen_cores:.2f} cores to other machines: only a machine of "
            "one's own, or dedicated cores, change that",
        ),
        (
            governor not in (None, "performance"),
            "governor performance",
            f"it is {governor}, and clocks follow the load: "
            "`sudo cpupower frequency-set -g performance`",
        ),
        (
            sources["clock"].found,
            "steady clock",
            "the step time follows the clock: docs/noise.md has how to lock it",
        ),
    )
    return [Remedy(name=name, detail=detail) for applies, name, detail in rows if applies]


def _governor(record: Record) -> str | None:
    processor = record.environment.get("cpu")
    return processor.get("governor") if isinstance(processor, dict) else None
