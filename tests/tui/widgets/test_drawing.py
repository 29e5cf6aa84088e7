from __future__ import annotations

from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.content import Content

from sysbench.tui.widgets.drawing import Drawing
from tests.tui.conftest import until

LINES = [f"line {number}" for number in range(20)]


class Panel(App[None]):
    CSS = "Vertical { height: 4; }"

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Drawing()

    def on_mount(self) -> None:
        self.query_one(Drawing).show(lambda width, rows: Content("\n".join(LINES[-rows:])))


async def test_it_is_drawn_for_the_room_that_it_has_when_only_its_panel_changes() -> None:
    app = Panel()
    async with app.run_test(size=(30, 12)) as pilot:
        drawing = app.query_one(Drawing)
        for height in (4, 9, 1):
            app.query_one(Vertical).styles.height = height
            await until(pilot, lambda rows=height: drawing.size.height == rows)  # type: ignore[misc]
            await pilot.pause()
            shown = [strip.text.rstrip() for strip in drawing.render_lines(drawing.size.region)]
            assert shown == LINES[-height:]
