"""The cell with the least time among several ways to do one work, where a test bears it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import median

import msgspec

from ...analysis.verdict.bounds import FALSE_RATE
from ...formatting import counted
from ...record.record import Record
from ...spec.fields import COMPILE_KEYS
from ...tables.table import is_number
from ..file.study import Axis, Study
from ..run.grid import Cell
from ..values.formula import source_unit
from ..values.values import Value, values_of
from .ratios import Ratio, Rounds, ratio_of, rounds_of

WAYS = (
    *("precision", "attention", "optimizer", "checkpoint", "device", "threads", *COMPILE_KEYS),
    *("parallel", "bucket_mib", "comm_backend", "shard_optimizer"),
)
"""Keys that leave the work of a step what it is; of two batches the smaller is no better."""
TIMES = ("ns", "ms", "s")


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The point of an axis with the least time, at one combination of the other axes.

    Attributes:
        value: Index among the study's values.
        identity: Of the cell.
        axis: The axis whose points were compared.
        place: Words for the other axes; empty without any.
        label: The point's.
        others: Points that were compared with it.
        next_label: The point that comes closest.
        ratio: That one over the best, with an interval for all comparisons together.
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
    """Every time of the study's tables that one point of an axis has less of than all others.

    Each of the others is tested against it, at 5 % divided by their number: were it not the best,
    it would take at least one wrong test to call it so.

    Args:
        cells: From `expand`.
        records: By the cell's id.
    """
    repeats: dict[frozenset[tuple[str, str]], list[Cell]] = {}
    for cell in cells:
        repeats.setdefault(frozenset(cell.point.items()), []).append(cell)
    for index, value in enumerate(values_of(study)):
        if source_unit(value.formula) in TIMES:
            for axis in ways_in(study):
                yield from _of_axis(index, value, axis, study, repeats, records)


def ways_in(study: Study) -> list[Axis]:
    """The axes whose points do the same work in different ways."""
    return [
        axis
        for axis in study.axes
        if len(axis.points) > 1
        and {key for point in axis.points for key in point.settings} <= set(WAYS)
    ]


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


def _of_axis(
    index: int,
    value: Value,
    axis: Axis,
    study: Study,
    repeats: Mapping[frozenset[tuple[str, str]], Sequence[Cell]],
    records: Mapping[str, Record],
) -> Iterator[Best]:
    rest = [other for other in study.axes if other.name != axis.name]
    for labels in product(*(other.labels for other in rest)):
        place = dict(zip((other.name for other in rest), labels, strict=True))
        found: dict[str, tuple[str, Rounds]] = {}
        for label in axis.labels:
            own = repeats.get(frozenset((place | {axis.name: label}).items()), ())
            if not own or not value.applies(own[0]):
                continue
            rounds = rounds_of(own, records, value.number, is_counted=False)
            if rounds.by_pass:
                found[label] = (own[0].identity, rounds)
        best = _best(found)
        if best is not None:
            label, next_label, ratio = best
            several = [other for other in rest if len(other.points) > 1]
            yield Best(
                value=index,
                identity=found[label][0],
                axis=axis.name,
                place=", ".join(f"{other.name}={place[other.name]}" for other in several),
                label=label,
                others=len(found) - 1,
                next_label=next_label,
                ratio=ratio,
            )


def _best(found: Mapping[str, tuple[str, Rounds]]) -> tuple[str, str, Ratio] | None:
    """The label with the least median, that which comes next, and their ratio, if tested."""
    if len({identity for identity, _ in found.values()}) < 2:
        return None
    rounds = {label: of_label for label, (_, of_label) in found.items()}
    if any(of_label.waiting for of_label in rounds.values()):
        return None
    medians = {label: median(of_label.by_pass.values()) for label, of_label in rounds.items()}
    least = min(medians, key=lambda label: medians[label])
    ratios: dict[str, Ratio] = {}
    for label in rounds:
        if label == least:
            continue
        ratio = ratio_of(rounds[label], rounds[least], false_rate=FALSE_RATE / (len(rounds) - 1))
        if ratio is None or ratio.state != "differs" or not is_number(ratio.low) or ratio.low <= 1:
            return None
        ratios[label] = ratio
    closest = min(ratios, key=lambda label: ratios[label].value)
    return least, closest, ratios[closest]
