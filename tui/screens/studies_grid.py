"""The cells of a study as a grid; only visible rows are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

STYLES = {
    "waiting": "waiting",
    "running": "running",
    "finished": "value",
    "predicted": "value",
    "best": "best",
    "oom": "oom",
}
"""Component class of a cell by its state; all other states are failures."""

HEAD_ROWS = 1
MAX_LABEL_CELLS = 40
MIN_CELLS = 7
PADDING = 2


class GridCell(NamedTuple):
    """State and text of a cell; the text is clear without the colour."""

    state: str
    text: str


class Grid(NamedTuple):
    """Texts of a grid; a cell is None if the study has no such combination."""

    corner: str
    columns: Sequence[str]
    rows: Sequence[str]
    cells: Sequence[Sequence[GridCell | None]]


class StudyGrid(ScrollView, can_focus=True):
    """A grid with a cursor on one cell; row labels do not scroll."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"grid--{style}" for style in ("head", "label", "failed", "cursor", *STYLES.values())
    }
    DEFAULT_CSS = """
    StudyGrid {
        & > .grid--head { color: $foreground 60%; }
        & > .grid--label { color: $foreground; text-style: bold; }
        & > .grid--waiting { color: $foreground 40%; }
        & > .grid--running { color: $accent; text-style: bold; }
        & > .grid--value { color: $foreground; }
        & > .grid--best { color: $success; text-style: bold; }
        & > .grid--oom { color: $warning; }
        & > .grid--failed { color: $error; }
        & > .grid--cursor { background: $block-cursor-blurred-background; }
        &:focus > .grid--cursor {
            background: $block-cursor-background;
            color: $block-cursor-foreground;
        }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Open", id="grid.open", tooltip="Open the result of the cell"),
        Binding("up", "move(-1, 0)", show=False),
        Binding("down", "move(1, 0)", show=False),
        Binding("left", "move(0, -1)", show=False),
        Binding("right", "move(0, 1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1_000_000, 0)", show=False),
        Binding("end", "move(1_000_000, 0)", show=False),
    ]

    place: reactive[tuple[int, int]] = reactive((0, 0), repaint=False)
    """Row and column of the cursor."""

    class Moved(Message):
        """The cursor moved."""

    class Chosen(Message):
        """The user opened the selected cell."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.grid = Grid("", (), (), ())
        self._label = 0
        self._edges: list[int] = [0]

    def show(self, grid: Grid) -> None:
        if grid != self.grid:
            self.grid = grid
            self._label, self._edges = self._widths()
            self.virtual_size = Size(self._label + self._edges[-1], HEAD_ROWS + len(grid.rows))
            self.place = self.place  # inside the new grid
            self.refresh()

    def _widths(self) -> tuple[int, list[int]]:
        """Width of the labels and edges of the columns after them, in terminal cells.

        Column i spans edges[i] to edges[i + 1], including its padding.
        """
        grid = self.grid
        label = max(map(cell_len, (grid.corner, *grid.rows)), default=0)
        edges = [0]
        for column, name in enumerate(grid.columns):
            texts = (cell_len(cell.text) for row in grid.cells if (cell := row[column]) is not None)
            edges.append(edges[-1] + max(MIN_CELLS, cell_len(name), *texts, 0) + PADDING)
        return min(label, MAX_LABEL_CELLS) + PADDING, edges

    def render_line(self, y: int) -> Strip:
        grid, width = self.grid, self.size.width
        row = y - HEAD_ROWS + round(self.scroll_y)
        if y < HEAD_ROWS:
            style = self._style("head")
            label = Segment(self._fit(grid.corner, self._label), style)
            texts = [(name, style) for name in grid.columns]
        elif row < len(grid.rows):
            label = Segment(self._fit(grid.rows[row], self._label), self._style("label"))
            texts = [self._cell(row, column) for column in range(len(grid.columns))]
        else:
            return Strip.blank(width, self.rich_style)
        cells = [
            Segment(self._fit(text, end - begin - PADDING, right=True) + " " * PADDING, style)
            for (text, style), (begin, end) in zip(texts, pairwise(self._edges), strict=True)
        ]
        room = max(width - self._label, 0)
        begin = round(self.scroll_x)
        values = Strip(cells).crop_extend(begin, begin + room, self.rich_style)
        return Strip([label, *values]).adjust_cell_length(width, self.rich_style)

    def _cell(self, row: int, column: int) -> tuple[str, Style]:
        cell = self.grid.cells[row][column]
        style = self._style("waiting" if cell is None else STYLES.get(cell.state, "failed"))
        if self.place == (row, column):
            style += self.get_component_styles("grid--cursor").partial_rich_style
        return ("" if cell is None else cell.text), style

    @staticmethod
    def _fit(text: str, width: int, *, right: bool = False) -> str:
        blank = " " * max(width - cell_len(text), 0)
        return blank + text if right and blank else set_cell_size(text, width)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"grid--{name}")

    def validate_place(self, place: tuple[int, int]) -> tuple[int, int]:
        row, column = place
        last_row, last_column = len(self.grid.rows) - 1, len(self.grid.columns) - 1
        return max(min(row, last_row), 0), max(min(column, last_column), 0)

    def watch_place(self, before: tuple[int, int], now: tuple[int, int]) -> None:
        for row in {before[0], now[0]}:
            self.refresh_line(HEAD_ROWS + row)
        self._keep_in_view()
        self.post_message(self.Moved())

    def _keep_in_view(self) -> None:
        row, column = self.place
        if column >= len(self._edges) - 1 or not self.size:
            return
        room = self.scrollable_content_region
        tall, wide = room.height - HEAD_ROWS, room.width - self._label
        left, right = self._edges[column : column + 2]
        y = min(max(round(self.scroll_y), row - tall + 1), row)
        x = min(max(round(self.scroll_x), right - wide), left)
        self.scroll_to(x, y, animate=False, immediate=True)

    def action_move(self, down: int, right: int) -> None:
        self.place = (self.place[0] + down, self.place[1] + right)

    def action_page(self, turn: int) -> None:
        self.action_move(turn * max(self.scrollable_content_region.height - HEAD_ROWS - 1, 1), 0)

    def action_choose(self) -> None:
        if self.grid.rows:
            self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        row = event.y - HEAD_ROWS + round(self.scroll_y)
        x = event.x - self._label + round(self.scroll_x)
        column = next((index for index, end in enumerate(self._edges[1:]) if x < end), -1)
        is_cell = event.y >= HEAD_ROWS and event.x >= self._label and column >= 0
        if not is_cell or row >= len(self.grid.rows):
            return
        if self.place == (row, column):
            self.action_choose()
        self.place = (row, column)
