"""Explain the change of the traced step row by row: category, module, operator, kernel.

Rows of two tables are matched by module path, then by operator and phase, then by kernel. Rows
without a counterpart are new or gone; nothing is left out, so the rows add up to the change of the
step. Layers that changed alike are one row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from sysbench.core.compare.nodes import (
    FUSED,
    VIEWS,
    Kind,
    Row,
    TimeNode,
    has_layers,
    in_order,
    may_be_one_phase,
    module_paths,
    name_sides,
    pair_by,
    plain_word,
    rows_of,
    same_modules,
    unnumbered,
)
from sysbench.core.record.record import Kernels
from sysbench.core.trace.classify import WHOLE_MODEL
from sysbench.core.trace.module_tree import (
    LAYER_NUMBER,
    Key,
    find_outliers,
    fold_layer_numbers,
    group_by,
    ranges,
)


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
    """Move unmatched generated kernels and their counterparts to rows of their fusion.

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

    Kernels of one place are one fusion if they are of the same operators, or if they share
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
    """The fusion of the other side most likely to contain the row's work, or None."""
    work, phase = row.work, row.phase
    able = [
        fusion
        for module in _around(row.module)
        for fusion in fusions.get(module, ())
        if may_be_one_phase(phase, fusion.phase) and not fusion.words.isdisjoint(work)
    ]
    return min(able, key=lambda fusion: _distance(work, phase, fusion), default=None)


def _around(module: str) -> set[str]:
    parts = module.split(".")
    inside = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return inside | {"", WHOLE_MODEL}


def _distance(work: frozenset[str], phase: str, fusion: _Fusion) -> tuple[object, ...]:
    """Order by phase and nearest module, then most operators in common, then fewest others.

    The last three items make the order total.
    """
    depth = 0 if fusion.module in ("", WHOLE_MODEL) else 1 + fusion.module.count(".")
    near = phase != fusion.phase, -depth, -len(fusion.words & work), len(fusion.operators)
    return *near, fusion.module, fusion.phase, fusion.operators


Pair = tuple[list[Row], list[Row]]
"""A's rows and B's; one of them may be empty."""
Groups = dict[tuple[str, str], list[Row]]
"""Rows by operator and phase."""

UNCLEAR = ("copy", "other", FUSED)
"""Categories in which two operators of equal counts need not do the same work."""


def operator_nodes(a: Sequence[Row], b: Sequence[Row], *, on_device: bool) -> list[TimeNode]:
    """Match the operators of one module and category, with their kernels.

    An operator is identified by name and phase. Of the remaining ones, two are the same if they
    share only the name, or a kernel, or if they are the only ones and run equally often. Rows
    without an operator are kernels by themselves; on a device a library may choose them differently
    in each run.
    """
    pairs = _operator_pairs(a, b)
    return [node for pair in pairs for node in _operator(*pair, on_device=on_device)]


def _operator_pairs(a: Sequence[Row], b: Sequence[Row]) -> list[Pair]:
    groups_a, groups_b = (group_by(rows, lambda row: (row.op, row.phase)) for rows in (a, b))
    pairs = _pair_unique(groups_a, groups_b, lambda key: key)
    pairs += _pair_unique(groups_a, groups_b, lambda key: (unnumbered(key[0]), key[1]), _is_clear)
    pairs += _pair_unique(groups_a, groups_b, lambda key: key[0], _is_clear)
    pairs += _pair_by_kernel(groups_a, groups_b)
    # The only remaining operators of a phase, if equally frequent.
    pairs += _pair_unique(groups_a, groups_b, lambda key: key[1], _do_the_same)
    return pairs + _unpaired(groups_a, groups_b)


def _unpaired(a: dict[Key, list[Row]], b: dict[Key, list[Row]]) -> list[Pair]:
    return [*((rows, []) for rows in a.values()), *(([], rows) for rows in b.values())]


def _pair_unique(
    a: dict[Key, list[Row]],
    b: dict[Key, list[Row]],
    label: Callable[[Key], object],
    fits: Callable[[list[Row], list[Row]], bool] = lambda *_: True,
) -> list[Pair]:
    """Remove and pair groups whose label is unique on both sides, if they fit."""
    by_label_a, by_label_b = group_by(a, label), group_by(b, label)
    pairs = []
    for shared in [one for one in by_label_a if one in by_label_b]:
        if len(by_label_a[shared]) == len(by_label_b[shared]) == 1:
            (one,), (other,) = by_label_a[shared], by_label_b[shared]
            if fits(a[one], b[other]):
                pairs.append((a.pop(one), b.pop(other)))
    return pairs


def _is_clear(a: list[Row], b: list[Row]) -> bool:
    return bool(a[0].op and b[0].op) and may_be_one_phase(a[0].phase, b[0].phase)


def _do_the_same(a: list[Row], b: list[Row]) -> bool:
    return _is_clear(a, b) and a[0].category not in UNCLEAR and _calls(a) == _calls(b)


def _pair_by_kernel(a: Groups, b: Groups) -> list[Pair]:
    """Remove and pair groups of one phase that share kernels, the most in common first."""
    names_a, names_b = (
        {key: {row.name for row in rows} for key, rows in side.items() if key[0]} for side in (a, b)
    )
    ranked = sorted(
        (-len(shared), *sorted((one, other)), one, other)
        for one, kernels in names_a.items()
        for other, others in names_b.items()
        if one[1] == other[1] and (shared := kernels & others)
    )
    pairs = []
    for *_, one, other in ranked:
        if one in a and other in b:
            pairs.append((a.pop(one), b.pop(other)))
    return pairs


def _operator(a: list[Row], b: list[Row], *, on_device: bool) -> list[TimeNode]:
    names = _names("operator", a, b)
    pairs = _kernel_pairs(a, b, rename=bool(on_device and all(names)))
    kernels = [_node("kernel", *pair) for pair in pairs]
    if not any(names):
        return kernels
    if len(pairs) == 1 and _names("kernel", *pairs[0]) == names:
        kernels = []
    return [_node("operator", a, b, in_order(kernels))]


def _kernel_pairs(a: Sequence[Row], b: Sequence[Row], *, rename: bool) -> list[Pair]:
    """Pair kernels by name; the others by number of calls, the longest first."""
    groups_a, groups_b = (group_by(rows, lambda row: row.name) for rows in (a, b))
    pairs = _pair_unique(groups_a, groups_b, lambda name: name)
    pairs += _pair_unique(groups_a, groups_b, unnumbered)
    if rename:
        calls_a, calls_b = (_by_calls(groups) for groups in (groups_a, groups_b))
        for calls in [calls for calls in calls_a if calls in calls_b]:
            for one, other in zip(calls_a[calls], calls_b[calls], strict=False):
                pairs.append((groups_a.pop(one), groups_b.pop(other)))
        pairs += _pair_unique(groups_a, groups_b, lambda _: "")
    return pairs + _unpaired(groups_a, groups_b)


def _by_calls(groups: dict[str, list[Row]]) -> dict[float, list[str]]:
    longest = sorted(groups, key=lambda name: (-sum(row.ns for row in groups[name]), name))
    return group_by(longest, lambda name: _calls(groups[name]))


def _calls(rows: Iterable[Row]) -> float:
    """Calls per step, rounded so that equal numbers over unlike numbers of steps are equal."""
    return round(sum(row.calls for row in rows), 9)


def _names(kind: Kind, *sides: Sequence[Row]) -> list[str | None]:
    return [
        None if not rows else rows[0].op if kind == "operator" else rows[0].name for rows in sides
    ]


def _node(
    kind: Kind, a: Sequence[Row], b: Sequence[Row], children: Sequence[TimeNode] = ()
) -> TimeNode:
    name, state, a_name = name_sides(*_names(kind, a, b))
    phases = {row.phase for row in (*a, *b)}
    return TimeNode(
        kind=kind,
        name=name,
        state=state,
        a_name=a_name,
        phase=phases.pop() if len(phases) == 1 else "",
        a_ns=sum(row.ns for row in a),
        b_ns=sum(row.ns for row in b),
        a_calls=_calls(a) if a else None,
        b_calls=_calls(b) if b else None,
        children=list(children),
    )


NS_PER_MS = 1e6
IDLE, UNATTRIBUTED, UNACCOUNTED = "idle", "unattributed", "not in the rows"


@dataclass(frozen=True, slots=True)
class Levels:
    by_layer: bool
    by_module: bool
    notes: tuple[str, ...]


def levels_of(a: Kernels, b: Kernels) -> Levels:
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
        notes.append("layers are summed: one side has no rows per layer")
    return Levels(by_layer, by_module, tuple(notes))


def time_difference(a: Kernels, b: Kernels) -> TimeNode:
    """Compare the traced step of B with A's, in whole nanoseconds per step.

    Every row is rounded once, and the nodes above are sums of rows: the step (the span of an
    imported trace) is off its measured length by at most half a nanosecond a row. A larger
    difference becomes a row of its own.
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
    """Builds the levels below a category. ``a_names`` maps paths in B to those in A."""

    a_names: Mapping[str, str]
    on_device: bool

    def modules(self, a: Sequence[Row], b: Sequence[Row]) -> list[TimeNode]:
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
    """Group paths into rows: layers present on the same sides, without outliers by their change."""

    def alike(path: str) -> tuple[str, bool, bool]:
        a, b = sides[path]
        return fold_layer_numbers(path), bool(a), bool(b)

    for paths in group_by(sides, alike).values():
        times = {path: [sum(row.ns for row in side) for side in sides[path]] for path in paths}
        typical = median(map(max, times.values()))
        odd = find_outliers({path: b - a for path, (a, b) in times.items()}, typical)
        yield from ([path] for path in odd)
        yield [path for path in paths if path not in odd]


def layers_label(paths: Sequence[str]) -> str:
    """One name for modules that differ in numbers: ``blocks.0–11.attention``.

    ``*`` if they differ in more than one number, or if their layers were summed before.
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
    a, b = amounts
    below = in_order(children)
    return TimeNode(kind=kind, name=name, state="both", a_ns=a, b_ns=b, children=below)
