"""Rows that are made when they are looked at, against a table that has them all."""

from __future__ import annotations

from rich.text import Text
from textual.app import App, ComposeResult
from textual.widgets import DataTable

from sysbench.tui.widgets.tables.virtual_rows import VirtualRows

WIDTH = 12
ROWS = 6
LONG = {3: 2 * WIDTH}
"""Cells of the row that has one longer than its column is wide."""


def cells_of(row: int) -> list[Text]:
    """A cell of each kind: plain, of a style, of several, wide, empty; in one row one too long."""
    right = Text(f"{row}.5", style="dim", justify="right")
    styled = Text("bold", style="bold #d55e00 on #112233")
    parts = Text.assemble(("▚", "#009e73"), "gemm", style="italic")
    return [
        Text(f"row {row}"),
        right,
        styled,
        parts,
        Text("行列"),
        Text("x" * LONG.get(row, WIDTH)),
        Text(),
    ]


class Tables(App[None]):
    """Both kinds with the same rows, neither with the focus."""

    AUTO_FOCUS = None

    def compose(self) -> ComposeResult:
        yield DataTable[Text](cursor_type="row", zebra_stripes=True)
        yield VirtualRows(cursor_type="row", zebra_stripes=True)

    def on_mount(self) -> None:
        for table in self.query(DataTable):
            for column in range(len(cells_of(0))):
                table.add_column(f"c{column}", key=str(column), width=WIDTH)
        self.query(DataTable).first().add_rows(map(cells_of, range(ROWS)))
        self.query_one(VirtualRows).set_rows(range(ROWS), cells_of)


def painted(table: DataTable[Text]) -> list[list[tuple[str, object]]]:
    """Each line as characters with what is seen of their style."""

    def seen(char: str, style: object) -> tuple[str, object]:
        ground = getattr(style, "bgcolor", None)
        return char, ground if char == " " else (ground, str(style))

    return [
        [seen(char, style) for text, style, _ in table.render_line(y) for char in text]
        for y in range(ROWS + 1)
    ]


async def test_cells_look_as_textual_paints_them() -> None:
    app = Tables()
    async with app.run_test(size=(120, 40)) as pilot:
        ours, theirs = app.query_one(VirtualRows), app.query(DataTable).first()
        for row in (0, 2, 3):
            for table in (ours, theirs):
                table.move_cursor(row=row)
            await pilot.pause()
            assert painted(ours) == painted(theirs)
