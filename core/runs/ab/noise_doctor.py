"""The noise doctor: a spec against itself, the floor that is kept, and remedies tried in turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from ...analysis.verdict.noise import LEAST_ROUNDS, Noise
from ...analysis.verdict.power import ROUNDS_A_BLOCK, smallest_difference
from ...analysis.verdict.records import verdict_of
from ...analysis.verdict.verdict import Verdict
from ...errors import RefusedError
from ...formatting import counted
from ...machine.devices import sample_of
from ...machine.neighbours import Neighbours
from ...record.environment import threads
from ...record.record import Record
from ...spec.spec import RunSpec
from ...storage import home
from ..supervisor import Cancellation
from .experiment import Ended, Ending, create_experiment
from .noise import NoiseFloor, Remedy, keep_noise_floor
from .noise_floor import Measurement, Taken, floor_of
from .remedies import THP_SETTING, Here, Offer, advice, judged, not_tried, offers
from .runner import RoundFinished

TRIALS_FOLDER = "noise-trials"
"""In the home: the runs of remedies. Their processes are not like those of other runs of the same
spec, so the library must not take them for such."""
_BLOCKS = (3, 8, 24)


class Trying(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy is tried from now on: the number of it, and of all."""

    name: str
    number: int
    trials: int


class Finds(msgspec.Struct, frozen=True):
    """Least slowdown that a comparison of so many rounds finds with a chance of 80 %."""

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


def examine_noise(
    spec: RunSpec,
    *,
    minutes: float = 3.0,
    remedies: bool = False,
    lock_clocks: bool = False,
    wait: bool = True,
    cancel: Cancellation | None = None,
    root: Path | None = None,
) -> Iterator[Taken | Trying | Examined]:
    """Measure the noise of a spec here and keep it as the device's floor; Examined comes last.

    Fewer than 8 rounds are no floor. What was measured until a cancellation counts.

    Args:
        spec: What to measure, resolved.
        minutes: Time of the measurement, and of the trial of each remedy.
        remedies: Try what can be tried here.
        lock_clocks: One of them may be to lock the GPU's clock.
        wait: Wait for the device if another run measures on it.
        cancel: Ends it when set.
        root: Home (default: the user's).
    """
    cancel = cancel or Cancellation()
    directory = create_experiment(spec, spec, max_minutes=minutes, purpose="noise", root=root)
    neighbours = Neighbours()
    measurement = Measurement(directory, wait=wait, cancel=cancel)
    for item in measurement.rounds():
        if isinstance(item, RoundFinished):
            neighbours.look()  # between two rounds, where it disturbs none
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
    if noise is None:
        yield result
        return
    floor = floor_of(measurement, noise, spec)
    advised = advice(
        noise,
        measurement.observed(),
        neighbours.busiest(),
        neighbours.stolen_cores(),
        _governor(measurement.record("A")),
    )
    floor = _with(floor, advised)
    keep_noise_floor(floor, root)
    if remedies and not cancel.is_set():
        here = _here(spec, measurement, lock_clocks=lock_clocks)
        offered = offers(here)
        tried = [offer for offer in offered if not offer.why_not]
        for number, offer in enumerate(tried, 1):
            if cancel.is_set():
                break
            yield Trying(name=offer.name, number=number, trials=len(tried))
            trial = _trial(here.spec, offer, minutes, wait, cancel, root)
            yield from trial.rounds()
            floor = _with(floor, [_outcome(offer, trial, len(tried))])
            keep_noise_floor(floor, root)
        floor = _with(floor, [not_tried(offer) for offer in offered if offer.why_not])
        keep_noise_floor(floor, root)
    finds = [
        Finds(ROUNDS_A_BLOCK * blocks, difference)
        for blocks in _BLOCKS
        if (difference := smallest_difference(noise.residuals, blocks)) is not None
    ]
    ending: Ending = "cancelled" if cancel.is_set() else result.ending
    yield msgspec.structs.replace(result, floor=floor, finds=finds, ending=ending)


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


def _with(floor: NoiseFloor, remedies: list[Remedy]) -> NoiseFloor:
    return msgspec.structs.replace(floor, remedies=[*floor.remedies, *remedies])


class _Refusable(Measurement):
    """A trial whose treatment may be refused."""

    refused = ""

    def rounds(self) -> Iterator[Taken]:
        try:
            yield from super().rounds()
        except RefusedError as error:
            self.refused = str(error)


def _trial(
    spec: RunSpec,
    offer: Offer,
    minutes: float,
    wait: bool,
    cancel: Cancellation,
    root: Path | None,
) -> _Refusable:
    folder = (root or home()) / TRIALS_FOLDER
    directory = create_experiment(spec, offer.spec, max_minutes=minutes, root=folder)
    return _Refusable(directory, treated=offer.treatment, wait=wait, cancel=cancel)


def _outcome(offer: Offer, trial: _Refusable, trials: int) -> Remedy:
    if trial.refused:
        return not_tried(offer, trial.refused)
    if trial.failed:
        return not_tried(offer, trial.failed)
    return judged(offer, trial, trials)


def _here(spec: RunSpec, measurement: Measurement, *, lock_clocks: bool) -> Here:
    """The facts of this machine; both sides of a trial have the floor's number of threads."""
    record = measurement.record("A")
    clocks = [mhz for row in measurement.observed() if (mhz := row.round.sm_clock_mhz)]
    sample = sample_of(spec.device)
    huge_pages = ""
    with suppress(OSError):  # not a Linux with huge pages
        huge_pages = THP_SETTING.read_text()
    return Here(
        spec=spec.changed(threads=spec.threads or threads(record.environment) or 1),
        cores=frozenset(os.sched_getaffinity(0)),
        huge_pages=huge_pages,
        gpu=sample.index if sample else None,
        clock_mhz=int(min(clocks)) if clocks else None,
        lock_clocks=lock_clocks,
    )


def _governor(record: Record) -> str | None:
    processor = record.environment.get("cpu")
    return processor.get("governor") if isinstance(processor, dict) else None
