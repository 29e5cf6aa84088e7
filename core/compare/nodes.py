"""Nodes of a difference: two trees matched row by row, in nanoseconds or in bytes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from sysbench.core.record.record import KernelRow, Kernels
from sysbench.core.trace.classify import FUSED as FUSED_NAME
from sysbench.core.trace.classify import (
    MODEL_PHASES,
    WHOLE_MODEL,
    classify_operator,
    plain_operator,
)
from sysbench.core.trace.module_tree import (
    Item,
    Key,
    fold_layer_numbers,
    group_by,
    place_outside_modules,
)

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
    """Fields shared by nodes of time and of memory.

    ``name`` is that of B, or of A if B has none; ``a_name`` is set if A's differs. ``phase`` is
    that of an operator's or kernel's rows, empty if the level has several.
    """

    kind: Kind
    name: str
    state: State
    a_name: str = ""
    phase: str = ""

    @property
    def amounts(self) -> tuple[int, int]:
        raise NotImplementedError

    @property
    def change(self) -> int:
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
        return self.a_calls, self.b_calls

    def rest(self, small: Sequence[TimeNode]) -> TimeNode:
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

    The children's bytes add up to the node's. Blocks are null if not counted. ``stack`` is B's,
    innermost frame first, or A's if B has none.
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
        return self.a_blocks, self.b_blocks

    def rest(self, small: Sequence[ByteNode]) -> ByteNode:
        return ByteNode(
            kind="rest",
            name=f"({len(small)} more)",
            state="both",
            a_bytes=sum(child.a_bytes for child in small),
            b_bytes=sum(child.b_bytes for child in small),
        )


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """One marked step of both sides, or of one: null is a step that the side does not have.

    Steps of a kind are matched by number, or by their place if no number is on both sides. ``ns``
    is the step's time, ``busy_ns`` the part in which anything ran, ``kernels`` what began in it.
    """

    kind: str
    a_number: int | None = None
    b_number: int | None = None
    a_ns: int | None = None
    b_ns: int | None = None
    a_busy_ns: int | None = None
    b_busy_ns: int | None = None
    a_kernels: int | None = None
    b_kernels: int | None = None

    @property
    def change_ns(self) -> int | None:
        return None if self.a_ns is None or self.b_ns is None else self.b_ns - self.a_ns

    @property
    def change_busy_ns(self) -> int | None:
        a, b = self.a_busy_ns, self.b_busy_ns
        return None if a is None or b is None else b - a


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """B against A, row by row.

    Attributes:
        summary: Three lines on the time, or ``unexplained`` in their place, then one on memory, if
            both sides have them.
        time: The traced step; null if a side has no table of kernels.
        memory: The peak; null if a side has no ledger.
        notes: Reservations to read before the rows.
        missing: Reasons for a null.
        steps: Marked steps, if both sides mark some.
        unexplained: Why the traced step does not explain the change of the untraced one; else
            empty.
    """

    summary: list[str]
    time: TimeNode | None
    memory: ByteNode | None
    notes: list[str]
    missing: dict[str, str]
    steps: list[StepChange] = []
    unexplained: str = ""


AnyNode = TypeVar("AnyNode", TimeNode, ByteNode)


def name_sides(a_name: str | None, b_name: str | None) -> tuple[str, State, str]:
    """Name, state and ``a_name`` of a node; None is the name on a side without it."""
    if a_name is None:
        return b_name or "", "new", ""
    if b_name is None:
        return a_name, "gone", ""
    return (b_name, "both", "") if a_name == b_name else (b_name, "renamed", a_name)


def in_order(nodes: Iterable[AnyNode]) -> list[AnyNode]:
    return sorted(
        nodes, key=lambda node: (-abs(node.change), -max(node.amounts), node.name, node.phase)
    )


def pair_by(
    a: Iterable[Item], b: Iterable[Item], key: Callable[[Item], Key]
) -> dict[Key, tuple[list[Item], list[Item]]]:
    """Group the items of both sides by their key; a side without it has an empty list."""
    groups_a, groups_b = group_by(a, key), group_by(b, key)
    keys = dict.fromkeys([*groups_a, *groups_b])
    return {one: (groups_a.get(one, []), groups_b.get(one, [])) for one in keys}


def walk_nodes(node: AnyNode, depth: int = 0) -> Iterator[tuple[int, AnyNode]]:
    yield depth, node
    for child in node.children:
        yield from walk_nodes(child, depth + 1)


def differs(node: AnyNode) -> bool:
    """True if the amount, name or presence of the node or a descendant changed."""
    return bool(node.change) or node.state != "both" or any(map(differs, node.children))


def changed(node: AnyNode) -> AnyNode:
    """The tree without unchanged rows: the changes still add up."""
    return _with(node, [changed(child) for child in node.children if differs(child)])


def limit_depth(node: AnyNode, depth: int) -> AnyNode:
    return _with(
        node, [limit_depth(child, depth - 1) for child in node.children] if depth > 0 else []
    )


def from_change(node: AnyNode, least: float) -> AnyNode:
    """Merge children that changed by less than this amount; idle time stays.

    A node whose children all changed by less keeps none.
    """
    groups = group_by(
        node.children,
        lambda child: abs(child.change) < least and child.kind not in NOT_RUNNING,
    )
    small, large = groups.get(True, []), [from_change(one, least) for one in groups.get(False, [])]
    if not large:
        return _with(node, [])
    return _with(node, large + ([node.rest(small)] if len(small) > 1 else small))


WIDTHS = (64, 32, 16, 8, 4, 2, 1)
"""Children of each node, tried in turn until a tree is small enough."""


def limit_nodes(root: AnyNode, most: int) -> AnyNode:
    """Merge the smallest changes of each level until the tree has at most this many nodes, if it
    can; the children still add up."""
    if _count(root) <= most:
        return root
    for width in WIDTHS:
        limited = _limit_width(root, width)
        if _count(limited) <= most:
            break
    return limited


def _limit_width(node: AnyNode, width: int) -> AnyNode:
    # What did not run stays, as in `from_change`.
    ranked = sorted(in_order(node.children), key=lambda child: child.kind not in NOT_RUNNING)
    large = [_limit_width(child, width) for child in in_order(ranked[:width])]
    small = ranked[width:]
    return _with(node, large + ([node.rest(small)] if len(small) > 1 else small))


def _count(node: AnyNode) -> int:
    return sum(1 for _ in walk_nodes(node))


def _with(node: AnyNode, children: list[AnyNode]) -> AnyNode:
    return msgspec.structs.replace(node, children=children)


def moved(root: AnyNode) -> int:
    return sum(abs(child.change) for child in root.children)


ANY_LAYER = "*"
WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:(?:OptimizedModule|DistributedDataParallel|FullyShardedDataParallel)_\d+"
    r"|_orig_mod|_fsdp_wrapped_module)(?:\.|$)"
)
"""Modules that only wrap the model: with and without them it is the same module."""
CLASS = re.compile(r"(?P<stem>[A-Z]\w*_)(?P<number>\d{1,9})")
"""A range of the profiler: the class, and its number among all of its class in the model."""

FUSED = "fused kernels"
"""Category of generated kernels without a counterpart, and of what they replace."""
WORK = ("attention", "softmax", "norm", "embedding", "random")
"""Categories that identify the work of a kernel regardless of operator names."""
ALIASES = {
    "to": "copy",
    "to_copy": "copy",
    "clone": "copy",
    "contiguous": "copy",
    "embedding_dense": "embedding",
    "index_select": "embedding",
}
VIEWS = {
    *("view", "unsafe_view", "reshape", "t", "transpose", "permute", "expand", "unsqueeze"),
    *("squeeze", "slice", "select", "as_strided", "split", "split_with_sizes", "alias", "detach"),
}
"""Operators that move no data: every kernel has some, so they do not identify its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a kernel table; times, rounded to nanoseconds, and calls are per step.

    ``module`` is empty if the level of modules is left out. ``made_of`` is set for kernels made by
    the compiler. ``part_of`` is the name of the row's fusion node, else empty.
    """

    category: str
    module: str
    phase: str
    op: str
    name: str
    ns: int
    calls: float
    made_of: tuple[str, ...] = ()
    part_of: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        return self.module, self.phase, unnumbered(self.op), unnumbered(self.name)

    @property
    def work(self) -> frozenset[str]:
        names = self.made_of or (self.op, self.name)
        words = {plain_word(name) for name in names if name} - VIEWS
        category = self.category if self.made_of else classify_operator(self.op or self.name)
        return frozenset(words | ({f"category {category}"} if category in WORK else set()))


def may_be_one_phase(one: str, other: str) -> bool:
    """False for two different known phases."""
    return one == other or not {one, other} <= {*MODEL_PHASES, "optimizer"}


def plain_word(operator: str) -> str:
    """``aten::_to_copy``, ``to`` and ``ToCopyBackward0`` as one word."""
    word = plain_operator(operator)
    word = word.removeprefix("native_").removeprefix("fused_")
    return ALIASES.get(word, word)


def unnumbered(name: str) -> str:
    """The name of a generated kernel without its number, which counts kernels of a graph."""
    match = FUSED_NAME.search(name)
    return re.sub(r"_?\d+$", "", match[0]) if match else name


def rows_of(kernels: Kernels, *, by_layer: bool, by_module: bool) -> list[Row]:
    return [
        Row(
            category=row.category,
            module=_place(row, by_layer=by_layer) if by_module else "",
            phase=row.phase,
            op=row.op,
            name=row.name,
            ns=round(row.exclusive_ns),
            calls=row.calls,
            made_of=tuple(row.ops) if row.fused else (),
        )
        for row in kernels.rows
    ]


def _place(row: KernelRow, *, by_layer: bool) -> str:
    place = place_outside_modules(row) or plain_path(row.module)
    return place if by_layer else fold_layer_numbers(place)


def plain_path(module: str) -> str:
    return WRAPPERS.sub("", module).rstrip(".") or WHOLE_MODEL


def has_layers(kernels: Kernels) -> bool:
    """False for a table in which layers share rows."""
    return not any(ANY_LAYER in row.module for row in kernels.rows)


def module_paths(kernels: Kernels) -> set[str]:
    """The paths of modules in the table, without those outside the model."""
    return {
        plain_path(row.module)
        for row in kernels.rows
        if row.module and not place_outside_modules(row)
    }


def same_modules(a: Iterable[str], b: Iterable[str]) -> dict[str, str]:
    """The path in B of each module of A that has another path there.

    The profiler numbers the modules of a class through the whole model, in the order of their first
    calls. Modules with the same place in that order among their siblings are the same.
    """
    a_paths, b_paths = set(a), set(b)
    a_places, b_places = _by_place(a_paths), _by_place(b_paths)
    return {
        path: b_places[place]
        for place, path in a_places.items()
        if path not in b_paths and place in b_places and b_places[place] not in a_paths
    }


def _by_place(paths: set[str]) -> dict[str, str]:
    """Paths by their place: numbers of classes replaced by their rank among the siblings."""
    numbers: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for path in paths:
        for parent, stem, number in _numbered(path):
            numbers[parent, stem].add(number)
    ranks = {
        (parent, stem, number): rank
        for (parent, stem), found in numbers.items()
        for rank, number in enumerate(sorted(found))
    }
    places: dict[str, str] = {}
    for path in sorted(paths):
        parts = path.split(".")
        for level, part in enumerate(parts):
            if match := CLASS.fullmatch(part):
                parent = ".".join(path.split(".")[:level])
                rank = ranks[parent, match["stem"], int(match["number"])]
                parts[level] = f"{match['stem']}#{rank}"
        places.setdefault(".".join(parts), path)
    return places


def _numbered(path: str) -> Iterable[tuple[str, str, int]]:
    parts = path.split(".")
    for level, part in enumerate(parts):
        if match := CLASS.fullmatch(part):
            yield ".".join(parts[:level]), match["stem"], int(match["number"])
