"""Tables of indented rows: a traced step, and the difference of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic

from sysbench.core.compare.nodes import (
    AnyNode,
    Difference,
    DifferenceNode,
    StepChange,
    changed,
    from_change,
    limit_depth,
    moved,
    walk_nodes,
)
from sysbench.core.formatting import percent
from sysbench.core.tables.cells import SIGNED, decimal_cell
from sysbench.core.tables.table import Column, Table, columns_for, tabulate
from sysbench.core.tables.trust import mark_perturbed
from sysbench.core.trace.classify import idle_label
from sysbench.core.trace.module_tree import (
    ODD_DEVIATIONS,
    ODD_SHARE,
    LayerSpread,
    TreeNode,
    group_by,
    walk,
)

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
        "inclusive_ns", "node.inclusive_ns", priority=1, about="time of the row and all below it"
    ),
    Column("share", "node.share", priority=2, about="share of the traced step"),
    Column("own_ns", "node.exclusive_ns", priority=12, about="time without the modules inside it"),
    Column("calls", "node.calls", priority=4),
    Column("of_roof", "node.of_roof", priority=5),
    Column("flops", "node.flops", priority=15),
    Column("moved_bytes", "node.moved_bytes", priority=16),
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
    Column("parameter_bytes", "node.parameter_bytes", priority=13),
    Column("activation_bytes", "node.activation_bytes", priority=14),
    Column(
        "where",
        lambda row: "  " * row.depth + label(row.node, perturbed=row.perturbed),
        priority=6,
        is_flexible=True,
        about="module, operator or kernel, indented",
    ),
    Column("kind", "node.kind", in_detail=True),
    Column("path", "node.path", in_detail=True, about="full path from the root"),
)


def tree_table(root: TreeNode, *, perturbed: bool = False) -> Table:
    """All nodes, parents first; ``inclusive_ns`` of the leaves adds up to the step.

    ``own_ns`` excludes modules inside. ``perturbed`` marks times in labels.
    """
    nodes = list(walk(root))
    odd = f"; {ODD_WORDS}" if any(node.layers for _, node in nodes) else ""
    return tabulate(
        [PlacedNode(node, depth, perturbed) for depth, node in nodes],
        *NODE_COLUMNS,
        Column("depth", in_detail=True),
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


TREES = ("time-difference", "memory-difference")
"""Tables of indented rows."""


@dataclass(frozen=True, slots=True)
class PlacedDifference(Generic[AnyNode]):
    node: AnyNode
    depth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The part of a difference to show.

    Attributes:
        depth: Levels below the root; None for all.
        least: Share of all changes below which rows are summed into one; 0 keeps all rows.
    """

    depth: int | None = None
    least: float = 0.0


def change_tables(difference: Difference, cut: Cut | None = None) -> list[Table]:
    """Return tables of changed times and bytes. The rows of each level add up to the row above."""
    cut = cut or Cut()
    tables = []
    if difference.time and (times := _rows(difference.time, cut)):
        title = f"The traced {difference.time.name}, row by row{_words(cut)}"
        tables.append(
            tabulate(
                times,
                Column(
                    "change_ns",
                    "node.change",
                    heading="change ms",
                    unit=f"{SIGNED}ns",
                    about="B minus A",
                ),
                Column("a_ns", "node.a_ns", heading="A ms", about="time in A's traced step"),
                Column("b_ns", "node.b_ns", heading="B ms", about="time in B's traced step"),
                Column("a_calls", "node.a_calls", heading="A calls", about="calls per step of A"),
                Column("b_calls", "node.b_calls", heading="B calls", about="calls per step of B"),
                Column("state", lambda row: _state(row.node)),
                Column("phase", "node.phase", is_optional=True),
                Column("row", lambda row: "  " * row.depth + difference_label(row.node)),
                Column("kind", "node.kind", in_detail=True),
                Column("depth", in_detail=True),
                name="time-difference",
                title=title,
            )
        )
    if difference.memory and (sizes := _rows(difference.memory, cut)):
        of = "peak of memory" if difference.memory.name == "peak" else difference.memory.name
        title = f"The {of}, row by row{_words(cut)}"
        tables.append(
            tabulate(
                sizes,
                Column("change_bytes", "node.change", heading="change", unit=f"{SIGNED}bytes"),
                Column("a_bytes", "node.a_bytes", heading="A"),
                Column("b_bytes", "node.b_bytes", heading="B"),
                Column("a_blocks", "node.a_blocks", heading="A blocks"),
                Column("b_blocks", "node.b_blocks", heading="B blocks"),
                Column("state", lambda row: _state(row.node)),
                Column("row", lambda row: "  " * row.depth + difference_label(row.node)),
                Column("kind", "node.kind", in_detail=True),
                Column("depth", in_detail=True),
                name="memory-difference",
                title=title,
            )
        )
    return tables


STEP_CHANGE_COLUMNS = columns_for(
    StepChange,
    Column("a_ns", heading="A ms", about="time of A's step"),
    Column("b_ns", heading="B ms", about="time of B's step"),
    Column("change_ns", heading="change ms", unit=f"{SIGNED}ns", about="B minus A"),
    Column("a_busy_ns", heading="A busy ms", about="time in which anything ran in A's step"),
    Column("b_busy_ns", heading="B busy ms", about="time in which anything ran in B's step"),
    Column("change_busy_ns", heading="change busy ms", unit=f"{SIGNED}ns", about="busy: B minus A"),
)


def step_tables(steps: Sequence[StepChange]) -> list[Table]:
    """Medians of the marked steps by kind, then each step; no row is a test."""
    if not steps:
        return []
    kinds = group_by(steps, lambda row: row.kind)
    medians = tabulate(
        [_medians(kind, rows) for kind, rows in kinds.items()],
        Column("kind", is_optional=True),
        Column(
            "a_steps",
            lambda row: sum(step.a_ns is not None for step in kinds[row.kind]),
            heading="A steps",
            about="steps of A",
        ),
        Column(
            "b_steps",
            lambda row: sum(step.b_ns is not None for step in kinds[row.kind]),
            heading="B steps",
            about="steps of B",
        ),
        *STEP_CHANGE_COLUMNS,
        name="step-medians",
        title="Medians of the marked steps, not tested",
    )
    each = tabulate(
        steps,
        Column("step", _step_label),
        Column("kind", is_optional=True),
        *STEP_CHANGE_COLUMNS,
        Column("a_kernels", heading="A kernels", about="kernels of A that began in the step"),
        Column("b_kernels", heading="B kernels", about="kernels of B that began in the step"),
        name="step-difference",
        title="Marked steps, one by one",
    )
    return [medians, each]


def _medians(kind: str, rows: Sequence[StepChange]) -> StepChange:
    names = ("a_ns", "b_ns", "a_busy_ns", "b_busy_ns")
    known = {name: [getattr(row, name) for row in rows] for name in names}
    return StepChange(
        kind=kind,
        **{
            name: round(median(value for value in values if value is not None))
            for name, values in known.items()
            if any(value is not None for value in values)
        },
    )


def _step_label(row: StepChange) -> str:
    a, b = row.a_number, row.b_number
    if a is None or b is None or a == b:
        return str(a if b is None else b)
    return f"{a} → {b}"


def _rows(root: AnyNode, cut: Cut) -> list[PlacedDifference[AnyNode]]:
    tree = changed(root)
    if cut.least:
        tree = from_change(tree, max(1.0, cut.least * moved(root)))
    if cut.depth is not None:
        tree = limit_depth(tree, cut.depth)
    return (
        [PlacedDifference(node, depth) for depth, node in walk_nodes(tree)] if tree.children else []
    )


def _words(cut: Cut) -> str:
    if not cut.least:
        return ""
    return f"; less than {100 * cut.least:g} % of all changes is summed"


def _state(node: DifferenceNode) -> str:
    return "" if node.state == "both" else node.state


def difference_label(node: DifferenceNode) -> str:
    name = idle_label(node.name) if node.kind == "idle" else node.name
    return f"{node.a_name} → {name}" if node.a_name else name
