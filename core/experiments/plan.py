"""Forecast what an experiment can find out here."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import msgspec

from sysbench.core.compare.bounds import (
    FIRST_LOOK,
    FIRST_PAIR_LOOK,
    MAX_BLOCKS,
    MAX_DUET_PAIRS,
)
from sysbench.core.compare.interval import MIN_KNOWN
from sysbench.core.compare.power import (
    ROUNDS_A_BLOCK,
    Powers,
    duet_power_after,
    power_after,
    smallest_difference,
)
from sysbench.core.experiments.known import noise_to_plan_with, runs_of
from sysbench.core.experiments.noise import noise_floors
from sysbench.core.experiments.pairing import Method, noise_of_pairs, why_not_pairs
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
        round_seconds: Time of one round, of a pair for both; from earlier ones, null if none.
        blocks: Blocks of four rounds that the time allows; null without ``round_seconds``, and in
            pairs.
        pairs: Pairs that the time allows; null without ``round_seconds``, and in blocks.
        spread: Noise between rounds that the forecast uses, as a share.
        source: Sentence part that names the source of the spread.
        smallest: Smallest difference that is found with a chance of 80 %; null if unknown.
        missing: Reason of every null value, by its name.
        method: How rounds are measured.
        why_blocks: Why not in pairs.
    """

    round_seconds: float | None = None
    blocks: int | None = None
    pairs: int | None = None
    spread: float | None = None
    source: str = ""
    smallest: float | None = None
    promises: list[Promise] = []
    missing: dict[str, str] = {}
    method: Method = "blocks"
    why_blocks: str = ""


class _Counting(msgspec.Struct, frozen=True, kw_only=True):
    """How a method counts: ``word`` is what is judged after ``rounds`` rounds of ``seconds``."""

    word: str
    first: int
    most: int
    rounds: int
    powers: Powers


_IN_BLOCKS = _Counting(
    word="block", first=FIRST_LOOK, most=MAX_BLOCKS, rounds=ROUNDS_A_BLOCK, powers=power_after
)
_IN_PAIRS = _Counting(
    word="pair", first=FIRST_PAIR_LOOK, most=MAX_DUET_PAIRS, rounds=1, powers=duet_power_after
)


def plan_of(
    spec_a: RunSpec,
    spec_b: RunSpec,
    max_minutes: float,
    method: Method | None = None,
    *,
    of_command: bool = False,
) -> Plan:
    """Forecast the experiment for two specs.

    The noise of blocks is that of the specs' earlier processes here, else the device's noise floor,
    and the same for both sides; that of pairs is of earlier pairs here.

    Args:
        method: None takes pairs where both sides fit the device.
        of_command: Wall times of commands are compared, not their steps.

    Raises:
        DamagedFileError: The file of the noise floors cannot be read.
    """
    why_blocks = "" if method else why_not_pairs(spec_a, spec_b)
    in_pairs = method == "duet" or not (method or why_blocks)
    counting = _IN_PAIRS if in_pairs else _IN_BLOCKS
    runs_a, runs_b = (
        _of_this_machine(runs_of(spec.identity, of_command=of_command)) for spec in (spec_a, spec_b)
    )
    # A block has two rounds of either side, however often each was timed before.
    means = [fmean(all_of) for runs in (runs_a, runs_b) if (all_of := _seconds(runs, in_pairs))]
    round_seconds = fmean(means) if means else None
    missing: dict[str, str] = {}
    looks = None
    if round_seconds is None:
        reason = "neither spec was timed in a pair" if in_pairs else "neither spec was timed"
        missing |= dict.fromkeys(("round_seconds", f"{counting.word}s"), f"{reason} here yet")
    else:
        looks = min(counting.most, int(60 * max_minutes / (counting.rounds * round_seconds)))
    if in_pairs:
        noise = noise_of_pairs([spec_a.identity, spec_b.identity], _is_on(spec_a))
        no_noise = f"fewer than {MIN_KNOWN} pairs were measured on this machine yet"
    else:
        name = _device_name(spec_a, [*runs_a, *runs_b])
        noise = noise_to_plan_with(runs_a, runs_b, noise_floors().get(name) if name else None)
        no_noise = (
            f"fewer than {MIN_KNOWN} processes of either spec were timed here, and the "
            "device's noise floor was not measured: `sysbench-tui doctor --noise` measures it"
        )
    smallest, promises = None, []
    if noise is None:
        missing["spread"] = missing["smallest"] = no_noise
    elif looks is None:
        missing["smallest"] = missing["round_seconds"]
    elif looks < counting.first:
        needed = f"{counting.first} {counting.word}s are needed"
        missing["smallest"] = f"{needed}, and the time allows {looks}"
    else:
        smallest = smallest_difference(noise.residuals, looks, counting.powers)
        promises = [
            Promise(difference, counting.powers(noise.residuals, difference, looks)[-1])
            for difference in DIFFERENCES
        ]
    return Plan(
        round_seconds=round_seconds,
        blocks=None if in_pairs else looks,
        pairs=looks if in_pairs else None,
        spread=noise.spread if noise else None,
        source=noise.source if noise else "",
        smallest=smallest,
        promises=promises,
        missing=missing,
        method="duet" if in_pairs else "blocks",
        why_blocks=why_blocks,
    )


def _is_on(spec: RunSpec) -> Callable[[Record], bool]:
    """Whether a record is of this machine and the spec's device."""
    return lambda record: (
        record.spec.get("device") == spec.device and bool(_of_this_machine([record]))
    )


def _seconds(records: list[Record], in_pairs: bool) -> list[float]:
    """Return mean seconds of a round in each run; a pass of several rounds has their sum.

    A process that takes turns lives about twice as long as one that measures alone.
    """
    means = []
    for record in records:
        timed = record.pass_named("timing")
        if timed is not None and timed.outcome == "finished" and record.timing is not None:
            rounds = record.timing.rounds
            if in_pairs == any(row.duet for row in rounds):
                means.append(timed.seconds / max(1, len(rounds)))
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
