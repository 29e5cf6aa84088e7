"""Live shows the current pass, its events, and one cursor in all charts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.widgets import Static

from sysbench.core.record.events import AnyEvent, MemoryRead, PassStarted, RunStarted, StageEntered
from sysbench.core.runs.run_directory import EventLog, RunDirectory
from sysbench.core.watch.hook.window_tracer import WINDOW_FILE
from sysbench.core.watch.supervise_job import create_job
from sysbench.core.watch.windows import marks_folder
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.live_screen import LiveScreen
from sysbench.tui.widgets.drawing import Drawing
from sysbench.tui.widgets.plot import Plot
from tests.tui.conftest import until

RESULT_FIRST = True
SIZES = [(160, 48), (80, 24), (44, 14), (200, 50)]


def cut(run: RunDirectory, last: Callable[[AnyEvent], bool]) -> None:
    """Keep a run's events up to one, as if it had only come so far, and nobody ended it."""
    lines = run.events_path.read_bytes().splitlines(keepends=True)
    for number, event in enumerate(run.tail().read()):
        if last(event):
            run.events_path.write_bytes(b"".join(lines[: number + 1]))
            run.record_path.unlink()
            return
    raise AssertionError("no such event")


def live(app: SysbenchApp, selector: str) -> str:
    return "\n".join(
        strip.text
        for widget in app.screen.query(selector)
        for strip in widget.render_lines(widget.size.region)
    )


@pytest.fixture
def during_memory(own_run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run whose memory pass has warmed up once, and whose supervisor seems to live."""
    monkeypatch.setattr(RunDirectory, "is_live", lambda run: run.id == own_run.id)
    cut(own_run, lambda event: isinstance(event, MemoryRead) and event.step == 1)
    return own_run


async def test_the_memory_pass_shows_its_bytes_against_the_predicted_peak(
    app: SysbenchApp, during_memory: RunDirectory
) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        app.follow(during_memory)
        await until(pilot, lambda: isinstance(app.screen, LiveScreen) and app.screen.query("#log"))
        screen = app.screen
        assert isinstance(screen, LiveScreen)
        await until(pilot, lambda: "no earlier run of this spec" in live(app, "#passes"))
        assert "in " in live(app, "#passes").split("\n")[0], "seconds of the pass that is over"
        assert str(screen.query_one("#steps").border_title) == "Memory"
        assert "predicted 32" in live(app, "#median")
        assert "┄" in live(app, "Plot"), "the level of the prediction"
        assert "1·forward" in live(app, "Plot") and "2·forward" in live(app, "Plot")
        assert "● warming up" in live(app, "#stages")

        await pilot.press("v")  # from the last pass on to the first one
        assert str(screen.query_one("#steps").border_title) == "Step time"
        await pilot.press("left", "left")
        await pilot.pause()
        line = str(screen.query_one("#cursor", Static).content)
        steps = screen.app.watch_run.view.steps_ms if screen.app.watch_run else []
        assert f"step {len(steps) - 1} " in line and "CPU" in line
        assert all("▲" in live(app, chart) for chart in ("Plot", "#series"))
        await pilot.press("escape")
        await pilot.pause()
        assert "▲" not in live(app, "Plot") + live(app, "#series")
        assert str(screen.query_one("#steps").border_title) == "Memory"
        assert not screen.query_one("#cursor").display
        for width, height in SIZES:
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            plot, passes = screen.query_one(Plot), screen.query_one("#passes", Drawing)
            assert plot.size.height >= 4 and plot.region.bottom <= height
            assert passes.size.height == (1 if height < 30 else 3)


async def test_a_pass_without_a_plot_shows_its_stages(
    app: SysbenchApp, own_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunDirectory, "is_live", lambda run: run.id == own_run.id)
    passes = 0

    def has_begun_to_trace(event: AnyEvent) -> bool:
        nonlocal passes
        passes += isinstance(event, PassStarted)
        return passes == 2 and isinstance(event, StageEntered) and event.stage == "measure"

    cut(own_run, has_begun_to_trace)
    async with app.run_test(size=(80, 24)) as pilot:
        app.follow(own_run)
        await until(pilot, lambda: app.screen.query("#stages"))
        await until(pilot, lambda: "● recording" in live(app, "#stages"))
        assert "✓ warming up" in live(app, "#stages")
        assert not app.screen.query_one(Plot).display


async def test_keys_trace_or_count_the_next_steps_of_a_command(
    app: SysbenchApp, sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_job(["python", "train.py"])
    folder = marks_folder(run)
    folder.mkdir(parents=True)
    monkeypatch.setattr(RunDirectory, "is_live", lambda one: one.id == run.id)
    spec = run.header().spec
    started = RunStarted(
        run=run.id, pid=1, identity=spec.identity, passes=["timing"], spec=spec.known()
    )
    with EventLog(run) as log:
        log.append(started)
        log.append(PassStarted(name="timing", pid=1))
    async with app.run_test(size=(100, 30)) as pilot:
        app.follow(run)
        await until(pilot, lambda: isinstance(app.screen, LiveScreen) and app.screen.query("#log"))
        await pilot.press("m")
        await until(pilot, lambda: (folder / WINDOW_FILE).is_file())
        assert (folder / WINDOW_FILE).read_text() == "3 memory\n"
        await pilot.press("t")
        await until(pilot, lambda: (folder / WINDOW_FILE).read_text() == "3\n")
