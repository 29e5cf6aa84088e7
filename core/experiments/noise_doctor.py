"""Measure a spec against itself, store the noise floor, and give advice.

An experiment stops as soon as the medians are decided. A spread needs as many rounds as possible,
so this one always uses the whole time.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence

import msgspec

from sysbench.core.compare.conditions import others_load
from sysbench.core.compare.noise_sources import MIN_ROUNDS, Noise, Observed, noise_of
from sysbench.core.compare.power import ROUNDS_A_BLOCK, smallest_difference
from sysbench.core.compare.verdict import Verdict
from sysbench.core.errors import WorkerFailed
from sysbench.core.experiments.experiment import (
    Ending,
    ExperimentDirectory,
    Side,
    create_experiment,
)
from sysbench.core.experiments.experiment_runner import (
    ExperimentEvent,
    ExperimentRun,
    RoundFinished,
    Stopped,
)
from sysbench.core.experiments.noise import NoiseFloor, Remedy, save_noise_floor
from sysbench.core.formatting import counted, percent, signed_percent
from sysbench.core.machine.host_sampler import Neighbour, Neighbours, host_tick_ns, processor_mhz
from sysbench.core.record.environment import device_name, torch_version
from sysbench.core.record.events import StageEntered, TelemetrySampled
from sysbench.core.record.record import Record
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.spec.models import CUSTOM
from sysbench.core.spec.spec import RunSpec

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
    floor: NoiseFloor | None = None
    finds: list[Finds] = []
    verdict: Verdict | None = None
    rounds: int = 0
    ending: Ending
    detail: str


def default_model(device: str) -> str:
    """Return the preset to measure if none is named: small enough for many rounds."""
    return "cs336-2025/small" if device.startswith("cuda") else "tiny"


def examine_noise(
    spec: RunSpec,
    *,
    minutes: float = 3.0,
    cancel: Cancellation | None = None,
) -> Iterator[ExperimentEvent | Examined]:
    """Measure the noise of a spec here and store it as the device's floor; Examined comes last.

    A floor needs at least 8 rounds. Rounds before a cancellation count.
    """
    directory = create_experiment(spec, spec, max_minutes=minutes, purpose="noise", method="blocks")
    others = Neighbours()
    with directory.hold():
        measurement = NoiseMeasurement(directory, True, cancel or Cancellation())
        for item in measurement.blocks():
            if isinstance(item, RoundFinished):
                others.look()  # between two rounds, where it disturbs none
            if isinstance(item, Stopped):
                ended = item.ended
            yield item
    noise = measurement.noise()
    result = Examined(
        verdict=ended.verdict if measurement.rounds("A") and measurement.rounds("B") else None,
        rounds=measurement.count(),
        ending=ended.ending,
        detail=ended.detail,
    )
    if noise is not None:
        floor = msgspec.structs.replace(
            floor_of(measurement, noise, spec, ended.seconds),
            remedies=advice(
                noise,
                measurement.observed(),
                others.busiest(),
                others.stolen_cores(),
                _governor(measurement.records["A"]),
            ),
        )
        save_noise_floor(floor)
        finds = [
            Finds(ROUNDS_A_BLOCK * blocks, difference)
            for blocks in _BLOCKS
            if (difference := smallest_difference(noise.residuals, blocks)) is not None
        ]
        result = msgspec.structs.replace(result, floor=floor, finds=finds)
    yield result


class NoiseMeasurement(ExperimentRun):
    """A comparison of a spec with itself that ends with its time, whatever its verdict."""

    def __init__(self, directory: ExperimentDirectory, wait: bool, cancel: Cancellation) -> None:
        super().__init__(directory, wait, cancel)
        self._clocks: dict[tuple[Side, int], float] = {}
        self._longest = 0.0

    def one_round(
        self, sides: Sequence[Side], block: int, position: int
    ) -> Iterator[ExperimentEvent]:
        began = time.monotonic()
        clocks: list[float] = []
        measuring = False
        for event in super().one_round(sides, block, position):
            match event:
                case StageEntered():
                    measuring = event.stage == "measure"
                case TelemetrySampled() if measuring and (mhz := processor_mhz()):
                    clocks.append(mhz)
                case RoundFinished() if clocks:
                    self._clocks[event.side, event.round.index] = statistics.median(clocks)
            yield event
        self._longest = max(self._longest, time.monotonic() - began)

    def is_over(self) -> bool:
        """Return whether a round as long as the longest would exceed the time."""
        spent = time.monotonic() - self.began
        out_of_time = spent + self._longest > 60 * self.experiment.max_minutes
        return self.cancel.is_set() or bool(self.failed) or out_of_time

    def stops(self) -> bool:
        return self.is_over()

    def ending(self, _: Verdict) -> tuple[Ending, str]:
        rounds, enough = self.count(), self.noise() is not None
        spent = f"{counted(rounds, 'round')} in {(time.monotonic() - self.began) / 60:.1f} minutes"
        few = "" if enough else f"; {MIN_ROUNDS} are needed for a floor, so none is stored"
        if self.failed:
            return "failed", f"{self.failed}, after {spent}{few}"
        if self.cancel.is_set():
            return "cancelled", f"stopped on request after {spent}{few}"
        return "out-of-time", f"{spent}{few}"

    def count(self) -> int:
        return sum(row.round.counts for row in self.observed())

    def observed(self) -> list[Observed]:
        rows = [
            Observed(round=row, clock_mhz=self._clocks.get((side, row.index)))
            for side in self.records
            for row in self.rounds(side)
        ]
        return sorted(rows, key=lambda row: row.round.started_ns)

    def noise(self) -> Noise | None:
        timing = self.records["A"].timing
        on_events = timing is not None and timing.clock == "cuda-events"
        return noise_of(self.observed(), None if on_events else float(host_tick_ns()))


def floor_of(
    measurement: NoiseMeasurement, noise: Noise, spec: RunSpec, seconds: float
) -> NoiseFloor:
    """Build the floor to store; WorkerFailed if the record does not name its device."""
    record = measurement.records["A"]
    device = device_name(record.environment)
    if device is None:
        raise WorkerFailed(f"run {record.id} does not name the device that it measured")
    facts = msgspec.structs.asdict(noise)
    (between,) = (row for row in noise.sources if row.name == "between processes")
    return NoiseFloor(
        device=device,
        measured_ns=time.time_ns(),
        subject=spec.model if spec.model != CUSTOM else "a custom model",
        identity=spec.identity,
        low=between.low,
        high=between.high,
        step_ms=facts.pop("median_ms"),
        **facts,
        left_out=sum(bool(row.round.disturbed) for row in measurement.observed()),
        seconds=seconds,
        torch=torch_version(record.environment) or "",
        experiment=measurement.directory.id,
    )


def advice(
    noise: Noise,
    observed: Sequence[Observed],
    others: Sequence[Neighbour],
    stolen_cores: float,
    governor: str | None,
) -> list[Remedy]:
    """Return what to do against the noise, each with the figure behind it.

    ``others`` took the most processor time during the rounds, the hypervisor gave ``stolen_cores``
    to other machines.
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
            "`ab` interleaves the sides; two runs in sequence would include the drift",
        ),
        (
            touch.found and (touch.share or 0.0) > 0,
            "longer warm-up",
            f"the first quarter of the measured steps is {signed_percent(touch.share or 0.0)} "
            "against the rest: `--set warmup=50`, or more steps",
        ),
        (
            sources["neighbours"].found or load > _NOTABLE_LOAD,
            "end other processes",
            f"other processes used {percent(load, 0)} of all cores{f' ({names})' if names else ''}"
            f"{', most of it not visible from here' if unseen else ''}: end them, or measure "
            "when they are idle",
        ),
        (
            stolen_cores > _NOTABLE_STOLEN_CORES,
            "another machine",
            f"the hypervisor gave {stolen_cores:.2f} cores to other machines: use a "
            "dedicated machine or dedicated cores",
        ),
        (
            governor not in (None, "performance"),
            "governor performance",
            f"it is {governor}, so clocks follow the load: "
            "`sudo cpupower frequency-set -g performance`",
        ),
        (
            sources["clock"].found,
            "steady clock",
            "the step time follows the clock: docs/noise.md explains how to lock it",
        ),
    )
    return [Remedy(name=name, detail=detail) for applies, name, detail in rows if applies]


def _governor(record: Record) -> str | None:
    processor = record.environment.get("cpu")
    return processor.get("governor") if isinstance(processor, dict) else None
