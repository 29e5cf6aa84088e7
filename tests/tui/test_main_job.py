"""The whole main job in the real app: form, run, live, result, export, library."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest
from textual.widgets import Input, OptionList, Static

from sysbench.core.export.exports import EXPORTS, default_path
from sysbench.core.runs.run_directory import RunDirectory, create_run, list_runs
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.ask_dialog import AskScreen
from sysbench.tui.screens.library_screen import LibraryScreen
from sysbench.tui.screens.live_screen import LiveScreen
from sysbench.tui.screens.result_screen import ResultScreen
from sysbench.tui.screens.result_views import USUAL_TABS
from sysbench.tui.screens.run_screen import RunScreen
from tests.tui.conftest import is_shown, open_result, until
from tests.worker_double.script import replace_workers

# One thread: with more, a busy machine makes operators wait for each other. Training would import
# more of torch.
SPEC = RunSpec(model="tiny", step="inference", steps=6, warmup=1, context=32, batch=1, threads=1)


@pytest.fixture
def stepping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that take steps and no processor, until somebody stops them."""
    replace_workers(monkeypatch, tmp_path / "double", steps=True)


async def test_from_the_form_to_the_artifacts(
    app: SysbenchApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        app.screen.form.fill(SPEC, ["timing", "trace", "memory"])
        await pilot.pause()
        await pilot.press("ctrl+r")
        await until(pilot, lambda: isinstance(app.screen, LiveScreen) or app._notifications)
        assert isinstance(app.screen, LiveScreen), [one.message for one in app._notifications]
        watch = app.watch_run
        assert watch is not None

        await until(pilot, lambda: watch.view.step_count or watch.over)
        assert watch.view.status == "running"
        await until(pilot, lambda: isinstance(app.screen, ResultScreen))
        (run,) = list_runs()
        result = app.screen
        assert isinstance(result, ResultScreen)
        await until(pilot, lambda: result.tab)
        assert result.record is not None
        assert result.record.id == run.id
        assert result.record.status == "finished"

        for number, name in enumerate(USUAL_TABS, 1):
            await pilot.press(str(number))
            await until(pilot, partial(is_shown, result, name))
            tab = result.tab
            assert tab is not None and (tab.block is None) == (name == "compile")

        await pilot.press(str(USUAL_TABS.index("export") + 1))
        await until(pilot, lambda: isinstance(app.focused, OptionList))
        await pilot.press(*["down"] * [*EXPORTS].index("md"), "enter")
        written = tmp_path / f"{run.id}.md"
        await until(pilot, written.exists)
        await until(pilot, lambda: "✓ md" in str(result.query_one("#written", Static).content))
        assert "step" in written.read_text()

        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        library = app.screen
        assert isinstance(library, LibraryScreen)
        assert [entry.id for entry in library.entries] == [run.id]
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is result)


@pytest.mark.usefixtures("stepping")
async def test_a_run_that_ends_under_the_question_to_queue_lets_the_next_begin(
    app: SysbenchApp,
) -> None:
    long = SPEC.changed(steps=100_000, max_seconds=3600.0)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        form = app.screen
        assert isinstance(form, RunScreen)
        form.form.fill(long, ["timing"])
        await until(pilot, lambda: form.filled.spec == long)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: app.watch_run is not None and app.watch_run.run.is_live())
        (first,) = list_runs()
        await pilot.press("f2")
        await until(pilot, lambda: app.screen is form)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: isinstance(app.screen, AskScreen))
        assert first.stop()
        await until(pilot, lambda: len(list_runs()) == 2)
        second = next(run for run in list_runs() if run.id != first.id)
        await until(pilot, lambda: isinstance(app.screen, LiveScreen) and second.is_live())
        assert app.watch_run is not None and app.watch_run.run.id == second.id
        assert second.stop()
        await until(pilot, lambda: not app.session.live)


@pytest.mark.usefixtures("stepping")
async def test_a_live_run_is_left_found_again_and_stopped(app: SysbenchApp) -> None:
    long = SPEC.changed(steps=100_000, max_seconds=3600.0)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        app.screen.form.fill(long, ["timing"])
        await pilot.pause()
        await pilot.press("ctrl+r")
        await until(pilot, lambda: app.session.live and app.screen.query("#median"))
        watch = app.watch_run
        assert watch is not None
        await until(pilot, watch.run.is_live)
        await pilot.press("q")
        await pilot.pause()
        await pilot.press("escape")
        await pilot.pause()
        assert app.is_running and app.session.live
        await pilot.press("ctrl+q")
        await pilot.pause()
        await pilot.press("l")
    (run,) = list_runs()
    assert run.is_live()

    again = SysbenchApp()
    async with again.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: isinstance(again.screen, LiveScreen))
        watch = again.watch_run
        assert watch is not None and watch.run.id == run.id
        await until(pilot, lambda: watch.view.step_count)
        await pilot.press("f2")
        await pilot.pause()
        await pilot.press("ctrl+r")
        await until(pilot, lambda: isinstance(again.screen, AskScreen))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(again.screen, RunScreen))
        form = again.screen
        assert isinstance(form, RunScreen)
        assert len(list_runs()) == 1, "a second run must not start beside a live one unasked"
        form.form.fill(long, ["timing"])
        await until(pilot, lambda: form.filled.spec == long)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: isinstance(again.screen, AskScreen))
        await pilot.press("q")
        await until(pilot, lambda: len(list_runs()) == 2)
        queued = next(one for one in list_runs() if one.id != run.id)
        await until(pilot, lambda: queued.is_queued())
        assert not run.is_queued()
        found = again.session.find_live_run()
        assert found is not None and found.id == run.id
        await pilot.press("f3", "x", "s")
        await until(pilot, lambda: watch.over)
        await until(pilot, lambda: isinstance(again.screen, ResultScreen))
        assert watch.view.status == "cancelled"
        await until(pilot, lambda: again.session.live)
        follower = again.watch_run
        assert follower is not None and follower.run.id == queued.id
        assert not queued.is_queued()
        assert queued.stop()
        await until(pilot, lambda: not again.session.live)
    assert not run.is_live()
    assert {one.record().status for one in (run, queued)} == {"cancelled"}


@pytest.mark.usefixtures("stepping")
async def test_a_run_that_is_started_elsewhere_is_followed(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        long = SPEC.changed(device="cpu", steps=100_000, max_seconds=3600.0)
        run = create_run(long, ["timing"])
        pid = run.start()
        try:
            await until(pilot, lambda: app.session.live)
            assert app.watch_run is not None and app.watch_run.run.id == run.id
            assert isinstance(app.screen, RunScreen), "what a person is doing is not taken away"
            result = await open_result(pilot, app, own_run)
        finally:
            await until(pilot, run.is_live)
            run.stop()
            os.waitpid(pid, 0)
        await until(pilot, lambda: not app.session.live)
        await pilot.pause()
        assert result.record is not None and result.record.id == own_run.id
        await pilot.press("f4")
        await until(pilot, lambda: result.record is not None and result.record.id == run.id)


async def test_an_export_that_cannot_be_says_why(
    app: SysbenchApp, own_run: RunDirectory, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()  # not even root makes a folder in it
    async with app.run_test(size=(100, 30)) as pilot:
        app.open_result(own_run)
        await until(pilot, lambda: isinstance(app.screen, ResultScreen))
        await pilot.press(str(USUAL_TABS.index("export") + 1))
        await until(pilot, lambda: isinstance(app.focused, OptionList))
        await pilot.press("down", "enter")
        written = app.screen.query_one("#written", Static)
        await until(pilot, lambda: "✗ memory-viz" in str(written.content))
        box = app.screen.query_one("#target", Input)
        await pilot.press(*["down"] * ([*EXPORTS].index("json") - 1))
        # The path that is proposed there would else come after the one that is typed.
        proposed = str(default_path(own_run, "json", Path.cwd()))
        await until(pilot, lambda: box.value == proposed)
        box.value = str(file / "run.json")
        await pilot.press("enter")
        await until(pilot, lambda: "✗ json" in str(written.content))


@pytest.mark.usefixtures("stepping")
async def test_a_question_about_a_run_goes_when_the_run_does(app: SysbenchApp) -> None:
    run = create_run(SPEC.changed(device="cpu", steps=100_000, max_seconds=3600.0), ["timing"])
    pid = run.start()
    async with asyncio.timeout(60):
        while not run.is_live():
            await asyncio.sleep(0.05)
    try:
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, LiveScreen))
            await pilot.press("x")
            await until(pilot, lambda: isinstance(app.screen, AskScreen))
            run.stop()
            await until(pilot, lambda: isinstance(app.screen, ResultScreen))
            await pilot.press("f3")
            await until(pilot, lambda: isinstance(app.screen, LiveScreen))
    finally:
        run.stop()
        os.waitpid(pid, 0)
