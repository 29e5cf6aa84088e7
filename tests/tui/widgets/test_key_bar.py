"""The footer: built anew for other keys, and only then."""

from __future__ import annotations

from typing import ClassVar

import pytest
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.pilot import Pilot
from textual.widgets import Input
from textual.widgets._footer import FooterKey

from sysbench.tui.widgets.bars.key_bar import KeyBar


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


def keys(app: App[None]) -> list[FooterKey]:
    return list(app.query_one(KeyBar).query(FooterKey))


async def refreshed(pilot: Pilot[None]) -> list[str]:
    pilot.app.refresh_bindings()
    await pilot.pause()
    return [key.description for key in keys(pilot.app)]


async def test_the_keys_stay_while_the_focus_moves_among_likes() -> None:
    app = Shown()
    async with app.run_test() as pilot:
        await pilot.pause()
        before = keys(app)
        assert [key.description for key in before] == ["Save", "palette"]
        await pilot.press("tab")
        await pilot.pause()
        assert app.focused is app.query_one("#second")
        assert keys(app) == before


async def test_other_keys_are_shown() -> None:
    app = Shown()
    async with app.run_test() as pilot:
        await pilot.pause()
        await pilot.press("tab", "tab")
        await pilot.pause()
        assert [key.description for key in keys(app)] == ["Search", "Save", "palette"]
        app.may_save = False
        assert await refreshed(pilot) == ["Search", "palette"]
        app.may_save = True
        assert await refreshed(pilot) == ["Search", "Save", "palette"]


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
            visible = [key for key in keys(app) if key.display]
            assert [key.description for key in visible] == shown
            edge = next(key for key in visible if key.description == "palette").region.x
            assert all(key.region.right <= edge for key in visible if key.region.x != edge)


@pytest.mark.parametrize("compact", [False, True])
async def test_keys_are_as_compact_as_their_bar(compact: bool) -> None:
    app = Shown(compact=compact)
    async with app.run_test() as pilot:
        await pilot.pause()
        assert keys(app)[0].render().plain == ("f9 Save" if compact else " f9 Save ")
        app.query_one(KeyBar).compact = not compact
        await pilot.pause()
        assert keys(app)[0].render().plain == (" f9 Save " if compact else "f9 Save")
