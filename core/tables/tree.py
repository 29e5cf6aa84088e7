"""The tree of a traced step as a table: one row a node, indented."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.kernels.layers import ODD_DEVIATIONS, ODD_SHARE, LayerSpread
from ..analysis.kernels.tree import TreeNode, walk
from ..formatting import percent
from .cells import decimal
from .table import Column, Table, fields_of, tabulate
from .trust import mark_perturbed

SPLIT = ("forward", "backward")
"""Phases that have a column."""

ODD_WORDS = (
    f"a layer has its own row when its time is more than {percent(ODD_SHARE, 0)} and "
    f"{ODD_DEVIATIONS} scaled deviations from its siblings' median"
)


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node of the tree as a row: its depth, and whether tracing perturbed its times."""

    node: TreeNode
    depth: int = 0
    perturbed: bool = False


def _phase_column(phase: str) -> Column[PlacedNode]:
    return Column(f"{phase}_ns", lambda row: row.node.phases_ns.get(phase))


NODE_COLUMNS: tuple[Column[PlacedNode], ...] = (
    Column("inclusive_ns", lambda row: row.node.inclusive_ns),
    Column("share", lambda row: row.node.share),
    Column("own_ns", lambda row: row.node.exclusive_ns),
    Column("calls", lambda row: row.node.calls),
    Column("of_roof", lambda row: row.node.of_roof),
    Column("flops", lambda row: row.node.flops),
    Column("moved_bytes", lambda row: row.node.moved_bytes),
    *map(_phase_column, SPLIT),
    Column("parameter_bytes", lambda row: row.node.parameter_bytes),
    Column("activation_bytes", lambda row: row.node.activation_bytes),
    Column("where", lambda row: "  " * row.depth + label(row.node, perturbed=row.perturbed)),
    Column("kind", lambda row: row.node.kind),
    Column("path", lambda row: row.node.path),
)
TREE_COLUMNS = (*NODE_COLUMNS, *fields_of(PlacedNode, "depth"))
COLUMNS = tuple(column.name for column in TREE_COLUMNS)


def tree_table(root: TreeNode, *, perturbed: bool = False) -> Table:
    """All nodes, parents before children; the leaves' ``inclusive_ns`` add up to the step.

    ``own_ns`` leaves out the modules inside; ``activation_bytes`` are saved for backward.
    With ``perturbed`` the times in labels are marked.
    """
    nodes = list(walk(root))
    odd = f"; {ODD_WORDS}" if any(node.layers for _, node in nodes) else ""
    return tabulate(
        [PlacedNode(node, depth, perturbed) for depth, node in nodes],
        TREE_COLUMNS,
        name="tree",
        title=f"Tree of the traced {root.name}, {root.inclusive_ns / 1e6:.2f} ms{odd}",
    )


def label(node: TreeNode, *, perturbed: bool) -> str:
    """The node's name; for folded layers also their count and the spread of their times."""
    return (
        f"{node.name} ({layer_words(node.layers, perturbed=perturbed)})"
        if node.layers
        else node.name
    )


def layer_words(layers: LayerSpread, *, perturbed: bool) -> str:
    """``36×, 2.61–2.66–2.74 ms, slowest 17``: least, median and most of one layer."""
    figures = [decimal(ns / 1e6, 2) for ns in (layers.min_ns, layers.median_ns, layers.max_ns)]
    times = f"{'–'.join(figures)} ms"
    shown = mark_perturbed(times) if perturbed else times
    return f"{layers.count}×, {shown}, slowest {layers.slowest}"


def known_columns(table: Table, columns: Sequence[str]) -> list[str]:
    """The columns that have a cell with a value."""
    return [name for name in columns if any(cell is not None for cell in table.column(name))]
