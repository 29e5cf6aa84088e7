"""The tree of a traced step as a table with one indented row per node."""

from __future__ import annotations

from dataclasses import dataclass

from sysbench.core.formatting import percent
from sysbench.core.tables.cells import decimal_cell
from sysbench.core.tables.table import Column, Table, columns_for, tabulate
from sysbench.core.tables.trust import mark_perturbed
from sysbench.core.trace.module_tree import ODD_DEVIATIONS, ODD_SHARE, LayerSpread, TreeNode, walk

SPLIT = ("forward", "backward")
"""Phases that have a column."""

ODD_WORDS = (
    f"a layer has its own row when its time is more than {percent(ODD_SHARE, 0)} and "
    f"{ODD_DEVIATIONS} scaled deviations from its siblings' median"
)


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node of the tree with its depth; ``perturbed`` if tracing slowed the step."""

    node: TreeNode
    depth: int = 0
    perturbed: bool = False


NODE_COLUMNS: tuple[Column[PlacedNode], ...] = (
    Column(
        "inclusive_ns",
        lambda row: row.node.inclusive_ns,
        priority=1,
        about="time of the row and all below it",
    ),
    Column("share", lambda row: row.node.share, priority=2, about="share of the traced step"),
    Column("own_ns", lambda row: row.node.exclusive_ns, priority=12),
    Column("calls", lambda row: row.node.calls, priority=4),
    Column("of_roof", lambda row: row.node.of_roof, priority=5),
    Column("flops", lambda row: row.node.flops, priority=15),
    Column("moved_bytes", lambda row: row.node.moved_bytes, priority=16),
    Column(
        "forward_ns",
        lambda row: row.node.phases_ns.get("forward"),
        priority=10,
        about="time of work in forward",
    ),
    Column(
        "backward_ns",
        lambda row: row.node.phases_ns.get("backward"),
        priority=11,
        about="time of work in backward",
    ),
    Column("parameter_bytes", lambda row: row.node.parameter_bytes, priority=13),
    Column("activation_bytes", lambda row: row.node.activation_bytes, priority=14),
    Column(
        "where",
        lambda row: "  " * row.depth + label(row.node, perturbed=row.perturbed),
        priority=6,
        is_flexible=True,
        about="module, operator or kernel, indented",
    ),
    Column("kind", lambda row: row.node.kind, in_detail=True),
    Column("path", lambda row: row.node.path, in_detail=True, about="full path from the root"),
)


def tree_table(root: TreeNode, *, perturbed: bool = False) -> Table:
    """All nodes, parents first; ``inclusive_ns`` of the leaves adds up to the step.

    ``own_ns`` excludes modules inside. ``perturbed`` marks times in labels.
    """
    nodes = list(walk(root))
    odd = f"; {ODD_WORDS}" if any(node.layers for _, node in nodes) else ""
    return tabulate(
        [PlacedNode(node, depth, perturbed) for depth, node in nodes],
        columns_for(PlacedNode, *NODE_COLUMNS, Column("depth", in_detail=True)),
        name="tree",
        title=f"Tree of the traced {root.name}, {root.inclusive_ns / 1e6:.2f} ms{odd}",
    )


def label(node: TreeNode, *, perturbed: bool) -> str:
    """Return the node's name; folded layers add their count and spread."""
    return (
        f"{node.name} ({layer_words(node.layers, perturbed=perturbed)})"
        if node.layers
        else node.name
    )


def layer_words(layers: LayerSpread, *, perturbed: bool) -> str:
    """``36×, each 2.61 to 2.74 ms, median 2.66, slowest 17``."""
    least, median, most = (
        decimal_cell(ns / 1e6, 2) for ns in (layers.min_ns, layers.median_ns, layers.max_ns)
    )
    times = f"{least} to {most} ms, median {median}"
    shown = mark_perturbed(times) if perturbed else times
    return f"{layers.count}×, each {shown}, slowest {layers.slowest}"
