"""Whether rounds can be measured in pairs here, and what an experiment can find out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Literal

import msgspec

from sysbench.core.compare.bounds import (
    FIRST_LOOK,
    FIRST_PAIR_LOOK,
    MAX_BLOCKS,
    MAX_DUET_PAIRS,
)
from sysbench.core.compare.compared_records import duet_differences
from sysbench.core.compare.interval import MIN_KNOWN
from sysbench.core.compare.power import (
    ROUNDS_A_BLOCK,
    Powers,
    duet_power_after,
    power_after,
    smallest_difference,
)
from sysbench.core.errors import SysbenchError
from sysbench.core.experiments.noise import NoiseKnown, noise_floors, noise_to_plan_with, runs_of
from sysbench.core.formatting import format_bytes, percent
from sysbench.core.machine.devices import sample_of
from sysbench.core.machine.host_sampler import available_bytes
from sysbench.core.machine.read_environment import cpu_model
from sysbench.core.predict.closed_form import predict, why_not_predicted
from sysbench.core.predict.fit_grid import available_memory, card_here, with_fragments
from sysbench.core.record.environment import device_name
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory, is_run_id, load_record, runs_folder
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import UNREADABLE_JSON, experiment_folders, read_json

Method = Literal["duet", "blocks"]
"""``duet``: pairs of processes that live side by side and take turns; ``blocks``: blocks of four
processes, one after another."""
MAX_EXPERIMENTS = 20
"""Newest experiments whose pairs are read."""


def why_not_pairs(spec_a: RunSpec, spec_b: RunSpec) -> str:
    """Return why rounds have to be measured one at a time; empty if pairs are possible.

    A peak that cannot be predicted, or a device whose free memory is unknown, is no reason: if
    memory runs out, the experiment goes on without pairs.
    """
    specs = (spec_a, spec_b)
    if spec_a.is_job or spec_b.is_job:
        return "commands do not take turns"
    if any(spec.ranks > 1 for spec in specs):
        return "several ranks are measured one side at a time"
    needed: dict[str, int] = {}
    for spec in specs:
        if why_not_predicted(spec) is None:
            room = available_memory(spec, 0)
            peak = with_fragments(predict(spec).peak_bytes, room)
            needed[spec.device] = needed.get(spec.device, 0) + peak
    for spec in specs:
        free = _free_bytes(spec)
        if free is not None and needed.get(spec.device, 0) > free:
            both = format_bytes(needed[spec.device])
            return f"both at once need {both}, and {format_bytes(free)} are free on {spec.device}"
    return ""


def _free_bytes(spec: RunSpec) -> int | None:
    """Bytes that two processes can use together on a spec's device; None if unknown."""
    if not spec.on_cuda:
        return available_bytes()
    sample = sample_of(spec.device)
    if sample is None or sample.memory_used_bytes is None or sample.memory_total_bytes is None:
        return None
    free = sample.memory_total_bytes - sample.memory_used_bytes
    # Each process has a context of its own.
    one = available_memory(spec.changed(memory_limit=0), free, card_here(None))
    return one.least - (free - one.least)


class _Decided(msgspec.Struct):
    """What a search for pairs needs of ``experiment.json``."""

    a: str
    b: str
    method: str = "blocks"


def noise_of_pairs(
    identities: Sequence[str], is_here: Callable[[Record], bool]
) -> NoiseKnown | None:
    """Return deviations of earlier pairs from their experiment's middle; None if they are few.

    Those of experiments that measured one of these specs, else of all on this machine and device.
    """
    groups = [
        ({a.identity, b.identity}, differences)
        for a, b in _experiments()
        if is_here(a) and is_here(b) and a.timing and b.timing
        if len(differences := duet_differences(a.timing.rounds, b.timing.rounds)) > 1
    ]
    own = [differences for names, differences in groups if names & set(identities)]
    for chosen, whose in ((own, "of these specs"), ([row for _, row in groups], "of other specs")):
        pairs = sum(map(len, chosen))
        freedom = pairs - len(chosen)
        if freedom < MIN_KNOWN - 1:
            continue
        # The level was estimated from the same pairs, which reduces the deviations.
        scale = math.sqrt(pairs / freedom)
        residuals = [
            scale * (value - statistics.fmean(group)) for group in chosen for value in group
        ]
        # The difference of two processes has twice the variance of one.
        spread = math.expm1(statistics.pstdev(residuals) / math.sqrt(2))
        source = f"±{percent(spread, 2)} between the processes of {pairs} earlier pairs {whose}"
        return NoiseKnown(residuals=tuple(residuals), spread=spread, source=source)
    return None


def _experiments() -> Iterator[tuple[Record, Record]]:
    """The runs of the newest experiments in pairs; unreadable ones are skipped."""
    for folder in experiment_folders()[:MAX_EXPERIMENTS]:
        with suppress(OSError, SysbenchError, *UNREADABLE_JSON):
            decided = msgspec.json.decode(read_json(folder / "experiment.json"), type=_Decided)
            if decided.method == "duet" and is_run_id(decided.a) and is_run_id(decided.b):
                runs = [RunDirectory(runs_folder() / name) for name in (decided.a, decided.b)]
                yield load_record(runs[0]), load_record(runs[1])


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

    Processes of pairs are counted apart from those that measure alone: they wait for each other.
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
