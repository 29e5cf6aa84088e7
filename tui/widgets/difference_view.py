"""The difference of two trees in one table: A, B and the change of every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from sysbench.core.compare.nodes import ByteNode, TimeNode
from sysbench.core.tables.cells import SIGNED
from sysbench.core.tables.difference_rows_tree import difference_label
from sysbench.core.tables.table import Cell, Column, Table, tabulate
from sysbench.tui.widgets.outline_view import BAR, OutlineView

BAR_CELLS = 6
"""Cells of a bar on each side of zero."""
MIN_NET = 0.05
"""Minimum of |total change| / sum of |changes| for which rows have a share of the total."""
STATE_MARKS = {"both": "", "new": "+ new ", "gone": "− gone ", "renamed": "→ renamed "}


@dataclass(frozen=True, slots=True)
class ChangeBranch:
    """A node of a difference with its place in the tree.

    Attributes:
        path: Unique path of names from the root.
        text: Its name, with the phase if a sibling has the same name.
        share: Its change over the total change; None if the changes nearly cancel.
        part: Its change over the largest one below the root, for the bar.
    """

    node: TimeNode | ByteNode
    path: str
    text: str
    share: float | None
    part: float
    children: tuple[ChangeBranch, ...] = ()

    @property
    def kind(self) -> str:
        return self.node.kind


def change_branches(root: TimeNode | ByteNode) -> ChangeBranch:
    """Add paths and shares to the tree of a difference."""
    moved = sum(abs(child.change) for child in root.children)
    net = root.change if abs(root.change) > MIN_NET * moved else 0
    largest = max((abs(child.change) for child in root.children), default=0) or abs(root.change)

    def branch(node: TimeNode | ByteNode, path: str, text: str) -> ChangeBranch:
        below: Sequence[TimeNode | ByteNode] = node.children
        labels = Counter(difference_label(child) for child in below)
        texts = [
            f"{difference_label(child)} · {child.phase}"
            if labels[difference_label(child)] > 1 and child.phase
            else difference_label(child)
            for child in below
        ]
        seen: Counter[str] = Counter()
        children = []
        for child, name in zip(below, texts, strict=True):
            seen[name] += 1
            place = f"{path}/{name}" if seen[name] == 1 else f"{path}/{name} #{seen[name]}"
            children.append(branch(child, place, name))
        return ChangeBranch(
            node=node,
            path=path,
            text=text,
            share=round(node.change / net, 3) + 0.0 if net else None,
            part=node.change / largest if largest else 0.0,
            children=tuple(children),
        )

    return branch(root, difference_label(root), difference_label(root))


def change_bar(part: float) -> str:
    """A bar to the left of zero for less, to the right for more."""
    cells = min(round(abs(part) * BAR_CELLS), BAR_CELLS)
    less, more = ("█" * cells, "") if part < 0 else ("", "█" * cells)
    return f"{less:>{BAR_CELLS}}│{more:<{BAR_CELLS}}"


def _amount(side: int) -> Callable[[ChangeBranch], Cell]:
    return lambda row: row.node.amounts[side]


def _count(side: int) -> Callable[[ChangeBranch], Cell]:
    return lambda row: row.node.counts[side]


def _columns(
    unit: str, shown_unit: str, amounts: str, count: str, counts: str
) -> tuple[Column[ChangeBranch], ...]:
    """Columns of a difference.

    Args:
        unit: Unit of the amounts, and in the headings ``shown_unit``.
        amounts: What the amounts of a side are.
        count: Name of the counts.
        counts: What they are.
    """
    a, b, change = (f"{name}{shown_unit}" for name in ("A", "B", "change"))
    return (
        Column("name", lambda row: row.text, about="name of the row"),
        Column(f"a_{unit}", _amount(0), a, priority=1, about=amounts.format("A")),
        Column(f"b_{unit}", _amount(1), b, priority=2, about=amounts.format("B")),
        Column(
            f"change_{unit}",
            lambda row: row.node.change,
            change,
            f"{SIGNED}{unit}",
            about="B minus A",
        ),
        Column(
            "share", lambda row: row.share, "of change", priority=3, about="share of the change"
        ),
        Column(BAR, lambda row: change_bar(row.part), priority=4),
        Column(f"a_{count}", _count(0), f"A {count}", priority=5, about=counts.format("A")),
        Column(f"b_{count}", _count(1), f"B {count}", priority=6, about=counts.format("B")),
        Column(
            "phase",
            lambda row: row.node.phase,
            is_optional=True,
            priority=7,
            about="phase of the step",
        ),
        Column("kind", lambda row: row.node.kind, in_detail=True, about="kind of the row"),
    )


TIME_COLUMNS = _columns("ns", " ms", "time in {}'s traced step", "calls", "calls per step of {}")
BYTE_COLUMNS = _columns(
    "bytes", "", "bytes of {} at its peak", "blocks", "blocks of {} at its peak"
)


class DifferenceView(OutlineView[ChangeBranch]):
    """Shows the tree of a difference."""

    NAMES: ClassVar[str] = "name"
    BOLD: ClassVar[Collection[str]] = ("step", "peak", "category", "module")
    FLEXIBLE_SHARE: ClassVar[float] = 0.4

    def __init__(self, columns: Sequence[Column[ChangeBranch]]) -> None:
        super().__init__()
        self._columns = columns

    def show_difference(self, root: TimeNode | ByteNode, *, perturbed: bool = False) -> None:
        self.perturbed = perturbed
        self.show_tree(change_branches(root))

    def mark_of(self, node: ChangeBranch) -> str:
        return STATE_MARKS[node.node.state]

    def matching_part(self, root: ChangeBranch, fits: Callable[[str], bool]) -> ChangeBranch | None:
        if fits(root.path):
            return root
        below = (self.matching_part(child, fits) for child in root.children)
        children = tuple(child for child in below if child is not None)
        return replace(root, children=children) if children else None

    def as_table(self, nodes: Sequence[ChangeBranch]) -> Table:
        return tabulate(nodes, self._columns, name="difference", title="")
