"""Pair the operators and kernels of one module in two runs: by name, then by what they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sysbench.core.compare.difference_rows import FUSED, Row, may_be_one_phase, unnumbered
from sysbench.core.compare.nodes import (
    Key,
    Kind,
    TimeNode,
    group_by,
    in_order,
    name_sides,
)

Pair = tuple[list[Row], list[Row]]
"""A's rows and B's; one of them may be empty."""
Groups = dict[tuple[str, str], list[Row]]
"""Rows by operator and phase."""

UNCLEAR = ("copy", "other", FUSED)
"""Categories in which two operators of equal counts need not do the same work."""


def operator_nodes(a: Sequence[Row], b: Sequence[Row], *, on_device: bool) -> list[TimeNode]:
    """Match the operators of one module and category, with their kernels.

    An operator is known by its name and phase. Of those that are left, two are the same if they
    have the name alone in common, or a kernel, or if they are the only ones and run equally
    often. Rows without an operator are kernels by themselves.

    Args:
        a: Rows of A.
        b: Rows of B.
        on_device: Whether the rows are kernels, which a library may choose again in each run.
    """
    pairs = _operator_pairs(a, b)
    return [node for pair in pairs for node in _operator(*pair, on_device=on_device)]


def _operator_pairs(a: Sequence[Row], b: Sequence[Row]) -> list[Pair]:
    groups_a, groups_b = group_by(a, _by_operator), group_by(b, _by_operator)
    pairs = [(groups_a.pop(key), groups_b.pop(key)) for key in _common(groups_a, groups_b)]
    pairs += _pair_once(groups_a, groups_b, lambda row: (unnumbered(row.op), row.phase))
    pairs += _pair_once(groups_a, groups_b, lambda row: (row.op, ""))
    pairs += _pair_by_kernel(groups_a, groups_b)
    pairs += _pair_by_calls(groups_a, groups_b)
    pairs += [(rows, []) for rows in groups_a.values()]
    return pairs + [([], rows) for rows in groups_b.values()]


def _by_operator(row: Row) -> tuple[str, str]:
    return row.op, row.phase


def _common(a: dict[Key, list[Row]], b: dict[Key, list[Row]]) -> list[Key]:
    return [key for key in a if key in b]


def _pair_once(a: Groups, b: Groups, key: Callable[[Row], tuple[str, str]]) -> list[Pair]:
    """Take out the groups that are the only ones with their key on both sides."""
    keys_a, keys_b = (group_by((rows[0] for rows in side.values()), key) for side in (a, b))
    pairs = []
    for common in _common(keys_a, keys_b):
        (one, *more_a), (other, *more_b) = keys_a[common], keys_b[common]
        is_clear = common[0] and not more_a and not more_b
        if is_clear and may_be_one_phase(one.phase, other.phase):
            pairs.append((a.pop(_by_operator(one)), b.pop(_by_operator(other))))
    return pairs


def _pair_by_kernel(a: Groups, b: Groups) -> list[Pair]:
    """Take out pairs of one phase that have kernels in common, the most in common first."""
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


def _pair_by_calls(a: Groups, b: Groups) -> list[Pair]:
    """Take out the operators that are the only ones left in their phase, if equally frequent."""
    pairs = []
    phases_a, phases_b = (group_by(side, lambda key: key[1]) for side in (a, b))
    for phase in phases_a.keys() & phases_b.keys():
        if len(phases_a[phase]) == len(phases_b[phase]) == 1:
            (one,), (other,) = phases_a[phase], phases_b[phase]
            is_clear = one[0] and other[0] and a[one][0].category not in UNCLEAR
            if is_clear and _calls(a[one]) == _calls(b[other]):
                pairs.append((a.pop(one), b.pop(other)))
    return pairs


def _operator(a: list[Row], b: list[Row], *, on_device: bool) -> list[TimeNode]:
    """One operator's node, or the kernels alone of rows without an operator."""
    names = _names("operator", a, b)
    pairs = _kernel_pairs(a, b, rename=bool(on_device and all(names)))
    kernels = [_node("kernel", *pair) for pair in pairs]
    if not any(names):
        return kernels
    if len(pairs) == 1 and _names("kernel", *pairs[0]) == names:
        kernels = []
    return [_node("operator", a, b, in_order(kernels))]


def _kernel_pairs(a: Sequence[Row], b: Sequence[Row], *, rename: bool) -> list[Pair]:
    """Kernels by name; of the others those called equally often, the longest first."""
    groups_a, groups_b = (group_by(rows, lambda row: row.name) for rows in (a, b))
    pairs = [(groups_a.pop(name), groups_b.pop(name)) for name in _common(groups_a, groups_b)]
    plain_a, plain_b = (group_by(groups, unnumbered) for groups in (groups_a, groups_b))
    for plain in plain_a.keys() & plain_b.keys():
        if len(plain_a[plain]) == len(plain_b[plain]) == 1:
            pairs.append((groups_a.pop(plain_a[plain][0]), groups_b.pop(plain_b[plain][0])))
    if rename:
        calls_a, calls_b = (_by_calls(groups) for groups in (groups_a, groups_b))
        for calls in [calls for calls in calls_a if calls in calls_b]:
            for one, other in zip(calls_a[calls], calls_b[calls], strict=False):
                pairs.append((groups_a.pop(one), groups_b.pop(other)))
        if len(groups_a) == len(groups_b) == 1:
            pairs.append((groups_a.popitem()[1], groups_b.popitem()[1]))
    pairs += [(rows, []) for rows in groups_a.values()]
    return pairs + [([], rows) for rows in groups_b.values()]


def _by_calls(groups: dict[str, list[Row]]) -> dict[float, list[str]]:
    """Names of kernels by their number of calls, the longest first."""
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
