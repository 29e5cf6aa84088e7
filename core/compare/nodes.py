"""Nodes of a difference: two trees matched row by row, in nanoseconds or in bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

import msgspec

Kind = Literal[
    "step",
    "peak",
    "category",
    "module",
    "operator",
    "kernel",
    "fused",
    "phase",
    "stack",
    "idle",
    "unattributed",
    "rest",
]
State = Literal["both", "new", "gone", "renamed"]
"""``new`` is only in B, ``gone`` only in A; ``renamed`` is in both under two names."""

NOT_RUNNING = ("idle", "unattributed")

Item = TypeVar("Item")
Key = TypeVar("Key")


class DifferenceNode(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that nodes of time and of memory have in common.

    ``name`` is that of B, and of A where B has none; ``a_name`` is filled where A's differs.
    ``phase`` is that of an operator's or kernel's rows, empty where the level has several.
    """

    kind: Kind
    name: str
    state: State
    a_name: str = ""
    phase: str = ""

    @property
    def amounts(self) -> tuple[int, int]:
        """A's nanoseconds or bytes, and B's."""
        raise NotImplementedError

    @property
    def change(self) -> int:
        """B's amount minus A's."""
        a, b = self.amounts
        return b - a


class TimeNode(DifferenceNode, frozen=True, kw_only=True):
    """Exclusive time per traced step in A and in B, in whole nanoseconds.

    The children's ``a_ns`` add up to the node's, and so do their ``b_ns``. Calls are per step,
    averaged over the traced steps; null for time in which nothing ran.
    """

    a_ns: int
    b_ns: int
    a_calls: float | None = None
    b_calls: float | None = None
    children: list[TimeNode] = []

    @property
    def amounts(self) -> tuple[int, int]:
        return self.a_ns, self.b_ns

    @property
    def counts(self) -> tuple[float | None, float | None]:
        """Calls in A and in B."""
        return self.a_calls, self.b_calls

    def rest(self, small: Sequence[TimeNode]) -> TimeNode:
        """One node for several small children of this one."""
        return TimeNode(
            kind="rest",
            name=f"({len(small)} more)",
            state="both",
            a_ns=sum(child.a_ns for child in small),
            b_ns=sum(child.b_ns for child in small),
            a_calls=sum(child.a_calls or 0.0 for child in small),
            b_calls=sum(child.b_calls or 0.0 for child in small),
        )


class ByteNode(DifferenceNode, frozen=True, kw_only=True):
    """Bytes alive at the peak of A and at that of B.

    The children's bytes add up to the node's. Blocks are null where they were not counted.
    ``stack`` is B's, innermost frame first, and A's where B has none.
    """

    a_bytes: int
    b_bytes: int
    a_blocks: int | None = None
    b_blocks: int | None = None
    stack: list[str] = []
    children: list[ByteNode] = []

    @property
    def amounts(self) -> tuple[int, int]:
        return self.a_bytes, self.b_bytes

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """Blocks in A and in B."""
        return self.a_blocks, self.b_blocks

    def rest(self, small: Sequence[ByteNode]) -> ByteNode:
        """One node for several small children of this one."""
        return ByteNode(
            kind="rest",
            name=f"({len(small)} more)",
            state="both",
            a_bytes=sum(child.a_bytes for child in small),
            b_bytes=sum(child.b_bytes for child in small),
        )


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """B against A, row by row.

    Attributes:
        summary: Three lines on the time, then one on memory; of what both sides have.
        time: The traced step; null where a side has no table of kernels.
        memory: The peak; null where a side has no ledger.
        notes: Reservations to read before the rows.
        missing: Reasons for a null.
    """

    summary: list[str]
    time: TimeNode | None
    memory: ByteNode | None
    notes: list[str]
    missing: dict[str, str]


AnyNode = TypeVar("AnyNode", TimeNode, ByteNode)


def name_sides(a_name: str | None, b_name: str | None) -> tuple[str, State, str]:
    """Name, state and ``a_name`` of a node; None is the name on a side without it."""
    if a_name is None:
        return b_name or "", "new", ""
    if b_name is None:
        return a_name, "gone", ""
    return (b_name, "both", "") if a_name == b_name else (b_name, "renamed", a_name)


def in_order(nodes: Iterable[AnyNode]) -> list[AnyNode]:
    """Sort nodes by their change, the largest first."""
    return sorted(
        nodes, key=lambda node: (-abs(node.change), -max(node.amounts), node.name, node.phase)
    )


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by their key, in the order of first occurrence."""
    groups: defaultdict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def pair_by(
    a: Iterable[Item], b: Iterable[Item], key: Callable[[Item], Key]
) -> dict[Key, tuple[list[Item], list[Item]]]:
    """Group the items of both sides by their key; a side without it has an empty list."""
    groups_a, groups_b = group_by(a, key), group_by(b, key)
    keys = dict.fromkeys([*groups_a, *groups_b])
    return {one: (groups_a.get(one, []), groups_b.get(one, [])) for one in keys}


def walk(node: AnyNode, depth: int = 0) -> Iterator[tuple[int, AnyNode]]:
    """Every node with its depth, parents before children."""
    yield depth, node
    for child in node.children:
        yield from walk(child, depth + 1)


def differs(node: AnyNode) -> bool:
    """True if something changed in the node or below: its amount, its name, or its presence."""
    return bool(node.change) or node.state != "both" or any(map(differs, node.children))


def changed(node: AnyNode) -> AnyNode:
    """The tree without the rows in which nothing changed: the changes still add up."""
    return _with(node, [changed(child) for child in node.children if differs(child)])


def to_depth(node: AnyNode, depth: int) -> AnyNode:
    """The tree with at most ``depth`` levels below the node."""
    return _with(node, [to_depth(child, depth - 1) for child in node.children] if depth > 0 else [])


def from_change(node: AnyNode, least: float) -> AnyNode:
    """The tree with children that changed by less than this amount as one; idle time stays.

    Of a node whose children all changed by less, none is left.
    """
    groups = group_by(node.children, lambda child: _is_small(child, least))
    small, large = groups.get(True, []), [from_change(one, least) for one in groups.get(False, [])]
    if not large:
        return _with(node, [])
    return _with(node, large + ([node.rest(small)] if len(small) > 1 else small))


def _is_small(node: AnyNode, least: float) -> bool:
    return abs(node.change) < least and node.kind not in NOT_RUNNING


def _with(node: AnyNode, children: list[AnyNode]) -> AnyNode:
    return msgspec.structs.replace(node, children=children)


def moved(root: AnyNode) -> int:
    """Sum of the absolute changes one level below."""
    return sum(abs(child.change) for child in root.children)
