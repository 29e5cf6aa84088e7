"""Rows of a kernel table prepared for matching: modules, operators, whole nanoseconds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sysbench.core.record.record import KernelRow, Kernels
from sysbench.core.trace.classify import FUSED as FUSED_NAME
from sysbench.core.trace.classify import classify_operator, plain_operator
from sysbench.core.trace.layers import fold_layer_numbers
from sysbench.core.trace.module_tree import place_outside_modules
from sysbench.core.trace.names import MODEL_PHASES, WHOLE_MODEL

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
"""Categories that name the work of a kernel whatever its operators are called."""
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

    ``module`` is empty where the level of modules is left out. ``made_of`` is filled for a
    kernel that the compiler made. ``part_of`` is the name of the node of a fusion that the row
    stands in, else empty.
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
        """What is equal in two rows of the same work."""
        return self.module, self.phase, unnumbered(self.op), unnumbered(self.name)

    @property
    def work(self) -> frozenset[str]:
        """Words for the operators in it, comparable between eager and generated kernels."""
        names = self.made_of or (self.op, self.name)
        words = {plain_word(name) for name in names if name} - VIEWS
        category = self.category if self.made_of else classify_operator(self.op or self.name)
        return frozenset(words | ({f"category {category}"} if category in WORK else set()))


def may_be_one_phase(one: str, other: str) -> bool:
    """False for two different phases of the step, both of which are known."""
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
    """The path without modules that only wrap another."""
    return WRAPPERS.sub("", module).rstrip(".") or WHOLE_MODEL


def has_layers(kernels: Kernels) -> bool:
    """False for a table in which layers share rows."""
    return not any(ANY_LAYER in row.module for row in kernels.rows)


def module_paths(kernels: Kernels) -> set[str]:
    """The paths of modules in the table, without what lies outside of the model's modules."""
    return {
        plain_path(row.module)
        for row in kernels.rows
        if row.module and not place_outside_modules(row)
    }


def same_modules(a: Iterable[str], b: Iterable[str]) -> dict[str, str]:
    """The path in B of each module of A that has another path there.

    The profiler numbers the modules of a class through the whole model, in the order of their
    first calls. Modules with the same place in that order among their siblings are the same.
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
