"""The rows of the modes: each has its screen, its keys are its own, help and palette read it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from textual.binding import Binding

from sysbench import tui
from sysbench.tui import screens as result
from sysbench.tui.app import SysbenchApp
from sysbench.tui.modes import MODES, load_class
from sysbench.tui.screens.ask_dialog import WorkstationCommands
from sysbench.tui.screens.result_views import TABS
from sysbench.tui.screens.work_screen import WorkScreen
from sysbench.tui.widgets.drawing import Folding
from tests.tui.conftest import painted, until

SCREENS = Path(result.__path__[0]).parent


def test_every_screen_has_a_row_and_every_row_its_screen() -> None:
    screens = {mode.name: mode.make_screen() for mode in MODES.values()}
    assert all(isinstance(screen, WorkScreen) for screen in screens.values())
    assert {path.parent.name for path in SCREENS.glob("*/screen.py")} <= set(screens)


def test_no_key_leads_to_two_modes() -> None:
    keys = Counter(key for mode in MODES.values() for key in mode.keys.split(","))
    keys.update(b.key for b in SysbenchApp.BINDINGS if isinstance(b, Binding) and b.id == "quit")
    assert set(keys.values()) == {1}


def test_the_key_of_the_next_view_leads_to_no_mode() -> None:
    """Else it leads away from a tab that has one view, or is not there yet."""
    views = [
        key
        for tab in TABS.values()
        for binding in load_class(tab.shown_by).BINDINGS
        if isinstance(binding, Binding) and binding.action == "view"
        for key in binding.key.split(",")
    ]
    assert {"v", "w"} == {*views}
    assert not {*views} & {key for mode in MODES.values() for key in mode.keys.split(",")}


async def test_a_mode_is_offered_where_the_app_has_what_it_needs(app: SysbenchApp) -> None:
    needed = {mode.name for mode in MODES.values() if mode.needs}
    assert needed == {"live", "result", "compare"}
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        allowed = {name for name in MODES if app.check_action("mode", (name,))}
        assert allowed == MODES.keys() - needed - {app.current_mode}
        offered = [str(hit.text) async for hit in WorkstationCommands(app.screen).discover()]
        opened = {title.removeprefix("go: Open ") for title in offered if title.startswith("go: ")}
        assert opened == {MODES[name].title for name in allowed}


async def test_help_says_what_each_mode_is_for(app: SysbenchApp) -> None:
    async with app.run_test(size=(120, 60)) as pilot:
        await pilot.press("f1")
        await pilot.pause()
        text = " ".join(str(app.screen.query_one(Folding).render()).split())
        assert all(
            f"{mode.title} {' '.join(mode.about.split())}" in text for mode in MODES.values()
        )


def test_nothing_that_the_app_imports_imports_the_app() -> None:
    """The app is named for type checkers only."""
    root = Path(tui.__file__).parent
    importers = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module == "sysbench.tui.app"
    ]
    assert importers == []


def looks(app: SysbenchApp, row: int) -> list[tuple[str, object]]:
    """The characters of a row with their colours, as they are painted; no blanks."""
    pairs = [
        (char, one.style and one.style.color) for one in painted(app)[row] for char in one.text
    ]
    return [(char, colour) for char, colour in pairs if char != " "]


def metas(app: SysbenchApp) -> list[dict[str, object]]:
    """What a click would do, where a dialog never is: left of its text, and below it."""
    lines = [line.crop(0, 5) for line in painted(app)]
    return [style.meta for line in lines for _, style, _ in line if style and style.meta]


@pytest.mark.parametrize("dialog", ["f1", "ctrl+p", "ctrl+s"])
async def test_a_dialog_leaves_the_screen_as_it_is_but_for_its_keys(
    app: SysbenchApp, dialog: str
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.screen.query("#field-rounds") and app.screen.focused)
        title, keys = 1, app.size.height - 1
        before = looks(app, title), looks(app, keys)
        assert metas(app)
        await pilot.press(dialog)
        await until(pilot, lambda: app.screen.is_modal and looks(app, title))  # it is laid out
        await until(pilot, lambda: looks(app, keys) != before[1])
        assert looks(app, title) == before[0]
        assert [char for char, _ in looks(app, keys)] == [char for char, _ in before[1]]
        assert not metas(app)  # what a click would do there is gone
        await pilot.press("escape")
        await until(pilot, lambda: not app.screen.is_modal and looks(app, keys) == before[1])


async def test_a_theme_is_that_of_screens_behind_too(app: SysbenchApp) -> None:
    """A screen that is shown again is not styled again, but where the theme has changed."""
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: app.screen.query("#field-batch"))
        widgets = [*app.screen.query("LiveStrip, SpecForm, SpecForm *, CommandLine")]

        def looks() -> list[tuple[object, ...]]:
            return [widget.colors for widget in widgets]

        dark = looks()
        await pilot.press("f5", "f12", "f2")
        await until(pilot, lambda: app.current_mode == "run" and looks() != dark)
        light = looks()
        app.update_styles(app.screen)
        await pilot.pause()
        assert looks() == light
        await pilot.press("f5", "f12", "f2")
        await until(pilot, lambda: app.current_mode == "run" and looks() != light)
        assert looks() == dark
