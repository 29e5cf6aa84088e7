"""Operators and kernels of one module in two runs, paired: by name, then by what they have in
common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TypeVar

from .exact import ZERO, Part, whole
from .rows import FUSED, Row, may_be_one_phase, unnumbered

Key = TypeVar("Key")
Pair = tuple[list[Row], list[Row]]
"""A's rows and B's; one of them may be empty."""

UNCLEAR = ("copy", "other", FUSED)
"""Categories in which two operators of equal counts need not do the same work."""


def operator_parts(a: Sequence[Row], b: Sequence[Row], *, on_device: bool) -> list[Part]:
    """The operators of one module and category with their kernels.

    An operator is known by its name and phase. Of those that are left, two are the same if they
    have the name alone in common, or a kernel, or if they are the only ones and run equally
    often. Rows without an operator are kernels by themselves.

    Args:
        on_device: Whether the rows are kernels, which a library may choose anew in each run.
    """
    pairs = _operator_pairs(a, b)
    return [part for pair in pairs for part in _operator(*pair, on_device=on_device)]


def _operator_pairs(a: Sequence[Row], b: Sequence[Row]) -> list[Pair]:
    groups_a, groups_b = _grouped(a, _by_operator), _grouped(b, _by_operator)
    pairs = [(groups_a.pop(key), groups_b.pop(key)) for key in _common(groups_a, groups_b)]
    for key in (_by_unnumbered_operator, _by_operator_alone):
        pairs += _paired_once(groups_a, groups_b, key)
    pairs += _paired_by_kernel(groups_a, groups_b)
    pairs += _paired_by_calls(groups_a, groups_b)
    pairs += [(rows, []) for rows in groups_a.values()]
    return pairs + [([], rows) for rows in groups_b.values()]


def _by_operator(row: Row) -> tuple[str, str]:
    return row.op, row.phase


def _by_unnumbered_operator(row: Row) -> tuple[str, str]:
    return unnumbered(row.op), row.phase


def _by_operator_alone(row: Row) -> tuple[str, str]:
    return row.op, ""


Groups = dict[tuple[str, str], list[Row]]


def _grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    groups: defaultdict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def _common(a: dict[Key, list[Row]], b: dict[Key, list[Row]]) -> list[Key]:
    return [key for key in a if key in b]


def _paired_once(a: Groups, b: Groups, key: Callable[[Row], tuple[str, str]]) -> list[Pair]:
    """Take out the groups that are the only ones with their key on both sides."""
    keys_a, keys_b = (_grouped((rows[0] for rows in side.values()), key) for side in (a, b))
    pairs = []
    for common in _common(keys_a, keys_b):
        (one, *more_a), (other, *more_b) = keys_a[common], keys_b[common]
        is_clear = common[0] and not more_a and not more_b
        if is_clear and may_be_one_phase(one.phase, other.phase):
            pairs.append((a.pop(_by_operator(one)), b.pop(_by_operator(other))))
    return pairs


def _paired_by_kernel(a: Groups, b: Groups) -> list[Pair]:
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


def _paired_by_calls(a: Groups, b: Groups) -> list[Pair]:
    """Take out the operators that are the only ones left in their phase, if equally frequent."""
    pairs = []
    phases_a, phases_b = (_grouped((rows[0] for rows in side.values()), _phase) for side in (a, b))
    for phase in _common(phases_a, phases_b):
        if len(phases_a[phase]) == len(phases_b[phase]) == 1:
            one, other = _by_operator(phases_a[phase][0]), _by_operator(phases_b[phase][0])
            is_clear = one[0] and other[0] and a[one][0].category not in UNCLEAR
            if is_clear and _calls(a[one]) == _calls(b[other]):
                pairs.append((a.pop(one), b.pop(other)))
    return pairs


def _phase(row: Row) -> str:
    return row.phase


def _calls(rows: Iterable[Row]) -> Fraction:
    return sum((row.calls for row in rows), ZERO)


def _operator(a: list[Row], b: list[Row], *, on_device: bool) -> list[Part]:
    """One operator's node, or the kernels alone of rows without an operator."""
    names = [(rows[0].op if rows else None) for rows in (a, b)]
    rename = bool(on_device and all(names))
    kernels = [_kernel(*pair) for pair in _kernel_pairs(a, b, rename=rename)]
    if not any(names):
        return kernels
    name, a_name = names[1] or names[0] or "", names[0]
    phase = _only_phase(a, b)
    only = kernels[0] if len(kernels) == 1 else None
    if only and (only.a_name, only.b_name) == tuple(names):
        return [
            Part(
                kind="operator",
                a_name=only.a_name,
                b_name=only.b_name,
                phase=phase,
                a_ns=only.a_ns,
                b_ns=only.b_ns,
                a_calls=only.a_calls,
                b_calls=only.b_calls,
            )
        ]
    return [whole("operator", name, kernels, a_name=a_name, phase=phase)]


def _kernel_pairs(a: Sequence[Row], b: Sequence[Row], *, rename: bool) -> list[Pair]:
    """Kernels by name; of the others those called equally often, the longest first."""
    groups_a, groups_b = _grouped(a, _name), _grouped(b, _name)
    pairs = [(groups_a.pop(name), groups_b.pop(name)) for name in _common(groups_a, groups_b)]
    plain_a, plain_b = (_by_unnumbered(groups) for groups in (groups_a, groups_b))
    for plain in plain_a.keys() & plain_b.keys():
        if len(plain_a[plain]) == len(plain_b[plain]) == 1:
            pairs.append((groups_a.pop(plain_a[plain][0]), groups_b.pop(plain_b[plain][0])))
    if rename:
        calls_a, calls_b = (_by_calls(groups.values()) for groups in (groups_a, groups_b))
        for calls in [calls for calls in calls_a if calls in calls_b]:
            for one, other in zip(calls_a[calls], calls_b[calls], strict=False):
                pairs.append((groups_a.pop(one), groups_b.pop(other)))
        if len(groups_a) == len(groups_b) == 1:
            pairs.append((groups_a.popitem()[1], groups_b.popitem()[1]))
    pairs += [(rows, []) for rows in groups_a.values()]
    return pairs + [([], rows) for rows in groups_b.values()]


def _name(row: Row) -> str:
    return row.name


def _by_unnumbered(names: Iterable[str]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        found[unnumbered(name)].append(name)
    return found


def _by_calls(groups: Iterable[list[Row]]) -> dict[Fraction, list[str]]:
    """Names of kernels by their number of calls, the longest first."""
    found: defaultdict[Fraction, list[str]] = defaultdict(list)
    for rows in sorted(groups, key=lambda rows: (-_ns(rows), rows[0].name)):
        found[_calls(rows)].append(rows[0].name)
    return found


def _ns(rows: Iterable[Row]) -> Fraction:
    return sum((row.ns for row in rows), ZERO)


def _kernel(a: Sequence[Row], b: Sequence[Row]) -> Part:
    return Part(
        kind="kernel",
        a_name=a[0].name if a else None,
        b_name=b[0].name if b else None,
        phase=_only_phase(a, b),
        a_ns=_ns(a),
        b_ns=_ns(b),
        a_calls=_calls(a) if a else None,
        b_calls=_calls(b) if b else None,
    )


def _only_phase(a: Sequence[Row], b: Sequence[Row]) -> str:
    """The phase of all rows; empty where they have several."""
    phases = {row.phase for row in (*a, *b)}
    return phases.pop() if len(phases) == 1 else ""
