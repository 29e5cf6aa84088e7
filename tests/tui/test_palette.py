"""The palette lists valid commands in one form; help lists our keys."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.command import Command, CommandList
from textual.events import Click, Key
from textual.notifications import Notification

from sysbench.core.export.exports import new_path
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.ask_dialog import (
    EXPLANATIONS,
    HelpScreen,
    WorkstationCommands,
    ask_before_leaving,
)
from sysbench.tui.screens.library_screen import LibraryScreen
from sysbench.tui.screens.result_views import USUAL_TABS
from sysbench.tui.widgets.dialog import Palette
from sysbench.tui.widgets.drawing import Folding
from sysbench.tui.widgets.key_bar import CommandLine, KeyBar
from tests.tui.conftest import is_shown, open_result, painted, until


def chosen(app: SysbenchApp) -> str:
    """Text of the command that enter would run now."""
    for commands in app.screen.query(CommandList):
        option = commands.highlighted_option
        if isinstance(option, Command):
            return str(option.hit.text)
    return ""


async def titles(app: SysbenchApp) -> list[str]:
    provider = WorkstationCommands(app.screen)
    return [str(hit.text) async for hit in provider.discover()]


async def test_commands_are_areas_and_sentences_valid_now_and_run_from_the_palette(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        found = await titles(app)
        assert all(re.fullmatch(r"[a-z]+: [A-Z].+", title) for title in found)
        assert "run: Start this run" in found
        assert not {"go: Open Run", "go: Open Live"} & set(found)
        result = await open_result(pilot, app, own_run)
        found = await titles(app)
        assert "result: Show kernels" in found and "run: Start this run" not in found

        await pilot.press("ctrl+p", *"show memory")
        await until(pilot, lambda: "Show memory" in chosen(app))
        await pilot.press("enter")
        await until(pilot, lambda: is_shown(result, "memory"))


async def test_a_screenshot_is_written_where_the_program_was_started(
    app: SysbenchApp, own_run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    async with app.run_test(size=(100, 30)) as pilot:
        await open_result(pilot, app, own_run)
        await pilot.press("ctrl+p", *"screenshot")
        await until(pilot, lambda: "Save screenshot" in chosen(app))
        await pilot.press("enter")
        written = here / "sysbench-tui-result.svg"
        await until(pilot, written.exists)
        picture = written.read_text()
        assert "Library" in picture
        assert "Save screenshot" not in picture, "the palette is gone by then"
        assert "font-face" not in picture, "it would ask the network for a font"
        await until(pilot, lambda: any(str(written) in note.message for note in notices(app)))
        # In front of a dialog, too; a second picture is another file.
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        app.save_picture()
        assert written.with_name("sysbench-tui-result-2.svg").exists()


def notices(app: SysbenchApp) -> list[Notification]:
    return [*app._notifications]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_passed_over(
    sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir(mode=0o500)
    monkeypatch.chdir(here)
    assert new_path("x", ".svg") == sysbench_home / "x.svg"


async def test_every_tab_explains_itself(app: SysbenchApp, own_run: RunDirectory) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        result = await open_result(pilot, app, own_run)
        for number, name in enumerate(USUAL_TABS, 1):
            await pilot.press(str(number))
            await until(pilot, partial(is_shown, result, name))
            assert set(result.explanations()) <= EXPLANATIONS.keys()
            await pilot.press("f1")
            await pilot.pause()
            assert isinstance(app.screen, HelpScreen)
            text = str(app.screen.query_one(Folding).render())
            assert "Everywhere" in text and "F5" in text
            await pilot.press("escape")
            await pilot.pause()


async def test_the_footer_has_few_keys_each_with_an_id_and_a_tooltip(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        for mode in ("run", "library"):
            app.action_mode(mode)
            await until(pilot, lambda: is_fitted(app))
            check_footer(app)
        await open_result(pilot, app, own_run)
        for number in range(1, len(USUAL_TABS) + 1):
            await pilot.press(str(number))
            await until(pilot, lambda: is_fitted(app))
            check_footer(app)


def is_fitted(app: SysbenchApp) -> bool:
    """Keys without room are dropped after the first layout."""
    return app.screen.is_mounted and 5 <= len(app.screen.query_one(KeyBar).shown()) <= 10


def check_footer(app: SysbenchApp) -> None:
    shown = [one for one in app.screen.active_bindings.values() if one.binding.show]
    assert all(one.binding.id for one in shown if not one.binding.system)
    assert all(one.tooltip or one.binding.tooltip for one in shown)
    bar = app.screen.query_one(KeyBar)
    assert 5 <= len(bar.shown()) <= 10
    line = str(bar.render())
    assert cell_len(line) == app.size.width, "the footer is cut"
    assert line.endswith("▏^p palette ")


async def test_what_the_user_typed_is_no_markup(app: SysbenchApp, own_run: RunDirectory) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen) and app.screen.takes_keys)
        await pilot.press("slash", *"[/red] [")
        await until(pilot, lambda: "'[/red]' '['" in command_line(app))
        await pilot.press("ctrl+p", *"copy command")
        await until(pilot, lambda: "Copy command" in chosen(app))
        assert "'[/red]' '['" in " ".join(strip.text for strip in painted(app))


def command_line(app: SysbenchApp) -> str:
    return str(app.screen.query_one(CommandLine).content)


async def test_keys_before_the_palette_is_there_go_into_it(app: SysbenchApp) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        for key in ("ctrl+p", "pagedown", "down", "up", *"quit"):
            app.post_message(Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: "Quit" in chosen(app))


async def test_the_palette_has_room_for_nothing(app: SysbenchApp) -> None:
    async with app.run_test(size=(30, 8)) as pilot:
        await pilot.pause()
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press("down", "pagedown", "pageup", "home", "end", "escape")
        await pilot.pause()
        assert not isinstance(app.screen, Palette)


async def test_a_double_click_closes_the_palette_alone(app: SysbenchApp) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("f1")
        await pilot.pause()
        below = app.screen
        await app.push_screen(Palette())
        palette = app.screen
        palette.dismiss()
        palette.dismiss()
        await pilot.pause()
        assert app.screen is below


async def test_the_palette_opens_again_while_it_closes(app: SysbenchApp) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        await pilot.press("ctrl+p")
        await until(pilot, lambda: chosen(app))
        app.screen.dismiss()
        app.push_screen(ask_before_leaving())
        app.action_command_palette()
        await pilot.pause()
        assert isinstance(app.screen, Palette)


async def test_a_click_outside_a_shrunken_terminal_is_ignored(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await pilot.pause()
        palette = app.screen
        await pilot.resize_terminal(30, 8)
        await pilot.pause()
        palette.post_message(Click(palette, 19, 9, 0, 0, 1, False, False, False, 19, 9))
        await pilot.pause()
        assert app.screen is palette
