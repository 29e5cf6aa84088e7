"""Whether two processes can live side by side as a pair, and the noise of earlier pairs here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from sysbench.core.compare.compared_records import duet_differences
from sysbench.core.compare.interval import MIN_KNOWN
from sysbench.core.errors import SysbenchError
from sysbench.core.experiments.experiment_places import experiment_folders
from sysbench.core.experiments.known import NoiseKnown
from sysbench.core.formatting import format_bytes, percent
from sysbench.core.machine.devices import sample_of
from sysbench.core.machine.host_sampler import available_bytes
from sysbench.core.predict.closed_form import predict, why_not_predicted
from sysbench.core.predict.fit_grid import available_memory, card_here, with_fragments
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory, is_run_id, load_record, runs_folder
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import UNREADABLE_JSON, read_json

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

    Those of experiments that measured one of these specs, else of all.

    Args:
        is_here: Whether a record is of this machine and device.
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
