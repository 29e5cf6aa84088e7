"""The bars of tabs and views: the active one is in sight whatever the width."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from textual.app import App, ComposeResult

from sysbench.tui.widgets.key_bar import BEFORE, BEHIND, TabBar, ViewBar

NAMES = ("ledger", "stacks", "largest", "modules", "predicted", "resident", "Δ modules")


class Shown(App[None]):
    def compose(self) -> ComposeResult:
        yield ViewBar(NAMES)


@pytest.mark.parametrize("width", [20, 44, 120])
async def test_the_active_view_is_in_sight(width: int) -> None:
    app = Shown()
    async with app.run_test(size=(width, 4)) as pilot:
        bar = app.query_one(ViewBar)
        for name in NAMES:
            bar.active = name
            label = f"[{name.title()}]"
            shown = bar.render().plain
            at = shown.index(label)
            assert cell_len(shown[: at + len(label)]) <= width
        assert shown.startswith(" Ledger") == (width == 120)
        await pilot.pause()


async def test_a_tab_bar_marks_tabs_that_do_not_fit() -> None:
    bar = TabBar(NAMES)

    class Tabs(App[None]):
        def compose(self) -> ComposeResult:
            yield bar

    async with Tabs().run_test(size=(44, 4)):
        for place, name in enumerate(NAMES, 1):
            bar.active = name
            shown = bar.render().plain
            assert f"[{place}{name.title()}]" in shown
            assert cell_len(shown) <= 44
            assert shown.startswith(BEFORE) == ("1" not in shown)
            assert shown.endswith(BEHIND) == (str(len(NAMES)) not in shown)
