"""The change of the traced step, row by row: category, module, operator, kernel.

Rows of two tables are matched by module path, then by operator and phase, then by kernel. What
has no counterpart is new or gone; nothing is left out, so the rows add up to the change of the
step. Layers that changed alike are one row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median
from typing import TypeVar

from ...record.record import Kernels
from ..kernels.layers import LAYER_NUMBER, ODD_DEVIATIONS, ODD_SHARE, fold_layer_numbers, ranges
from .exact import ZERO, Part, rounded, whole
from .fusions import with_fusions
from .nodes import Kind, TimeNode
from .pairing import operator_parts
from .rows import Row, has_layers, module_paths, per_step, rows_of, same_modules

FEWEST_LAYERS = 3
"""Of fewer layers none can be an outlier among the others."""
NORMAL_SCALE = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
NS_PER_MS = 1e6
Key = TypeVar("Key")
IDLE, UNATTRIBUTED, UNACCOUNTED = "idle", "unattributed", "not in the rows"


@dataclass(frozen=True, slots=True)
class Levels:
    """What two tables can be matched by, and why not by more."""

    by_layer: bool
    by_module: bool
    notes: tuple[str, ...]


def levels_of(a: Kernels, b: Kernels) -> Levels:
    """The levels that both tables have."""
    notes = []
    by_layer = has_layers(a) and has_layers(b)
    paths_a, paths_b = (
        module_paths(side) if by_layer else set(map(fold_layer_numbers, module_paths(side)))
        for side in (a, b)
    )
    by_module = bool(paths_a and paths_b)
    if not by_module and (paths_a or paths_b):
        side = "B" if paths_a else "A"
        notes.append(f"{side} names no modules: operators are matched across the whole model")
    elif by_module and paths_a.isdisjoint(paths_b) and not same_modules(paths_a, paths_b):
        by_module = False
        notes.append("no module of A is in B: operators are matched across the whole model")
    if by_module and not by_layer:
        notes.append("layers are summed: a side has no table layer by layer")
    return Levels(by_layer, by_module, tuple(notes))


def time_difference(a: Kernels, b: Kernels) -> TimeNode:
    """The traced step of B against A's, in whole nanoseconds per step.

    The root is each side's step (the span of a foreign trace), rounded; `rounded` says how rows
    are. Rows that do not add up to their step, as no table of this program does, leave a row with
    what is missing.

    Args:
        a: Best with one row a layer, as the trace pass's ``kernels.json`` has them.
        b: The table that is compared against ``a``.
    """
    levels = levels_of(a, b)
    rows_a, rows_b = (
        rows_of(side, by_layer=levels.by_layer, by_module=levels.by_module) for side in (a, b)
    )
    names = same_modules(module_paths(a), module_paths(b)) if levels.by_layer else {}
    rows_a = [replace(row, module=names.get(row.module, row.module)) for row in rows_a]
    rows_a, rows_b = with_fusions(rows_a, rows_b)
    tree = _Tree(
        a_names={new: old for old, new in names.items()},
        on_device=a.source == b.source == "kernels",
    )
    parts = [
        whole("category", category, tree.modules(*sides))
        for category, sides in _paired(rows_a, rows_b, lambda row: row.category).items()
    ]
    parts += _not_running(a, b)
    a_step, b_step = (_step(side) for side in (a, b))
    a_gap = a_step - sum((part.a_ns for part in parts), ZERO)
    b_gap = b_step - sum((part.b_ns for part in parts), ZERO)
    if a_gap or b_gap:
        parts.append(_lasting("rest", UNACCOUNTED, a_gap, b_gap))
    step = whole("step", b.whole, parts)
    return rounded(replace(step, a_name=b.whole, b_name=b.whole, a_ns=a_step, b_ns=b_step))


def _step(kernels: Kernels) -> Fraction:
    """Exact nanoseconds of a traced step."""
    return per_step(kernels.step_ms * NS_PER_MS, kernels)


def _paired(
    a: Iterable[Row], b: Iterable[Row], key: Callable[[Row], Key]
) -> dict[Key, tuple[list[Row], list[Row]]]:
    """The rows of each key on both sides; where a side has none, its list is empty."""
    sides: defaultdict[Key, tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    for side, rows in enumerate((a, b)):
        for row in rows:
            sides[key(row)][side].append(row)
    return dict(sides)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """Makes the levels below a category.

    Attributes:
        a_names: Paths of modules that have another path in A, by that in B.
        on_device: Whether both tables are of kernels.
    """

    a_names: Mapping[str, str]
    on_device: bool

    def modules(self, a: Sequence[Row], b: Sequence[Row]) -> list[Part]:
        """Nodes of modules, or of operators where the level of modules is left out."""
        sides = _paired(a, b, lambda row: row.module)
        if sides.keys() == {""}:
            return self.operators(*sides[""])
        return [
            whole(
                "module",
                layers_label(paths),
                self.operators(
                    [row for path in paths for row in sides[path][0]],
                    [row for path in paths for row in sides[path][1]],
                ),
                a_name=layers_label([self.a_names.get(path, path) for path in paths]),
            )
            for paths in _alike(sides)
        ]

    def operators(self, a: Sequence[Row], b: Sequence[Row]) -> list[Part]:
        """Nodes of operators; those of a fusion below its node."""
        parts = []
        for (name, phase), sides in _paired(a, b, lambda row: (row.part_of, row.phase)).items():
            if name:
                operators = operator_parts(*sides, on_device=self.on_device)
                parts.append(whole("fused", name, operators, phase=phase))
        alone = ([row for row in side if not row.part_of] for side in (a, b))
        return parts + operator_parts(*alone, on_device=self.on_device)


def _alike(sides: Mapping[str, tuple[list[Row], list[Row]]]) -> Iterator[list[str]]:
    """Paths that make one row: layers present on the same sides, without the outliers."""
    groups: defaultdict[tuple[str, bool, bool], list[str]] = defaultdict(list)
    for path, (a, b) in sides.items():
        groups[fold_layer_numbers(path), bool(a), bool(b)].append(path)
    for paths in groups.values():
        odd = _outliers({path: (_ns(sides[path][0]), _ns(sides[path][1])) for path in paths})
        yield from ([path] for path in odd)
        yield [path for path in paths if path not in odd]


def _outliers(times: Mapping[str, tuple[Fraction, Fraction]]) -> set[str]:
    """Layers whose change is far from the median change of all.

    As in the tree of one run: by more than `ODD_SHARE` of the layers' median time and by more
    than `ODD_DEVIATIONS` scaled median absolute deviations, which leaves at least half.
    """
    if len(times) < FEWEST_LAYERS:
        return set()
    typical = median(max(sides) for sides in times.values())
    changes = {path: b - a for path, (a, b) in times.items()}
    middle = median(changes.values())
    spread = NORMAL_SCALE * float(median(abs(change - middle) for change in changes.values()))
    limit = max(ODD_SHARE * float(typical), ODD_DEVIATIONS * spread)
    return {path for path, change in changes.items() if abs(change - middle) > limit}


def layers_label(paths: Sequence[str]) -> str:
    """One name for modules that differ in numbers: ``blocks.0–11.attention``.

    Where they differ in more than one number, or their layers were summed before: ``*``.
    """
    folded = fold_layer_numbers(paths[0])
    if len(paths) == 1:
        return paths[0]
    numbers = [[int(number) for number in LAYER_NUMBER.findall(path)] for path in paths]
    varying = [
        place for place, found in enumerate(zip(*numbers, strict=True)) if len(set(found)) > 1
    ]
    if len(varying) != 1:
        return folded
    texts = [str(number) for number in numbers[0]]
    texts[varying[0]] = ranges(sorted(found[varying[0]] for found in numbers))
    return LAYER_NUMBER.sub(lambda _: texts.pop(0), paths[0])


def _ns(rows: Iterable[Row]) -> Fraction:
    return sum((row.ns for row in rows), ZERO)


def _not_running(a: Kernels, b: Kernels) -> Iterator[Part]:
    """Idle time by cause, and unattributed time where a side has any."""
    idle = [{row.cause: per_step(row.ns, side) for row in side.idle} for side in (a, b)]
    causes = [
        _lasting("idle", cause, *(side.get(cause, ZERO) for side in idle))
        for cause in dict.fromkeys([*idle[0], *idle[1]])
    ]
    yield replace(whole("idle", IDLE, causes), a_name=IDLE, b_name=IDLE)
    unattributed = [per_step(side.unattributed_ns, side) for side in (a, b)]
    if any(unattributed):
        yield _lasting("unattributed", UNATTRIBUTED, *unattributed)


def _lasting(kind: Kind, name: str, a_ns: Fraction, b_ns: Fraction) -> Part:
    """Time of both sides in which no row ran."""
    return Part(kind=kind, a_name=name, b_name=name, a_ns=a_ns, b_ns=b_ns)
