"""The cell with the least time among several ways to do one work, where verdicts bear it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import msgspec

from sysbench.core.formatting import counted
from sysbench.core.record.record import Record
from sysbench.core.spec.fields import COMPILE_KEYS
from sysbench.core.studies.cell_values import Value, values_of
from sysbench.core.studies.formula import source_unit
from sysbench.core.studies.ratios import Ratio, ratio_of, rounds_of
from sysbench.core.studies.study_file import Axis, Study
from sysbench.core.studies.study_grid import Cell

WAYS = {
    *("precision", "attention", "optimizer", "checkpoint", "device", "threads", *COMPILE_KEYS),
    *("parallel", "bucket_mib", "comm_backend", "shard_optimizer"),
}
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
        ratio: That one over the best.
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
    """Find every time of the study's tables that one point of an axis has less of than all others.

    It takes the verdict "differs" against each of the others. All of them must hold, which makes a
    false claim no likelier than one of two points: at most 5 %, without a correction.

    Args:
        cells: From `expand`.
        records: By the cell's id.
    """
    repeats: dict[frozenset[tuple[str, str]], list[Cell]] = {}
    for cell in cells:
        repeats.setdefault(frozenset(cell.point.items()), []).append(cell)
    for index, value in enumerate(values_of(study)):
        for axis in ways_in(study) if source_unit(value.formula) in TIMES else ():
            rest = [other for other in study.axes if other.name != axis.name]
            for labels in product(*(other.labels for other in rest)):
                place = dict(zip((other.name for other in rest), labels, strict=True))
                points = {
                    label: repeats.get(frozenset((place | {axis.name: label}).items()), [])
                    for label in axis.labels
                }
                found = _least(value, points, records)
                if found is None:
                    continue
                label, others, next_label, ratio = found
                yield Best(
                    value=index,
                    identity=points[label][0].identity,
                    axis=axis.name,
                    place=", ".join(
                        f"{other.name}={place[other.name]}"
                        for other in rest
                        if len(other.points) > 1
                    ),
                    label=label,
                    others=others,
                    next_label=next_label,
                    ratio=ratio,
                )


def ways_in(study: Study) -> list[Axis]:
    """The axes whose points do the same work in different ways."""
    return [
        axis
        for axis in study.axes
        if len(axis.points) > 1 and {key for point in axis.points for key in point.settings} <= WAYS
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


def _least(
    value: Value, points: Mapping[str, Sequence[Cell]], records: Mapping[str, Record]
) -> tuple[str, int, str, Ratio] | None:
    """The label with the least median, the count of others, the next one and their ratio."""
    rounds = {
        label: rounds_of(cells, records, value.number, is_counted=False)
        for label, cells in points.items()
        if cells and value.applies(cells[0])
    }
    rounds = {label: of_label for label, of_label in rounds.items() if of_label.by_pass}
    if len({points[label][0].identity for label in rounds}) < 2:
        return None
    least = min(rounds, key=lambda label: rounds[label].median)
    ratios = {label: ratio_of(rounds[label], rounds[least]) for label in rounds if label != least}
    differing = {
        label: ratio
        for label, ratio in ratios.items()
        if ratio is not None and ratio.state == "differs" and ratio.value > 1
    }
    if len(differing) < len(ratios) or any(one.waiting for one in rounds.values()):
        return None
    closest = min(differing, key=lambda label: differing[label].value)
    return least, len(ratios), closest, differing[closest]
