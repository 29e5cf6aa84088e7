"""A tree as a table: one row for each node whose parents are open."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from rich.text import Text
from textual import on
from textual.binding import Binding, BindingType
from textual.events import Resize

from sysbench.core.tables.table import Column, Table, tabulate
from sysbench.core.tables.tree_rows import NODE_COLUMNS, PlacedNode
from sysbench.core.trace.module_tree import NOT_RUNNING, TreeNode, matching
from sysbench.tui.theme import IDLE, rich_colour
from sysbench.tui.widgets.table_view import TableView
from sysbench.tui.widgets.traces import bar

BAR = " "
"""Name and heading of the column of bars."""
BAR_COLOUR = "$accent"
MIN_WEIGHT = 0.005
"""Nodes with less of the whole stay closed."""


class Branch(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def children(self) -> Sequence[Self]: ...


Node = TypeVar("Node", bound=Branch)


class OutlineView(TableView, Generic[Node]):
    NAMES: ClassVar[str] = ""
    """The indented column of names, which takes the remaining width."""
    BOLD: ClassVar[Collection[str]] = ()
    """Kinds of nodes that lead to others."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right", "open", "Open", show=False, id="tree.open"),
        Binding("left", "close", "Close", show=False, id="tree.close"),
        Binding("enter,space", "turn", "Open or close", show=False, id="tree.toggle"),
        Binding("plus", "open_all", "Open all", show=False, id="tree.all", tooltip="And all below"),
        Binding("minus", "close_all", "Close all", show=False, id="tree.none"),
    ]

    def __init__(self, *, perturbed: bool = False) -> None:
        super().__init__(flexible=self.NAMES)
        self.perturbed = perturbed
        self._root: Node | None = None
        self._shown: Node | None = None
        self._open: set[str] = set()
        self._visible: list[tuple[int, Node]] = []
        self._searched = False
        self._is_arranged = False
        """Whether the user opened or closed a node."""

    def matching_part(self, root: Node, fits: Callable[[str], bool]) -> Node | None:
        """The tree reduced to nodes whose path fits and their ancestors; None if none fits."""
        raise NotImplementedError

    def as_table(self, nodes: Sequence[Node]) -> Table:
        raise NotImplementedError

    def mark_of(self, node: Node) -> str:
        return ""

    def leads(self, node: Node) -> bool:
        """Whether a search opens this node."""
        return node.kind not in ("operator", "kernel")

    def weight(self, node: Node) -> float:
        """Share of the whole by which nodes are opened where rows are free; 0 for none."""
        return 0.0

    def show_tree(self, root: Node) -> None:
        """Show a tree: two levels, and what else fits; paths that the user opened stay open."""
        self._root = self._shown = root
        self._unfold()
        self._refill()

    def _unfold(self) -> None:
        """Open two levels, and unless the user arranged the tree the heaviest nodes that fit."""
        if self._root is None:
            return
        first = {self._root.path, *(child.path for child in self._root.children[:1])}
        self._open = first | (self._open if self._is_arranged else set())
        if self._is_arranged:
            return
        visible = [node for _, node in self._walk(self._root)]
        free = self.scrollable_content_region.height - 1 - len(visible)
        closed = [node for node in visible if node.children and not self.is_open(node)]
        while closed:
            heaviest = max(closed, key=self.weight)
            closed.remove(heaviest)
            if self.weight(heaviest) < MIN_WEIGHT:
                return
            if len(heaviest.children) <= free:
                free -= len(heaviest.children)
                self._open.add(heaviest.path)
                closed += [child for child in heaviest.children if child.children]

    def on_resize(self, event: Resize) -> None:
        if self._shown is None:
            return
        selected = self.node
        if not self._is_arranged:
            self._unfold()
        self._refill()
        paths = [node.path for _, node in self._visible]
        if selected is not None and selected.path in paths:
            self.move_cursor(row=paths.index(selected.path))

    def filter(self, text: str) -> None:
        """Show only nodes whose path contains all words, and their ancestors, all open."""
        words = text.lower().split()
        if self._root is None:
            return
        self._searched = bool(words)
        self._shown = (
            self.matching_part(self._root, lambda path: all(w in path.lower() for w in words))
            if words
            else self._root
        )
        self._refill()

    @property
    def node(self) -> Node | None:
        return None if self.selected is None else self._visible[self.selected][1]

    def is_open(self, node: Node) -> bool:
        leads = self._searched and self.leads(node)
        return bool(node.children) and (leads or node.path in self._open)

    def _walk(self, node: Node, depth: int = 0) -> Iterator[tuple[int, Node]]:
        yield depth, node
        if self.is_open(node):
            for child in node.children:
                yield from self._walk(child, depth + 1)

    def _below(self, node: Node) -> Iterator[Node]:
        yield node
        for child in node.children:
            yield from self._below(child)

    def _refill(self) -> None:
        self._visible = [] if self._shown is None else list(self._walk(self._shown))
        self.show(self.as_table([node for _, node in self._visible]))

    def cell(self, column: str, row: int, text: str) -> Text:
        depth, node = self._visible[row]
        is_idle, idle = node.kind in NOT_RUNNING, rich_colour(self.app, IDLE.colour)
        if column == BAR:
            return Text(text, style=idle if is_idle else rich_colour(self.app, BAR_COLOUR))
        if column == self.NAMES:
            # Open, closed, or a leaf.
            mark = ("▾" if self.is_open(node) else "▸") if node.children else " "
            style = idle if is_idle else "bold" if node.kind in self.BOLD else ""
            return Text(f"{'  ' * depth}{mark} {self.mark_of(node)}{text}", style=style)
        return super().cell(column, row, text)

    def extra_cells(self, column: str) -> int:
        if column != self.NAMES:
            return super().extra_cells(column)
        indents = (2 * depth for depth, _ in self._visible)
        marks = (len(self.mark_of(node)) for _, node in self._visible)
        return max(indents, default=0) + 2 + max(marks, default=0)

    def action_turn(self) -> None:
        if self.node is not None and self.is_open(self.node):
            self.action_close()
        else:
            self.action_open()

    def action_open(self) -> None:
        """Open the node; if it is open, go to its first child."""
        node = self.node
        if node is None or not node.children:
            return
        if self.is_open(node):
            self.move_cursor(row=self.cursor_row + 1)
        else:
            self._open.add(node.path)
            self._is_arranged = True
            self._refill()

    def action_close(self) -> None:
        """Close the node; if it is closed, go to its parent."""
        node, index = self.node, self.selected
        if node is None or index is None:
            return
        if node.path in self._open and self.is_open(node):
            self._open.discard(node.path)
            self._is_arranged = True
            self._refill()
            return
        depth = self._visible[index][0]
        above = [row for row in range(index) if self._visible[row][0] < depth]
        if above:
            self.move_cursor(row=above[-1])

    def action_open_all(self) -> None:
        if self.node is not None:
            self._open |= {node.path for node in self._below(self.node)}
            self._is_arranged = True
            self._refill()

    def action_close_all(self) -> None:
        if self.node is not None:
            self._open -= {node.path for node in self._below(self.node)}
            self._is_arranged = True
            self._refill()

    @on(TableView.RowSelected)
    def _clicked(self) -> None:
        self.action_turn()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable sorting: siblings are ordered by amount."""
        return not action.startswith("sort")

    def sort_by(self, name: str) -> None:
        """Ignore clicks on headings: siblings are ordered by amount."""


MIN_BAR, MAX_BAR = 8, 30
"""Cells of the bars on narrow and on wide screens."""
WIDE = 120


class TreeView(OutlineView[TreeNode]):
    NAMES: ClassVar[str] = "where"
    BOLD: ClassVar[Collection[str]] = ("step", "module", "layers", "phase")

    def weight(self, node: TreeNode) -> float:
        return 0.0 if node.kind in NOT_RUNNING else node.share or 0.0

    def matching_part(self, root: TreeNode, fits: Callable[[str], bool]) -> TreeNode | None:
        return matching(root, fits)

    def as_table(self, nodes: Sequence[TreeNode]) -> Table:
        rows = [PlacedNode(node, perturbed=self.perturbed) for node in nodes]
        width = self.size.width
        cells = MIN_BAR if width < WIDE else min(width // 7, MAX_BAR)
        bars = Column[PlacedNode](BAR, lambda row: bar(row.node.share, cells), priority=3)
        columns = (*NODE_COLUMNS[:2], bars, *NODE_COLUMNS[2:])
        return tabulate(rows, *columns, name="tree", title="")
