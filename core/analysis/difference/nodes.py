"""Nodes of a difference: two trees matched row by row, in nanoseconds or in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol, TypeVar

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


class DifferenceNode(msgspec.Struct, frozen=True, kw_only=True):
    """What nodes of time and of memory have in common.

    ``name`` is that of B, and of A where B has none; ``a_name`` is filled where A's differs.
    ``phase`` is that of an operator's or kernel's rows, empty where the level has several.
    """

    kind: Kind
    name: str
    state: State
    a_name: str = ""
    phase: str = ""


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
        """A's nanoseconds and B's."""
        return self.a_ns, self.b_ns

    @property
    def counts(self) -> tuple[float | None, float | None]:
        """Calls in A and in B."""
        return self.a_calls, self.b_calls

    @property
    def change(self) -> int:
        """B's nanoseconds minus A's."""
        return self.b_ns - self.a_ns

    def with_children(self, children: list[TimeNode]) -> TimeNode:
        """The node with other children."""
        return msgspec.structs.replace(self, children=children)

    def rest(self, small: Sequence[TimeNode]) -> TimeNode:
        """One node for several small children of this one."""
        return TimeNode(
            kind="rest",
            name=rest_name(small),
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
        """A's bytes and B's."""
        return self.a_bytes, self.b_bytes

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """Blocks in A and in B."""
        return self.a_blocks, self.b_blocks

    @property
    def change(self) -> int:
        """B's bytes minus A's."""
        return self.b_bytes - self.a_bytes

    def with_children(self, children: list[ByteNode]) -> ByteNode:
        """The node with other children."""
        return msgspec.structs.replace(self, children=children)

    def rest(self, small: Sequence[ByteNode]) -> ByteNode:
        """One node for several small children of this one."""
        return ByteNode(
            kind="rest",
            name=rest_name(small),
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
        notes: What is to be known before the rows are read.
        missing: Reasons for a null.
    """

    summary: list[str]
    time: TimeNode | None
    memory: ByteNode | None
    notes: list[str]
    missing: dict[str, str]


class Node(Protocol):
    """A node of either unit."""

    @property
    def kind(self) -> Kind: ...
    @property
    def state(self) -> State: ...
    @property
    def amounts(self) -> tuple[int, int]: ...
    @property
    def change(self) -> int: ...


AnyNode = TypeVar("AnyNode", TimeNode, ByteNode)


def rest_name(small: Sequence[object]) -> str:
    """Name of the node that stands for so many."""
    return f"({len(small)} more)"


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
    return _kept(node, differs)


def _kept(node: AnyNode, keep: Callable[[AnyNode], bool]) -> AnyNode:
    return node.with_children([_kept(child, keep) for child in node.children if keep(child)])


def to_depth(node: AnyNode, depth: int) -> AnyNode:
    """The tree with at most ``depth`` levels below the node."""
    below = [to_depth(child, depth - 1) for child in node.children] if depth > 0 else []
    return node.with_children(below)


def from_change(node: AnyNode, least: float) -> AnyNode:
    """The tree with children that changed by less than this amount as one; idle time stays.

    Of a node whose children all changed by less, none is left.
    """
    kept = [from_change(child, least) for child in node.children if not _is_small(child, least)]
    small = [child for child in node.children if _is_small(child, least)]
    if not kept:
        return node.with_children([])
    return node.with_children(kept + ([node.rest(small)] if len(small) > 1 else small))


def _is_small(node: AnyNode, least: float) -> bool:
    return abs(node.change) < least and node.kind not in NOT_RUNNING


def moved(root: AnyNode) -> int:
    """Sum of the changes one level below, each without its sign."""
    return sum(abs(child.change) for child in root.children)
