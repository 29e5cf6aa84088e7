"""The timeline on the screens: of a run, of an export, of two runs above each other."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.app import SysbenchApp
from sysbench.tui.live.pair_watch import Pair
from sysbench.tui.screens.compare_screen import CompareScreen
from sysbench.tui.screens.inspect_screen import InspectScreen
from sysbench.tui.widgets.dialog import InputDialog
from sysbench.tui.widgets.lanes_view import LanesView
from tests.tui.conftest import open_tab, painted, until

RESULT_FIRST = True
LANES = "trace/lanes.msgpack"


def lines(app: SysbenchApp) -> list[str]:
    return [strip.text for strip in painted(app)]


def line_of(app: SysbenchApp, word: str) -> str:
    return next(line for line in lines(app) if word in line)


async def lanes_view(pilot: Pilot[None], app: SysbenchApp) -> LanesView:
    """The timeline, once it was read and painted."""
    await until(pilot, lambda: app.screen.query(LanesView))
    await pilot.pause()
    return app.screen.query_one(LanesView)


async def steps_of(pilot: Pilot[None], view: LanesView) -> list[str]:
    """What the timeline says of three steps; a short one has no name in the picture."""
    await pilot.press("w", "home")
    for _ in view.rows:
        if view.row.label != "CPU steps":
            await pilot.press("up")
    said = []
    for _ in range(3):
        await pilot.press("n")
        said.append(view.in_full().splitlines()[0])
    return said


async def test_a_run_shows_its_steps_and_names_what_is_under_the_cursor(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        tab = await open_tab(pilot, app, own_run, "timeline")
        view = await lanes_view(pilot, app)
        assert re.search(r"▏step \d", line_of(app, "CPU steps"))
        assert "backward" in line_of(app, "phases")
        assert view.has_focus
        await pilot.press("w", "n", "enter")  # the first operator, as wide as the picture
        assert "aten::" in line_of(app, "▸ thread 1")
        assert view.in_full().startswith("aten::")
        assert "CPU thread 1 · forward" in view.in_full()
        assert tab.copyable() == ("the event at the cursor", view.in_full())
        narrow = view.view
        await pilot.press("minus", "minus")
        assert view.view.span == 4 * narrow.span
        await pilot.press("w", "down")
        assert (view.view, view.row.label) == (view.whole, "idle")
        await pilot.press("n")
        assert "Python / framework overhead" in view.in_full()
        assert await steps_of(pilot, view) == ["step 1", "step 2", "step 3"]


async def test_keys_move_the_cursor_and_the_window(app: SysbenchApp, own_run: RunDirectory) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await open_tab(pilot, app, own_run, "timeline")
        view = await lanes_view(pilot, app)
        await pilot.press("w", "home", "right", "right")
        begin = view.time
        await pilot.press("left")
        assert view.whole.low < view.time < begin
        await pilot.press("n", "n")
        second = view.time
        await pilot.press("p", "n")
        assert view.time == second
        await pilot.press("plus", "plus", "end")
        assert view.view.high == view.whole.high
        await pilot.press("[")
        assert view.view.low <= view.time < view.view.high < view.whole.high
        for _ in range(60):  # far beyond a nanosecond a cell
            view.action_zoom(1)
        assert 0 < view.view.span <= 80
        await pilot.press("minus", "w")
        assert view.view == view.whole


@pytest.mark.parametrize("size", [(80, 24), (160, 48), (40, 12)])
async def test_an_export_of_two_gpus_has_its_lanes_at_any_size(
    app: SysbenchApp, shared_data: Path, size: tuple[int, int]
) -> None:
    async with app.run_test(size=size) as pilot:
        await pilot.press("f7")
        await until(pilot, lambda: isinstance(app.screen, InspectScreen))
        assert isinstance(app.screen, InspectScreen)
        await app.screen.open(shared_data / "nsys" / "h100_2gpu_1s.sqlite")
        await until(pilot, lambda: isinstance(app.screen, InspectScreen) and app.screen.tab)
        await app.screen.action_tab("timeline")
        view = await lanes_view(pilot, app)
        await pilot.press("n", "n", "n")
        words = view.in_full()
        assert "GPU 0 stream 7 compute" in words and "before it: " in words
        assert all(len(line) == size[0] for line in lines(app))
        labels = [row.label for row in view.rows]
        assert "GPU 1 phases" in labels
        for _ in view.rows:
            await pilot.press("down")  # scrolls to the last lane
        assert view.row.label.startswith("thread 2 calls")
        assert line_of(app, "▸ thread 2")


async def test_letters_stand_for_categories_without_colours(
    app: SysbenchApp, own_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYSBENCH_ASCII", "1")
    async with app.run_test(size=(120, 40)) as pilot:
        await open_tab(pilot, app, own_run, "timeline")
        await lanes_view(pilot, app)
        assert re.search(r"[GE]{2}", line_of(app, "thread 1  ")[20:])
        assert "G gemm" in line_of(app, " gemm")


async def test_a_run_without_the_file_is_decoded_from_its_trace(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    (own_run.path / LANES).unlink()
    async with app.run_test(size=(120, 40)) as pilot:
        await open_tab(pilot, app, own_run, "timeline")
        view = await lanes_view(pilot, app)
        assert await steps_of(pilot, view) == ["step 1", "step 2", "step 3"]


async def test_without_a_trace_it_names_both_files(app: SysbenchApp, own_run: RunDirectory) -> None:
    (own_run.path / LANES).unlink()
    (own_run.path / "trace" / "trace.json.gz").unlink()
    async with app.run_test(size=(120, 40)) as pilot:
        tab = await open_tab(pilot, app, own_run, "timeline")
        said: Callable[[], str] = lambda: str(tab.query_one(Static).render())  # noqa: E731
        await until(pilot, lambda: "No timeline" in said())
        assert said().endswith(f"{own_run.id} has neither {LANES} nor trace/trace.json.gz")


async def test_two_runs_stand_above_each_other(app: SysbenchApp, own_run: RunDirectory) -> None:
    other = RunDirectory(own_run.path.with_name("20261121-120000-tiny-other"))
    shutil.copytree(own_run.path, other.path)
    async with app.run_test(size=(120, 40)) as pilot:
        app.open_comparison(Pair(own_run, other))
        await until(pilot, lambda: isinstance(app.screen, CompareScreen))
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        await until(pilot, lambda: screen.reading)
        await pilot.press("5")
        view = await lanes_view(pilot, app)
        assert [row.label for row in view.rows if row.lane is None] == [
            f"A {own_run.id}",
            f"B {other.id}",
        ]
        a, b = (line for line in lines(app) if "CPU steps" in line)
        assert a == b  # the same file, and one zoom
        await pilot.press("plus", "plus")
        a, b = (line for line in lines(app) if "CPU steps" in line)
        assert a == b
        assert "not tested" in "\n".join(lines(app))
        assert screen.subject() == view.in_full()


async def test_a_second_file_is_shown_below(
    app: SysbenchApp, own_run: RunDirectory, shared_data: Path
) -> None:
    path = shared_data / "traces" / "qwen15_0.5b_h100_fwd.json.gz"
    async with app.run_test(size=(120, 40)) as pilot:
        await open_tab(pilot, app, own_run, "timeline")
        await lanes_view(pilot, app)
        for text, refusal in (("nothing", "nothing"), (str(own_run.record_path), "record.json")):
            await pilot.press("d")
            await until(pilot, lambda: isinstance(app.screen, InputDialog))
            app.screen.query_one(Input).value = text
            await pilot.press("enter")
            assert refusal in str(app.screen.query_one(".complaint", Static).render())
            await pilot.press("escape")
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, InputDialog))
        app.screen.query_one(Input).value = str(path)
        await pilot.press("enter")
        await until(pilot, lambda: len(app.screen.query(LanesView)) and _is_pair(app))
        await pilot.pause()
        text = "\n".join(lines(app))
        assert f"B {path.name}" in text and "stream 7 compute" in text


def _is_pair(app: SysbenchApp) -> bool:
    return len(app.screen.query_one(LanesView).sides) == 2
