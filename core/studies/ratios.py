"""Ratios of two cells, and whether they differ."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Literal

import msgspec

from sysbench.core.compare.bounds import FALSE_RATE, least_pairs, rank_bound
from sysbench.core.compare.compared_records import of_pairs
from sysbench.core.compare.interval import separate
from sysbench.core.compare.power import decided_by
from sysbench.core.compare.rounds import combined, counting, with_times
from sysbench.core.compare.statistics import spread
from sysbench.core.compare.verdict import MIN_EFFECT, NOT_TESTED, Verdict, judge
from sysbench.core.formatting import counted, percent
from sysbench.core.record.environment import node
from sysbench.core.record.record import Record
from sysbench.core.record.timing import Round, Timing
from sysbench.core.spec.fields import COMPILE_KEYS
from sysbench.core.spec.passes import MAX_ROUNDS
from sysbench.core.studies.cell_values import Value, values_of
from sysbench.core.studies.schema import Axis, Study
from sysbench.core.studies.study_grid import Cell
from sysbench.core.tables.table import Cell as Content
from sysbench.core.tables.table import is_number

COUNTED = "counted bytes"


@dataclass(frozen=True, slots=True)
class Rounds:
    """One figure of a cell, by the processes that measured it.

    Attributes:
        by_pass: Figure of each pass over the grid, from 0.
        processes: Figures of all processes that count, including a run's own rounds.
        is_counted: True for counted bytes, which need no test.
        waiting: Requested rounds that did not run yet.
        machines: Cluster nodes and GPUs that measured them; empty text for none.
    """

    by_pass: Mapping[int, float] = field(default_factory=dict)
    processes: Sequence[float] = ()
    is_counted: bool = False
    waiting: int = 0
    machines: frozenset[str] = frozenset()

    @property
    def median(self) -> float:
        return statistics.median(self.by_pass.values())


def rounds_of(
    cells: Sequence[Cell],
    records: Mapping[str, Record],
    figure: Callable[[Record], Content],
    is_counted: bool = False,
) -> Rounds:
    """Collect the figures of the repeats of one cell; records are by the cell's id, texts are
    ignored."""
    by_pass: dict[int, float] = {}
    processes: list[float] = []
    machines: set[str] = set()
    for cell in cells:
        record = records.get(cell.id)
        number = figure(record) if record else None
        if record is None or not is_number(number):
            continue
        by_pass[cell.repeat] = number
        machines.add(node(record.environment) or "")
        processes += [one for single in _split_rounds(record) if is_number(one := figure(single))]
    waiting = sum(cell.id not in records for cell in cells)
    return Rounds(by_pass, processes, is_counted, waiting, frozenset(machines))


def _split_rounds(record: Record) -> Iterator[Record]:
    timing = record.timing
    if timing is None or timing.interval_of != "rounds":
        yield record
        return
    for row in counting(timing.rounds):
        median = row.median_ms or timing.step.median_ms
        rates = {name: getattr(timing, name) for name in _RATES}
        share = timing.step.median_ms / median
        of_round = msgspec.structs.replace(
            timing,
            step=spread([median]),
            phases={name: spread([phase]) for name, phase in row.phases.items()},
            **{name: rate * share for name, rate in rates.items() if rate is not None},
        )
        yield msgspec.structs.replace(record, timing=of_round)


_RATES = ("tokens_per_second", "tflops", "mfu", "causal_mfu")


State = Literal["counted", "not tested", "not decidable", "same", "differs"]


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over another.

    Attributes:
        value: The ratio; from six pairs of rounds on the median ratio by pass.
        low, high: Ends of its 95 % interval, if any.
        state: ``counted`` is exact; ``not tested`` and ``not decidable`` allow no claim; ``same``
            is within 1 %.
        why: Evidence, as text.
        first, second: Medians of the rounds of both figures.
        medians: These with their units, where a table shows them.
    """

    value: float
    low: float | None = None
    high: float | None = None
    state: State
    why: str
    first: float
    second: float
    medians: str = ""

    @property
    def tested(self) -> str:
        return f"differs: {self.why}" if self.state == "differs" else self.why

    @property
    def is_claim(self) -> bool:
        """True if the ratio may be stated as a result."""
        return self.state in ("counted", "differs")


def ratio_of(first: Rounds, second: Rounds) -> Ratio | None:
    """Divide the first figure by the second, tested if rounds allow it; None without both.

    Rounds of the same pass are paired; with too few pairs, four rounds per side are tested
    unpaired. Nothing is tested before all requested rounds ran, because testing after every round
    would eventually find a difference. Nothing is tested across machines.
    """
    if not first.by_pass or not second.by_pass or not second.median:
        return None
    upper, lower = first.median, second.median
    ratio = partial(Ratio, value=upper / lower, first=upper, second=lower)
    counts = sorted({len(first.processes), len(second.processes)})
    differing = [side for side in (first, second) if len(set(side.processes)) > 1]
    if first.is_counted and second.is_counted and not differing:
        all_rounds = f", the same in all {counts[-1]} rounds" if counts[-1] > 1 else ""
        return ratio(state="counted", why=COUNTED + all_rounds)
    machines = first.machines | second.machines
    if len(machines) > 1:
        why = f"measured on {len(machines)} machines: not tested"
        return ratio(state="not tested", why=why)
    unlike = [_differing(side) for side in differing if side.is_counted]
    waiting = max(first.waiting, second.waiting)
    verdict = None if waiting else _verdict(first, second)
    if verdict is None or verdict.low is None or verdict.high is None or verdict.change is None:
        if counts == [1] and not waiting:
            return ratio(state="not tested", why="; ".join([NOT_TESTED, *unlike]))
        why = "; ".join([_too_few(counts, waiting), *unlike])
        return ratio(state="not decidable", why=why)
    state: State = "same" if verdict.verdict == "same" else "not decidable"
    return ratio(
        value=1 + verdict.change,
        low=1 + verdict.low,
        high=1 + verdict.high,
        state="differs" if verdict.differs else state,
        why="; ".join([_evidence(verdict), *unlike]),
    )


def _verdict(first: Rounds, second: Rounds) -> Verdict | None:
    """Compare both; None with too few rounds or a figure without logarithm."""
    if min((*first.processes, *second.processes)) <= 0:
        return None
    common = sorted(first.by_pass.keys() & second.by_pass.keys())
    if len(common) >= least_pairs():
        pairs = [(second.by_pass[number], first.by_pass[number]) for number in common]
        return of_pairs(pairs)
    if rank_bound(len(second.processes), len(first.processes), FALSE_RATE) is None:
        return None
    return judge(separate(second.processes, first.processes))


def _too_few(counts: Sequence[int], waiting: int) -> str:
    rounds = " and ".join(map(str, counts))
    if waiting:
        return f"not decidable yet: {rounds} of {counts[0] + waiting} rounds"
    return f"not decidable: {rounds} rounds each, {least_pairs()} are enough"


def _evidence(verdict: Verdict) -> str:
    """``same within 1 %: 6 rounds each``, ``not decidable yet: 6 rounds each, …``."""
    counts = sorted({verdict.rounds_a, verdict.rounds_b})
    rounds = f"{' and '.join(map(str, counts))} rounds each"
    if verdict.differs:
        return rounds
    if verdict.verdict == "same":
        return f"same within {percent(verdict.smallest)}: {rounds}"
    undecided = f"not decidable yet: {rounds}"
    if verdict.more_rounds is None:
        return undecided
    more = verdict.more_rounds // 2
    if verdict.spread is not None and counts[0] + more > MAX_ROUNDS:
        decided = percent(decided_by(MAX_ROUNDS, verdict.spread))
        noise = f"±{percent(verdict.spread)} between them"
        return f"{undecided}, {noise}; {MAX_ROUNDS} rounds decide a difference of {decided}"
    return (
        f"{undecided}, about {counted(more, 'more round')} would decide a "
        f"{percent(MIN_EFFECT)} difference"
    )


def _differing(side: Rounds) -> str:
    low, high = min(side.processes), max(side.processes)
    return f"the bytes differ between rounds, by {percent(high / low - 1, 2) if low else 'all'}"


def merge_repeats(study: str, repeats: Mapping[int, Record]) -> Record:
    """Merge the repeats of one cell, by pass over the grid, into a run with rounds of source
    ``study``; everything but its times is the first's."""
    numbers = sorted(repeats)
    finished = [number for number in numbers if repeats[number].status == "finished"]
    first = repeats[(finished or numbers)[0]]
    timings: dict[int, Timing] = {}
    rounds = []
    for number in numbers:
        if (timing := repeats[number].timing) is not None:
            # A study keeps no samples: the median is the only one.
            samples = timing.samples_ms or [timing.step.median_ms]
            index = number + 1
            timings[index] = msgspec.structs.replace(timing, samples_ms=samples)
            row = Round(
                index=index,
                started_ns=repeats[number].created_ns,
                outcome="finished",
                experiment=study,
                block=number,
            )
            rounds.append(with_times(row, timings[index]))
    if len(timings) < 2:
        return first
    return msgspec.structs.replace(first, timing=combined(rounds, timings))


WAYS = {
    *("precision", "attention", "optimizer", "checkpoint", "device", "threads", *COMPILE_KEYS),
    *("parallel", "bucket_mib", "comm_backend", "shard_optimizer"),
}
"""Keys that do not change the work of a step. Of two batch sizes the smaller is not better."""
TIMES = ("ns", "ms", "s")


def ways_in(study: Study) -> list[Axis]:
    """Return the axes whose points do the same work in different ways."""
    return [axis for axis in study.axes if len(axis.points) > 1 and WAYS.issuperset(axis.keys)]


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The point of an axis with the least time, at one combination of the other axes.

    Attributes:
        value: Index among the study's values.
        identity: Of the cell.
        place: Words for the other axes, if any.
        others: Number of points it was compared with.
    """

    value: int
    identity: str
    axis: str
    place: str
    label: str
    others: int
    next_label: str
    ratio: Ratio


def best_of(study: Study, cells: Sequence[Cell], records: Mapping[str, Record]) -> Iterator[Best]:
    """Find every time in which one point of an axis is less than all others.

    It must differ from each of the others. Requiring all tests makes a false claim no likelier than
    for one pair: at most 5 %, without a correction.
    """
    times = [pair for pair in enumerate(values_of(study)) if pair[1].shown_unit in TIMES]
    for (index, value), axis in product(times, ways_in(study)):
        others = [other.name for other in study.axes if other is not axis]
        # Place on the other axes to the repeats of each point of this one.
        places: dict[tuple[str, ...], dict[str, list[Cell]]] = {}
        for cell in cells:
            if value.applies(cell):
                points = places.setdefault(tuple(cell.point[name] for name in others), {})
                points.setdefault(cell.point[axis.name], []).append(cell)
        varying = [other.name for other in study.axes if len(other.points) > 1 and other != axis]
        for points in places.values():
            rounds = {
                label: own
                for label, repeats in points.items()
                if (own := rounds_of(repeats, records, value.number)).by_pass
            }
            if len({points[label][0].identity for label in rounds}) < 2:
                continue
            least = min(rounds, key=lambda label: rounds[label].median)
            ratios = {
                label: ratio
                for label, own in rounds.items()
                if label != least and (ratio := ratio_of(own, rounds[least])) is not None
                if ratio.state == "differs" and ratio.value > 1
            }
            is_waiting = any(own.waiting for own in rounds.values())
            if is_waiting or len(ratios) < len(rounds) - 1:
                continue
            closest = min(ratios, key=lambda label: ratios[label].value)
            first = points[least][0]
            yield Best(
                value=index,
                identity=first.identity,
                axis=axis.name,
                place=", ".join(f"{name}={first.point[name]}" for name in varying),
                label=least,
                others=len(ratios),
                next_label=closest,
                ratio=ratios[closest],
            )


def sentence_of(best: Best, value: Value) -> str:
    """``context=128: flash has the least step median of 4 points of kernel; …``."""
    ratio = best.ratio
    place = f"{best.place}: " if best.place else ""
    several = f", {counted(best.others, 'comparison')}" if best.others > 1 else ""
    return (
        f"{place}{best.label} has the least {value.name} of {best.others + 1} points of "
        f"{best.axis}; {best.next_label} comes next with {ratio.value:.2f} times as much "
        f"({ratio.low:.3f} to {ratio.high:.3f}; {ratio.why}{several})."
    )
