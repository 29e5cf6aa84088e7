"""The tree of a traced step, opened and closed by keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text

from sysbench.core.tables.table import Column, Table, tabulate
from sysbench.core.tables.tree_rows import NODE_COLUMNS, PlacedNode
from sysbench.core.trace.module_tree import NOT_RUNNING, TreeNode, matching
from sysbench.tui.theme import IDLE, rich_colour
from sysbench.tui.widgets.kernel_table import perturbed_cell, perturbed_room
from sysbench.tui.widgets.outline_view import OutlineView
from sysbench.tui.widgets.traces import bar

BAR = " "
"""Name and heading of the column of bars."""

BAR_CELLS = 8
BAR_COLOUR = "$accent"
TABLE_COLUMNS = (
    *NODE_COLUMNS[:2],
    Column[PlacedNode](BAR, lambda row: bar(row.node.share, BAR_CELLS), priority=3),
    *NODE_COLUMNS[2:],
)


class TreeView(OutlineView[TreeNode]):
    """Shows a `TreeNode`: one row for each node whose parents are all open."""

    NAMES: ClassVar[str] = "where"

    def __init__(self, *, perturbed: bool) -> None:
        super().__init__()
        self._perturbed = perturbed

    def children_of(self, node: TreeNode) -> Sequence[TreeNode]:
        return node.children

    def matching_part(self, root: TreeNode, fits: Callable[[str], bool]) -> TreeNode | None:
        return matching(root, fits)

    def as_table(self, nodes: Sequence[TreeNode]) -> Table:
        return tabulate(
            [PlacedNode(node, perturbed=self._perturbed) for node in nodes],
            TABLE_COLUMNS,
            name="tree",
            title="",
        )

    def cell(self, column: str, row: int, text: str) -> Text:
        if column == BAR:
            running = self._visible[row][1].kind not in NOT_RUNNING
            colour = BAR_COLOUR if running else IDLE.colour
            return Text(text, style=rich_colour(self.app, colour))
        if column == self.NAMES:
            return self.name_cell(row, text)
        return perturbed_cell(column, text, perturbed=self._perturbed)

    def extra_cells(self, column: str) -> int:
        return super().extra_cells(column) or perturbed_room(column, perturbed=self._perturbed)

    def style_of(self, node: TreeNode) -> str:
        if node.kind in NOT_RUNNING:
            return rich_colour(self.app, IDLE.colour)
        return "bold" if node.kind in ("step", "module", "layers", "phase") else ""
