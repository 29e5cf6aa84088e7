"""The change of the traced step, row by row: category, module, operator, kernel.

Rows of two tables are matched by module path, then by operator and phase, then by kernel. What
has no counterpart is new or gone; nothing is left out, so the rows add up to the change of the
step. Layers that changed alike are one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from sysbench.core.compare.difference_rows import (
    Row,
    has_layers,
    module_paths,
    rows_of,
    same_modules,
)
from sysbench.core.compare.fusions import with_fusions
from sysbench.core.compare.nodes import (
    Kind,
    TimeNode,
    group_by,
    in_order,
    name_sides,
    pair_by,
)
from sysbench.core.compare.pairing import operator_nodes
from sysbench.core.record.record import Kernels
from sysbench.core.trace.layers import (
    LAYER_NUMBER,
    ODD_DEVIATIONS,
    ODD_SHARE,
    fold_layer_numbers,
    ranges,
)

FEWEST_LAYERS = 3
"""Of fewer layers none can be an outlier among the others."""
NORMAL_SCALE = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
NS_PER_MS = 1e6
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
    """Compare the traced step of B with A's, in whole nanoseconds per step.

    Every row is rounded once, and the nodes above are sums of rows: the step (the span of an
    imported trace) is off its measured length by at most half a nanosecond a row. Rows that lack
    more than that leave a row with what is missing.

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
    matching = _Matching(
        a_names={new: old for old, new in names.items()},
        on_device=a.source == b.source == "kernels",
    )
    nodes = [
        _whole("category", category, matching.modules(*sides))
        for category, sides in pair_by(rows_a, rows_b, lambda row: row.category).items()
    ]
    nodes += _not_running(a, b)
    gaps = [
        round(side.step_ms * NS_PER_MS) - sum(node.amounts[place] for node in nodes)
        for place, side in enumerate((a, b))
    ]
    sides = ((rows_a, a, gaps[0]), (rows_b, b, gaps[1]))
    if any(2 * abs(gap) > len(rows) + len(side.idle) + 2 for rows, side, gap in sides):
        nodes.append(_lasting("rest", UNACCOUNTED, gaps))
    return _whole("step", b.whole, nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matching:
    """Makes the levels below a category.

    Attributes:
        a_names: Paths of modules that have another path in A, by that in B.
        on_device: Whether both tables are of kernels.
    """

    a_names: Mapping[str, str]
    on_device: bool

    def modules(self, a: Sequence[Row], b: Sequence[Row]) -> list[TimeNode]:
        """Nodes of modules, or of operators where the level of modules is left out."""
        sides = pair_by(a, b, lambda row: row.module)
        if sides.keys() == {""}:
            return self.operators(*sides[""])
        return [
            _whole(
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

    def operators(self, a: Sequence[Row], b: Sequence[Row]) -> list[TimeNode]:
        """Nodes of operators; those of a fusion below its node."""
        nodes = []
        for (fusion, phase), sides in pair_by(a, b, lambda row: (row.part_of, row.phase)).items():
            if fusion:
                operators = operator_nodes(*sides, on_device=self.on_device)
                nodes.append(_whole("fused", fusion, operators, phase=phase))
        alone = ([row for row in side if not row.part_of] for side in (a, b))
        return nodes + operator_nodes(*alone, on_device=self.on_device)


def _whole(
    kind: Kind, name: str, children: Iterable[TimeNode], *, a_name: str = "", phase: str = ""
) -> TimeNode:
    """A node that is the sum of its children, on each side on which one of them is."""
    below = in_order(children)
    on_a = any(child.state != "new" for child in below)
    on_b = any(child.state != "gone" for child in below)
    name, state, a_name = name_sides((a_name or name) if on_a else None, name if on_b else None)
    return TimeNode(
        kind=kind,
        name=name,
        state=state,
        a_name=a_name,
        phase=phase,
        a_ns=sum(child.a_ns for child in below),
        b_ns=sum(child.b_ns for child in below),
        a_calls=_sum(child.a_calls for child in below),
        b_calls=_sum(child.b_calls for child in below),
        children=below,
    )


def _sum(calls: Iterable[float | None]) -> float | None:
    known = [count for count in calls if count is not None]
    return round(sum(known), 9) if known else None


def _alike(sides: Mapping[str, tuple[list[Row], list[Row]]]) -> Iterator[list[str]]:
    """Paths that make one row: layers present on the same sides, without the outliers."""

    def alike(path: str) -> tuple[str, bool, bool]:
        a, b = sides[path]
        return fold_layer_numbers(path), bool(a), bool(b)

    for paths in group_by(sides, alike).values():
        odd = _outliers({path: (_ns(sides[path][0]), _ns(sides[path][1])) for path in paths})
        yield from ([path] for path in odd)
        yield [path for path in paths if path not in odd]


def _ns(rows: Iterable[Row]) -> int:
    return sum(row.ns for row in rows)


def _outliers(times: Mapping[str, tuple[int, int]]) -> set[str]:
    """Layers whose change is far from the median change of all.

    As in the tree of one run: by more than `ODD_SHARE` of the layers' median time and by more
    than `ODD_DEVIATIONS` scaled median absolute deviations, which leaves at least half.
    """
    if len(times) < FEWEST_LAYERS:
        return set()
    typical = median(max(sides) for sides in times.values())
    changes = {path: b - a for path, (a, b) in times.items()}
    middle = median(changes.values())
    spread = NORMAL_SCALE * median(abs(change - middle) for change in changes.values())
    limit = max(ODD_SHARE * typical, ODD_DEVIATIONS * spread)
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


def _not_running(a: Kernels, b: Kernels) -> list[TimeNode]:
    """Idle time by cause, and unattributed time where a side has any."""
    idle = [{row.cause: round(row.ns) for row in side.idle} for side in (a, b)]
    causes = [
        _lasting("idle", cause, [side.get(cause, 0) for side in idle])
        for cause in dict.fromkeys([*idle[0], *idle[1]])
    ]
    nodes = [_lasting("idle", IDLE, [sum(side.values()) for side in idle], causes)]
    unattributed = [round(side.unattributed_ns) for side in (a, b)]
    if any(unattributed):
        nodes.append(_lasting("unattributed", UNATTRIBUTED, unattributed))
    return nodes


def _lasting(
    kind: Kind, name: str, amounts: Sequence[int], children: Sequence[TimeNode] = ()
) -> TimeNode:
    """Time of both sides in which no row ran."""
    a, b = amounts
    below = in_order(children)
    return TimeNode(kind=kind, name=name, state="both", a_ns=a, b_ns=b, children=below)
