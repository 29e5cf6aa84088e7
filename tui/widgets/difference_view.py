"""Two trees side by side in one table: A, B and the change of every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.text import Text

from sysbench.core.compare.nodes import NOT_RUNNING, ByteNode, TimeNode
from sysbench.core.tables.cells import SIGNED
from sysbench.core.tables.difference_rows_tree import difference_label
from sysbench.core.tables.table import Cell, Column, Table, tabulate
from sysbench.tui.theme import IDLE, rich_colour
from sysbench.tui.widgets.outline_view import OutlineView
from sysbench.tui.widgets.table_view import perturbed_cell, perturbed_room

BAR = " "
"""Name and heading of the column of bars."""

BAR_CELLS = 6
"""Cells of a bar on either side of its zero."""
BAR_COLOUR = "$accent"
LEAST_NET = 0.05
"""Part of all changes that the change of the whole must be for rows to have a share of it."""
STATE_MARKS = {"both": "", "new": "+ new ", "gone": "− gone ", "renamed": "→ renamed "}


@dataclass(frozen=True, slots=True)
class ChangeBranch:
    """A node of a difference with its place in the tree.

    Attributes:
        path: Names from the whole to the node, which no other node has.
        text: Its name; with the phase where a sibling has the same name.
        share: Its change over that of the whole; null where the changes nearly cancel.
        part: Its change over the largest one below the whole, for the bar.
    """

    node: TimeNode | ByteNode
    path: str
    text: str
    share: float | None
    part: float
    children: tuple[ChangeBranch, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of its node."""
        return self.node.kind


def change_branches(root: TimeNode | ByteNode) -> ChangeBranch:
    """The tree of a difference with paths and shares."""
    moved = sum(abs(child.change) for child in root.children)
    net = root.change if abs(root.change) > LEAST_NET * moved else 0
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
    """A bar to the left of its zero for less, to the right for more."""
    cells = min(round(abs(part) * BAR_CELLS), BAR_CELLS)
    less, more = ("█" * cells, "") if part < 0 else ("", "█" * cells)
    return f"{less:>{BAR_CELLS}}│{more:<{BAR_CELLS}}"


def _counts(side: int) -> Callable[[ChangeBranch], Cell]:
    return lambda row: row.node.counts[side]


_SHARED: tuple[Column[ChangeBranch], ...] = (
    Column("share", lambda row: row.share, "of change", priority=3, about="share of the change"),
    Column(BAR, lambda row: change_bar(row.part), priority=4),
)
_LAST: tuple[Column[ChangeBranch], ...] = (
    Column(
        "phase", lambda row: row.node.phase, is_optional=True, priority=7, about="phase of the step"
    ),
    Column("kind", lambda row: row.node.kind, in_detail=True, about="kind of the row"),
)
TIME_COLUMNS: tuple[Column[ChangeBranch], ...] = (
    Column("name", lambda row: row.text, about="name of the row"),
    Column(
        "a_ns", lambda row: row.node.amounts[0], "A ms", priority=1, about="time in A's traced step"
    ),
    Column(
        "b_ns", lambda row: row.node.amounts[1], "B ms", priority=2, about="time in B's traced step"
    ),
    Column("change_ns", lambda row: row.node.change, "change ms", f"{SIGNED}ns", about="B minus A"),
    *_SHARED,
    Column("a_calls", _counts(0), "A calls", priority=5, about="calls per step of A"),
    Column("b_calls", _counts(1), "B calls", priority=6, about="calls per step of B"),
    *_LAST,
)
BYTE_COLUMNS: tuple[Column[ChangeBranch], ...] = (
    Column("name", lambda row: row.text, about="name of the row"),
    Column(
        "a_bytes", lambda row: row.node.amounts[0], "A", priority=1, about="bytes of A at its peak"
    ),
    Column(
        "b_bytes", lambda row: row.node.amounts[1], "B", priority=2, about="bytes of B at its peak"
    ),
    Column(
        "change_bytes", lambda row: row.node.change, "change", f"{SIGNED}bytes", about="B minus A"
    ),
    *_SHARED,
    Column("a_blocks", _counts(0), "A blocks", priority=5, about="blocks of A at its peak"),
    Column("b_blocks", _counts(1), "B blocks", priority=6, about="blocks of B at its peak"),
    *_LAST,
)


class DifferenceView(OutlineView[ChangeBranch]):
    """Shows a difference: one row for each node whose parents are all open."""

    NAMES: ClassVar[str] = "name"
    FLEXIBLE_SHARE: ClassVar[float] = 0.4

    def __init__(self, columns: Sequence[Column[ChangeBranch]]) -> None:
        super().__init__()
        self._columns = columns
        self.perturbed = False

    def show_difference(self, root: TimeNode | ByteNode, *, perturbed: bool = False) -> None:
        """Show this tree; with ``perturbed`` its times are marked."""
        self.perturbed = perturbed
        self.show_tree(change_branches(root))

    def children_of(self, node: ChangeBranch) -> Sequence[ChangeBranch]:
        return node.children

    def matching_part(self, root: ChangeBranch, fits: Callable[[str], bool]) -> ChangeBranch | None:
        if fits(root.path):
            return root
        below = (self.matching_part(child, fits) for child in root.children)
        kept = tuple(child for child in below if child is not None)
        return replace(root, children=kept) if kept else None

    def as_table(self, nodes: Sequence[ChangeBranch]) -> Table:
        return tabulate(nodes, self._columns, name="difference", title="")

    def cell(self, column: str, row: int, text: str) -> Text:
        node = self._visible[row][1].node
        if column == BAR:
            colour = IDLE.colour if node.kind in NOT_RUNNING else BAR_COLOUR
            return Text(text, style=rich_colour(self.app, colour))
        if column == self.NAMES:
            return self.name_cell(row, STATE_MARKS[node.state] + text)
        return perturbed_cell(column, text, perturbed=self.perturbed)

    def extra_cells(self, column: str) -> int:
        if column == self.NAMES:
            marks = (STATE_MARKS[branch.node.state] for _, branch in self._visible)
            return super().extra_cells(column) + max(map(len, marks), default=0)
        return perturbed_room(column, perturbed=self.perturbed)

    def style_of(self, node: ChangeBranch) -> str:
        if node.kind in NOT_RUNNING:
            return rich_colour(self.app, IDLE.colour)
        return "bold" if node.kind in ("step", "peak", "category", "module") else ""
