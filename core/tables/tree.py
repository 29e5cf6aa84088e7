"""The tree of a traced step as a table: one row a node, indented."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.kernels.layers import ODD_DEVIATIONS, ODD_SHARE, LayerSpread
from ..analysis.kernels.tree import TreeNode, walk
from ..formatting import percent
from .cells import decimal
from .table import Cell, Table
from .trust import marked

SPLIT = ("forward", "backward")
"""Phases that have a column of their own."""

ODD_WORDS = (
    f"a layer has its own row when its time is more than {percent(ODD_SHARE, 0)} and "
    f"{ODD_DEVIATIONS} scaled deviations from its siblings' median"
)
COLUMNS = (
    *("inclusive_ns", "share", "own_ns", "calls", "of_roof", "flops", "moved_bytes"),
    *(f"{phase}_ns" for phase in SPLIT),
    *("parameter_bytes", "activation_bytes", "where", "kind", "path", "depth"),
)


def tree_table(root: TreeNode, *, moved: bool = False) -> Table:
    """All nodes, parents before children; the leaves' ``inclusive_ns`` add up to the step.

    ``own_ns`` leaves out the modules inside; ``activation_bytes`` are saved for backward.
    With ``moved`` the times among the words are marked: tracing changed them too far.
    """
    nodes = list(walk(root))
    told = f"; {ODD_WORDS}" if any(node.layers for _, node in nodes) else ""
    return Table(
        name="tree",
        title=f"Tree of the traced {root.name}, {root.inclusive_ns / 1e6:.2f} ms{told}",
        columns=COLUMNS,
        rows=tuple((*node_cells(node, depth, moved=moved), depth) for depth, node in nodes),
    )


def node_cells(node: TreeNode, depth: int = 0, *, moved: bool = False) -> tuple[Cell, ...]:
    """One node's cells, in the order of `COLUMNS`, without the depth."""
    return (
        *(node.inclusive_ns, node.share, node.exclusive_ns, node.calls, node.of_roof),
        *(node.flops, node.moved_bytes),
        *(node.phases_ns.get(phase) for phase in SPLIT),
        *(node.parameter_bytes, node.activation_bytes),
        *("  " * depth + label(node, moved=moved), node.kind, node.path),
    )


def label(node: TreeNode, *, moved: bool) -> str:
    """The node's name; for folded layers how many they are and how their times lie."""
    return f"{node.name} ({layer_words(node.layers, moved=moved)})" if node.layers else node.name


def layer_words(layers: LayerSpread, *, moved: bool) -> str:
    """``36×, 2.61–2.66–2.74 ms, slowest 17``: least, median and most of one layer."""
    figures = [decimal(ns / 1e6, 2) for ns in (layers.min_ns, layers.median_ns, layers.max_ns)]
    times = f"{'–'.join(figures)} ms"
    shown = marked(times) if moved else times
    return f"{layers.count}×, {shown}, slowest {layers.slowest}"


def known_columns(table: Table, columns: Sequence[str]) -> list[str]:
    """Those of the columns in which anything is known."""
    return [name for name in columns if any(cell is not None for cell in table.column(name))]
