"""The footer: the keys that work and fit, pressed by a click."""

from __future__ import annotations

from typing import ClassVar

import pytest
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.pilot import Pilot
from textual.widgets import Input

from sysbench.tui.widgets.key_bar import KeyBar, ShownKey, TabBar


class Searching(Input):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("f8", "submit", "Search")]


class Shown(App[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("f9", "save", "Save")]

    may_save = True

    def __init__(self, *, compact: bool = False) -> None:
        super().__init__()
        self.compact = compact

    def compose(self) -> ComposeResult:
        yield Input(id="first")
        yield Input(id="second")
        yield Searching(id="third")
        yield KeyBar(compact=self.compact)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.may_save if action == "save" else True


def bar(app: App[None]) -> KeyBar:
    return app.query_one(KeyBar)


def labels(app: App[None]) -> list[str]:
    return [key.label for _, key in bar(app).shown()]


async def refreshed(pilot: Pilot[None]) -> list[str]:
    pilot.app.refresh_bindings()
    await pilot.pause()
    return labels(pilot.app)


async def test_the_keys_stay_while_the_focus_moves_among_likes() -> None:
    app = Shown()
    async with app.run_test() as pilot:
        await pilot.pause()
        before: tuple[ShownKey, ...] = bar(app).keys
        assert labels(app) == ["Save", "palette"]
        await pilot.press("tab")
        await pilot.pause()
        assert app.focused is app.query_one("#second")
        assert bar(app).keys is before


async def test_other_keys_are_shown() -> None:
    app = Shown()
    async with app.run_test() as pilot:
        await pilot.pause()
        await pilot.press("tab", "tab")
        await pilot.pause()
        assert labels(app) == ["Search", "Save", "palette"]
        app.may_save = False
        assert await refreshed(pilot) == ["Search", "palette"]
        app.may_save = True
        assert await refreshed(pilot) == ["Search", "Save", "palette"]


class Clicked(App[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("f9", "save", "Save", tooltip="Save it")]

    may_save: bool | None = True
    saved = 0

    def compose(self) -> ComposeResult:
        yield Input()
        yield KeyBar(compact=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.may_save if action == "save" else True

    def action_save(self) -> None:
        self.saved += 1


class Crowded(App[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f9", "save", "Save"),
        Binding("f8", "copy", "Copy"),
        Binding("f7", "explain", "Explain"),
        Binding("f1", "help", "Help"),
    ]

    def compose(self) -> ComposeResult:
        yield KeyBar(compact=True)


async def test_keys_without_room_give_way_in_turn_and_come_back() -> None:
    app = Crowded()
    async with app.run_test(size=(60, 5)) as pilot:
        for width, shown in (
            (60, ["Save", "Copy", "Explain", "Help", "palette"]),
            (38, ["Save", "Copy", "Help", "palette"]),
            (31, ["Save", "Help", "palette"]),
            (60, ["Save", "Copy", "Explain", "Help", "palette"]),
        ):
            await pilot.resize_terminal(width, 5)
            await pilot.pause()
            await pilot.pause()
            assert labels(app) == shown
            line = str(bar(app).render())
            assert cell_len(line) == width
            assert line.endswith("▏^p palette ")


@pytest.mark.parametrize("compact", [False, True])
async def test_keys_are_as_compact_as_their_bar(compact: bool) -> None:
    app = Shown(compact=compact)
    async with app.run_test() as pilot:
        await pilot.pause()
        begins = ("f9 Save  ", " f9 Save ")
        assert str(bar(app).render()).startswith(begins[not compact])
        bar(app).compact = not compact
        await pilot.pause()
        assert str(bar(app).render()).startswith(begins[compact])


async def test_a_click_presses_the_key_that_it_meets() -> None:
    app = Clicked()
    async with app.run_test(size=(40, 5)) as pilot:
        await pilot.pause()
        await pilot.hover(KeyBar, offset=(3, 0))
        assert bar(app).pointed is not None
        assert bar(app).tooltip == "Save it"
        await pilot.click(KeyBar, offset=(3, 0))
        await pilot.pause()
        assert app.saved == 1
        await pilot.click(KeyBar, offset=(20, 0))  # between the keys
        await pilot.hover(Input)
        assert bar(app).pointed is None
        app.may_save = None
        app.refresh_bindings()
        await pilot.pause()
        await pilot.click(KeyBar, offset=(3, 0))
        await pilot.pause()
        assert app.saved == 1


async def test_a_tab_has_the_key_of_its_place_though_those_before_it_are_not_shown() -> None:
    class Tabs(App[None]):
        def compose(self) -> ComposeResult:
            yield TabBar(("first", "third"), order=("first", "second", "third"))

    async with Tabs().run_test(size=(60, 3)) as pilot:
        shown = str(pilot.app.query_one(TabBar).render())
    assert "1 First" in shown and "3 Third" in shown
