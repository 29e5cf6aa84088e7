"""Exact sums of a tree, and their rounding to whole units such that every level still adds up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

from .nodes import Kind, State, TimeNode

ZERO = Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A node before rounding: exact nanoseconds and calls per step, null on a side without it.

    Its times are those of its rows, which are its children's where it has any.
    """

    kind: Kind
    a_name: str | None
    b_name: str | None
    phase: str = ""
    a_ns: Fraction = ZERO
    b_ns: Fraction = ZERO
    a_calls: Fraction | None = None
    b_calls: Fraction | None = None
    children: Sequence[Part] = field(default=())

    @property
    def name(self) -> str:
        """B's name, or A's where B has none."""
        return self.a_name or "" if self.b_name is None else self.b_name

    @property
    def state(self) -> State:
        """On which sides it is, and whether under one name."""
        if self.a_name is None:
            return "new"
        if self.b_name is None:
            return "gone"
        return "both" if self.a_name == self.b_name else "renamed"


def whole(
    kind: Kind,
    name: str,
    children: Sequence[Part],
    *,
    a_name: str | None = None,
    phase: str = "",
) -> Part:
    """A node that consists of its children, on each side on which one of them is."""
    on_a = any(child.a_name is not None for child in children)
    on_b = any(child.b_name is not None for child in children)
    return Part(
        kind=kind,
        a_name=(a_name or name) if on_a else None,
        b_name=name if on_b else None,
        phase=phase,
        a_ns=sum((child.a_ns for child in children), ZERO),
        b_ns=sum((child.b_ns for child in children), ZERO),
        a_calls=_sum(child.a_calls for child in children),
        b_calls=_sum(child.b_calls for child in children),
        children=children,
    )


def _sum(values: Iterable[Fraction | None]) -> Fraction | None:
    known = [value for value in values if value is not None]
    return sum(known, ZERO) if known else None


def rounded(root: Part) -> TimeNode:
    """The tree in whole nanoseconds, the biggest change first at every level.

    Times per step are sums over the traced steps divided by their number, hence fractions. The
    root is rounded to the nearest; at every level below, each side's children get their whole
    part, and what the parent has beyond those goes, one nanosecond each, to the children with
    the largest remainders (Hamilton's method of apportionment). A node is thus less than one
    nanosecond from its exact time, and the children of every node add up to it, in A, in B and
    in the change.
    """
    return _node(root, round(root.a_ns), round(root.b_ns))


def _node(part: Part, a_ns: int, b_ns: int) -> TimeNode:
    below = part.children
    a_parts = apportion(a_ns, [(child.a_ns, _place(child, child.a_name)) for child in below])
    b_parts = apportion(b_ns, [(child.b_ns, _place(child, child.b_name)) for child in below])
    children = [_node(*child) for child in zip(below, a_parts, b_parts, strict=True)]
    children.sort(key=lambda node: (-abs(node.change), -max(node.amounts), node.name, node.phase))
    return TimeNode(
        kind=part.kind,
        name=part.name,
        state=part.state,
        a_name=(part.a_name or "") if part.state == "renamed" else "",
        phase=part.phase,
        a_ns=a_ns,
        b_ns=b_ns,
        a_calls=None if part.a_calls is None else float(part.a_calls),
        b_calls=None if part.b_calls is None else float(part.b_calls),
        children=children,
    )


def _place(part: Part, name: str | None) -> tuple[str, ...]:
    """Decides between equal remainders; the same with A and B exchanged."""
    in_both = part.a_name is not None and part.b_name is not None
    return name or "", part.phase, part.kind, str(in_both)


def apportion(total: int, shares: Sequence[tuple[Fraction, tuple[str, ...]]]) -> list[int]:
    """Whole numbers that add up to ``total``, each less than one from its exact share.

    Args:
        total: The sum of the shares, rounded up or down.
        shares: Each exact, with a key that decides between equal remainders.
    """
    parts = [floor(share) for share, _ in shares]
    order = sorted(
        range(len(shares)), key=lambda index: (parts[index] - shares[index][0], shares[index][1])
    )
    for index in order[: total - sum(parts)]:
        parts[index] += 1
    return parts
