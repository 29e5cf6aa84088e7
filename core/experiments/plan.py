"""Forecast what an experiment can find out here."""

from __future__ import annotations

from statistics import fmean

import msgspec

from sysbench.core.compare.bounds import FIRST_LOOK, MAX_BLOCKS
from sysbench.core.compare.interval import MIN_KNOWN
from sysbench.core.compare.power import ROUNDS_A_BLOCK, power_after, smallest_difference
from sysbench.core.experiments.known import noise_to_plan_with, runs_of
from sysbench.core.experiments.noise import noise_floors
from sysbench.core.machine.devices import sample_of
from sysbench.core.machine.read_environment import cpu_model
from sysbench.core.record.environment import device_name
from sysbench.core.record.record import Record
from sysbench.core.spec.spec import RunSpec

DIFFERENCES = (0.01, 0.02, 0.03, 0.05, 0.10)
"""Slowdowns whose power a plan reports."""


class Promise(msgspec.Struct, frozen=True):
    """A true difference, as a share, and the chance that the experiment finds it."""

    difference: float
    power: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Forecast of an experiment.

    Attributes:
        round_seconds: Time of one round, from earlier ones; null if none are known.
        blocks: Blocks of four rounds that the time allows; null without ``round_seconds``.
        spread: Noise between rounds that the forecast uses, as a share.
        source: Sentence part that names the source of the spread.
        smallest: Smallest difference that is found with a chance of 80 %; null if unknown.
        missing: Reason of every null value, by its name.
    """

    round_seconds: float | None = None
    blocks: int | None = None
    spread: float | None = None
    source: str = ""
    smallest: float | None = None
    promises: list[Promise] = []
    missing: dict[str, str] = {}


def plan_of(spec_a: RunSpec, spec_b: RunSpec, max_minutes: float) -> Plan:
    """Forecast the experiment for two specs.

    The noise is that of the specs' earlier processes here, else the device's noise floor, and the
    same for both sides.

    Raises:
        DamagedFileError: The file of the noise floors cannot be read.
    """
    by_identity = {
        spec.identity: _of_this_machine(runs_of(spec.identity)) for spec in (spec_a, spec_b)
    }
    runs_a, runs_b = by_identity[spec_a.identity], by_identity[spec_b.identity]
    # A block has two rounds of either side, however often each was timed before.
    means = [fmean(seconds) for runs in (runs_a, runs_b) if (seconds := _round_seconds(runs))]
    round_seconds = fmean(means) if means else None
    name = _device_name(spec_a, [*runs_a, *runs_b])
    noise = noise_to_plan_with(runs_a, runs_b, noise_floors().get(name) if name else None)
    missing: dict[str, str] = {}
    if round_seconds is None:
        reason = "neither spec was timed here yet"
        missing |= dict.fromkeys(("round_seconds", "blocks"), reason)
    blocks = _blocks(round_seconds, max_minutes)
    smallest, promises = None, []
    if noise is None:
        missing["spread"] = missing["smallest"] = (
            f"fewer than {MIN_KNOWN} processes of either spec were timed here, and the "
            "device's noise floor was not measured: `sysbench-tui doctor --noise` measures it"
        )
    elif blocks is None:
        missing["smallest"] = missing["blocks"]
    elif blocks < FIRST_LOOK:
        missing["smallest"] = f"{FIRST_LOOK} blocks are needed, and the time allows {blocks}"
    else:
        smallest = smallest_difference(noise.residuals, blocks)
        promises = [
            Promise(difference, power_after(noise.residuals, difference, blocks)[-1])
            for difference in DIFFERENCES
        ]
    return Plan(
        round_seconds=round_seconds,
        blocks=blocks,
        spread=noise.spread if noise else None,
        source=noise.source if noise else "",
        smallest=smallest,
        promises=promises,
        missing=missing,
    )


def _blocks(round_seconds: float | None, max_minutes: float) -> int | None:
    if round_seconds is None:
        return None
    return min(MAX_BLOCKS, int(60 * max_minutes / (ROUNDS_A_BLOCK * round_seconds)))


def _round_seconds(records: list[Record]) -> list[float]:
    """Return mean seconds of a round in each run; a pass of several rounds has their sum."""
    means = []
    for record in records:
        timed = record.pass_named("timing")
        if timed is not None and timed.outcome == "finished" and record.timing is not None:
            means.append(timed.seconds / max(1, len(record.timing.rounds)))
    return means


def _of_this_machine(runs: list[Record]) -> list[Record]:
    cpu = cpu_model()
    return [run for run in runs if run.environment.get("cpu", {}).get("model", cpu) == cpu]


def _device_name(spec: RunSpec, runs: list[Record]) -> str | None:
    """Return the name under which the noise floor of the spec's device is stored, or None.

    Runs have the name that torch gives the device; before the first one NVML's is used, which is
    the same except for slices of a GPU.
    """
    if not spec.on_cuda:
        return cpu_model()
    for run in runs:
        if run.spec.get("device") == spec.device and (name := device_name(run.environment)):
            return name
    sample = sample_of(spec.device)
    return sample.name if sample else None
