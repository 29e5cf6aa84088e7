"""The tree of a traced step, opened and closed by keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from ....core.analysis.kernels.tree import NOT_RUNNING, TreeNode, matching, walk
from ....core.tables.table import Column, tabulate
from ....core.tables.tree import NODE_COLUMNS, PlacedNode, known_columns
from ...theme import IDLE, swatch
from .kernel_table import perturbed_cell, perturbed_room
from .table_view import TableView

BAR = " "
"""Name and heading of the column of bars."""

BAR_CELLS = 8
BAR_COLOUR = swatch(0).colour
EIGHTHS = " ▏▎▍▌▋▊▉"
ORDER = (
    *("inclusive_ns", "share", BAR, "calls", "of_roof", "where", "forward_ns", "backward_ns"),
    *("own_ns", "parameter_bytes", "activation_bytes", "flops", "moved_bytes"),
)
TABLE_COLUMNS = (*NODE_COLUMNS, Column[PlacedNode](BAR, lambda row: _bar(row.node.share)))


class TreeView(TableView):
    """Shows a `TreeNode`: one row for each node whose parents are all open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right", "open", "Open", show=False, id="tree.open"),
        Binding("left", "close", "Close", show=False, id="tree.close"),
        Binding("enter,space", "turn", "Open or close", show=False, id="tree.toggle"),
        Binding(
            "plus", "open_all", "Open all", show=False, id="tree.all", tooltip="And all below it"
        ),
        Binding("minus", "close_all", "Close all", show=False, id="tree.none"),
    ]

    def __init__(self, *, perturbed: bool) -> None:
        super().__init__(flexible="where", order=ORDER)
        self._perturbed = perturbed
        self._root: TreeNode | None = None
        self._shown: TreeNode | None = None
        self._open: set[str] = set()
        self._visible: list[tuple[int, TreeNode]] = []
        self._searched = False

    def show_tree(self, root: TreeNode) -> None:
        """Show this tree, its first two levels open; what was open by path stays open."""
        self._root = self._shown = root
        self._open |= {root.path, *(child.path for child in root.children[:1])}
        self._refill()

    def filter(self, text: str) -> None:
        """Show only nodes in whose path every word occurs, and their ancestors, all open."""
        words = text.lower().split()
        if self._root is None:
            return
        self._searched = bool(words)
        self._shown = (
            matching(self._root, lambda path: all(word in path.lower() for word in words))
            if words
            else self._root
        )
        self._refill()

    @property
    def node(self) -> TreeNode | None:
        """The node under the cursor."""
        return None if self.selected is None else self._visible[self.selected][1]

    def is_open(self, node: TreeNode) -> bool:
        """Whether the node's children are rows; in a search all that lead to a match are."""
        leads = self._searched and node.kind not in ("operator", "kernel")
        return bool(node.children) and (leads or node.path in self._open)

    def _walk(self, node: TreeNode, depth: int = 0) -> Iterator[tuple[int, TreeNode]]:
        yield depth, node
        if self.is_open(node):
            for child in node.children:
                yield from self._walk(child, depth + 1)

    def _refill(self) -> None:
        """The visible nodes as a table; the cursor stays on its row."""
        self._visible = [] if self._shown is None else list(self._walk(self._shown))
        table = tabulate(
            [PlacedNode(node, perturbed=self._perturbed) for _, node in self._visible],
            TABLE_COLUMNS,
            name="tree",
            title="",
        )
        self._order = known_columns(table, ORDER)
        self.show(table)

    def cell(self, column: str, row: int, text: str) -> Text:
        depth, node = self._visible[row]
        if column == BAR:
            return Text(text, style=IDLE.colour if node.kind in NOT_RUNNING else BAR_COLOUR)
        if column == "where":
            mark = ("▾" if self.is_open(node) else "▸") if node.children else " "
            return Text(f"{'  ' * depth}{mark} {text}", style=_style(node))
        return perturbed_cell(column, text, perturbed=self._perturbed)

    def extra_cells(self, column: str) -> int:
        if column == "where":
            return max((2 * depth for depth, _ in self._visible), default=0) + 2
        return perturbed_room(column, perturbed=self._perturbed)

    def action_turn(self) -> None:
        """Open a closed node, close an open one."""
        if self.node is not None and self.is_open(self.node):
            self.action_close()
        else:
            self.action_open()

    def action_open(self) -> None:
        """Open the node; on an open one go to its first child."""
        node = self.node
        if node is None or not node.children:
            return
        if self.is_open(node):
            self.action_cursor_down()
        else:
            self._open.add(node.path)
            self._refill()

    def action_close(self) -> None:
        """Close the node; on a closed one go to its parent."""
        node, index = self.node, self.selected
        if node is None or index is None:
            return
        if node.path in self._open and self.is_open(node):
            self._open.discard(node.path)
            self._refill()
            return
        depth = self._visible[index][0]
        above = [row for row in range(index) if self._visible[row][0] < depth]
        if above:
            self.move_cursor(row=above[-1])

    def action_open_all(self) -> None:
        """Open the node and all below it."""
        if self.node is not None:
            self._open |= {node.path for _, node in walk(self.node)}
            self._refill()

    def action_close_all(self) -> None:
        """Close the node and all below it."""
        if self.node is not None:
            self._open -= {node.path for _, node in walk(self.node)}
            self._refill()

    @on(DataTable.RowSelected)
    def _clicked(self) -> None:
        self.action_turn()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable sorting: siblings stay in the order of their times."""
        return not action.startswith("sort_")

    def _sort_by(self, name: str) -> None:
        """Ignore a click on a heading: siblings stay in the order of their times."""


def _bar(share: float) -> str:
    eighths = round(min(max(share, 0.0), 1.0) * BAR_CELLS * 8)
    full_cells, rest = divmod(eighths, 8)
    return ("█" * full_cells + (EIGHTHS[rest] if rest else "")).ljust(BAR_CELLS)


def _style(node: TreeNode) -> str:
    if node.kind in NOT_RUNNING:
        return IDLE.colour
    return "bold" if node.kind in ("step", "module", "layers", "phase") else ""
