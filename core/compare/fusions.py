"""Kernels that a compiler made in one run alone, with the kernels of their operators in the other.

A generated kernel does the work of several operators. A row of the other run belongs to the
kernel with an operator of its own that is in the same phase and in the nearest module around
the row; rows are never split, so every nanosecond stays where it was measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sysbench.core.compare.difference_rows import FUSED, VIEWS, Row, may_be_one_phase, plain_word
from sysbench.core.compare.nodes import pair_by
from sysbench.core.trace.names import WHOLE_MODEL


@dataclass(eq=False)
class _Fusion:
    """Generated kernels of both runs, at one place, that have operators in common."""

    module: str
    phase: str
    operators: tuple[str, ...]
    words: frozenset[str]

    @property
    def name(self) -> str:
        shown = [name for name in self.operators if plain_word(name) not in VIEWS]
        return f"fused: {' + '.join(shown or self.operators)}"


def with_fusions(a: Sequence[Row], b: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Both sides' rows, those of unmatched generated kernels and their counterparts moved.

    A moved row has the category `FUSED`, the fusion's module and phase, and its name in
    ``part_of``. Generated kernels that both sides have by name stay where they are.
    """
    keys = [{row.key for row in side} for side in (a, b)]
    left = [
        [row for row in side if row.key not in others]
        for side, others in zip((a, b), reversed(keys), strict=True)
    ]
    made = [[row for row in side if row.made_of] for side in left]
    if not any(made):
        return list(a), list(b)
    owner = _fusions(*made)
    for rows, others in zip(left, reversed(made), strict=True):
        fusions: defaultdict[str, set[_Fusion]] = defaultdict(set)
        for row in others:
            fusions[owner[id(row)].module].add(owner[id(row)])
        for row in rows:
            if not row.made_of and (fusion := _best(row, fusions)):
                owner[id(row)] = fusion
    return [_moved(row, owner) for row in a], [_moved(row, owner) for row in b]


def _moved(row: Row, owner: Mapping[int, _Fusion]) -> Row:
    fusion = owner.get(id(row))
    if fusion is None:
        return row
    return replace(
        row, category=FUSED, module=fusion.module, phase=fusion.phase, part_of=fusion.name
    )


def _fusions(a: Sequence[Row], b: Sequence[Row]) -> dict[int, _Fusion]:
    """The fusion of each generated kernel, by the row's id.

    Kernels of one place are one fusion when they are of the same operators, or when they share
    operators across the two runs: then none of them has a single counterpart.
    """
    owner: dict[int, _Fusion] = {}
    for (module, phase), sides in pair_by(a, b, lambda row: (row.module, row.phase)).items():
        for group in _connected(*sides):
            operators = tuple(sorted({name for row in group for name in row.made_of}))
            words = frozenset(word for row in group for word in row.work)
            fusion = _Fusion(module, phase, operators, words)
            owner |= {id(row): fusion for row in group}
    return owner


def _connected(a: Sequence[Row], b: Sequence[Row]) -> list[list[Row]]:
    """Groups of rows that are linked, directly or through others."""
    groups: list[list[tuple[int, Row]]] = []
    for placed in [*((0, row) for row in a), *((1, row) for row in b)]:
        linked = [group for group in groups if any(_are_linked(placed, one) for one in group)]
        groups = [group for group in groups if group not in linked]
        groups.append([placed, *(one for group in linked for one in group)])
    return [[row for _, row in group] for group in groups]


def _are_linked(one: tuple[int, Row], other: tuple[int, Row]) -> bool:
    (side, row), (other_side, other_row) = one, other
    if side == other_side:
        return set(row.made_of) == set(other_row.made_of)
    return not set(row.made_of).isdisjoint(other_row.made_of)


def _best(row: Row, fusions: Mapping[str, set[_Fusion]]) -> _Fusion | None:
    """The fusion that has most likely taken the row's work; None where none can have.

    Args:
        fusions: Of the other side, by their module.
    """
    work, phase = row.work, row.phase
    able = [
        fusion
        for module in _around(row.module)
        for fusion in fusions.get(module, ())
        if may_be_one_phase(phase, fusion.phase) and not fusion.words.isdisjoint(work)
    ]
    return min(able, key=lambda fusion: _distance(work, phase, fusion), default=None)


def _around(module: str) -> set[str]:
    """The module, those that it is in, and the whole model."""
    parts = module.split(".")
    inside = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return inside | {"", WHOLE_MODEL}


def _distance(work: frozenset[str], phase: str, fusion: _Fusion) -> tuple[object, ...]:
    """The phase and the nearest module first, then the most operators in common, the fewest others.

    The last three items make the order total.
    """
    depth = 0 if fusion.module in ("", WHOLE_MODEL) else 1 + fusion.module.count(".")
    near = phase != fusion.phase, -depth, -len(fusion.words & work), len(fusion.operators)
    return *near, fusion.module, fusion.phase, fusion.operators
