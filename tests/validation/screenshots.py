"""Pictures of the real app on real runs, for the README and the tour: ``make screenshots``.

``python -m tests.validation.screenshots NAME…`` saves only those of these names, and
``python -m tests.validation.screenshots --h100 FILE`` only ``h100``, the trace of an H100.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.app import App

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SIZE = (120, 36)
TABS = {"summary": "result", "timing": "timing", "kernels": "kernels", "memory": "memory"}
MODES = ("library", "studies")
TRACE = "trace.json.gz"
# The pictures must not make a reader's browser fetch fonts from elsewhere.
WEB_FONT = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)
LIVE_STEPS = 20
"""Steps that the picture of a live run shows at least."""
DECODE = "estimate llama-3.1-8b step=decode context=8192 precision=bf16-pure --card h100"
FORMS = {"decode": f"{DECODE} batch=16"}
COMMANDS = {"sequences": f"{DECODE} --fit sequences"}
"""Commands by the name of the picture: of the form that has their settings, or of their answer."""


def save(app: App[Any], name: str) -> None:
    save_picture(app.export_screenshot(title="sysbench-tui"), name)


def save_picture(picture: str, name: str) -> None:
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / f"{name}.svg").write_text(WEB_FONT.sub("", picture))


class Terminal(io.TextIOWrapper):
    """Stream that a command takes for a terminal."""

    def isatty(self) -> bool:
        return True


def take_picture_of_command(command: str, name: str) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    from sysbench.tui.cli import main as run_command

    with redirect_stdout(Terminal(io.BytesIO(), encoding="utf-8")) as printed:
        run_command(command.split())
        printed.seek(0)
        text = Text.from_ansi(printed.read())
    width = max(map(cell_len, text.plain.splitlines()))
    console = Console(file=io.StringIO(), width=width, record=True, force_terminal=True)
    console.print(text, end="")
    save_picture(console.export_svg(title="sysbench-tui"), name)


async def take_picture_of_form(command: str, name: str) -> None:
    """Save the Run screen with the settings of a command, when they are predicted."""
    from textual.events import Paste

    from sysbench.tui.app import SysbenchApp
    from sysbench.tui.screens.run_prediction import PredictionView
    from sysbench.tui.screens.run_screen import RunScreen

    app = SysbenchApp()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(1.0)
        app.screen.post_message(Paste(f"sysbench-tui {command}"))
        await pilot.pause(1.0)
        if isinstance(app.screen, RunScreen):
            app.screen.action_exact()
        while "kv cache" not in str(app.screen.query_one(PredictionView).content):
            await pilot.pause(0.5)
        app.clear_notifications()
        await pilot.pause(0.5)
        save(app, name)


async def take_picture_of(trace: Path) -> None:
    """Save the kernels of a trace, under the name that the file has."""
    from sysbench.tui.app import SysbenchApp
    from sysbench.tui.screens.inspect_screen import InspectScreen
    from sysbench.tui.screens.result_views import ResultTab

    app = SysbenchApp()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(1.0)
        app.action_mode("inspect")
        await pilot.pause(1.0)
        if isinstance(app.screen, InspectScreen):
            await app.screen.open(Path(shutil.copy(trace, ".")))
        while not app.screen.query(ResultTab):
            await pilot.pause(0.5)
        await pilot.pause(1.0)
        save(app, "h100")


async def take_pictures(names: Collection[str]) -> None:
    """Measure a small model twice with every pass, then save what each screen shows of it.

    Args:
        names: The pictures to save; empty for all.
    """
    from sysbench.core import RunSpec, run
    from sysbench.core.runs.run_directory import create_run
    from sysbench.core.spec.profiles import resolve
    from sysbench.tui.app import SysbenchApp
    from sysbench.tui.live.pair_watch import Pair
    from sysbench.tui.screens.inspect_screen import InspectScreen
    from sysbench.tui.screens.result_screen import ResultScreen

    sized = RunSpec(vocab=4096, d_model=256, d_ff=1024, layers=4, heads=8, context=256)
    spec = sized.changed(threads=1, until=0.02)
    app = SysbenchApp()

    async def save_wanted(name: str) -> None:
        if not names or name in names:
            await pilot.pause(1.0)
            save(app, name)

    measured = (await asyncio.to_thread(run, spec)).directory
    other = (await asyncio.to_thread(run, spec.changed(precision="bf16"))).directory
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(2.0)
        await save_wanted("run")
        app.open_result(measured)
        await pilot.pause(1.0)
        for tab, name in TABS.items():
            if isinstance(app.screen, ResultScreen):
                await app.screen.action_tab(tab)
            await save_wanted(name)
        app.open_comparison(Pair(measured, other))
        await save_wanted("compare")
        for mode in MODES:
            app.action_mode(mode)
            await save_wanted(mode)
        app.action_mode("inspect")
        await pilot.pause(1.0)
        if isinstance(app.screen, InspectScreen):
            shutil.copy(measured.trace_path, TRACE)
            await app.screen.open(Path(TRACE))
            await pilot.pause(3.0)
        await save_wanted("inspect")
        if not names or "live" in names:
            started = create_run(resolve(spec.changed(until=0.001)), ["timing"])
            started.start()
            app.follow(started)
            while (
                (watch := app.watch_run) and watch.view.step_count < LIVE_STEPS and not watch.over
            ):
                await pilot.pause(0.5)
            await save_wanted("live")
            started.stop()
            while (watch := app.watch_run) and not watch.over:
                await pilot.pause(0.5)


def main() -> None:
    names = sys.argv[1:]
    trace = Path(names[1]).resolve() if names[:1] == ["--h100"] else None
    with tempfile.TemporaryDirectory() as home:
        os.environ["SYSBENCH_HOME"] = home
        os.environ |= {"COLORTERM": "truecolor", "TERM": "xterm-256color"}  # for the theme
        os.environ |= {"COLUMNS": "80", "PAGER": "cat"}
        os.chdir(home)  # the pictures name no folder of this machine
        if trace:
            asyncio.run(take_picture_of(trace))
            return
        for name in COMMANDS:
            if not names or name in names:
                take_picture_of_command(COMMANDS[name], name)
        for name in FORMS:
            if not names or name in names:
                asyncio.run(take_picture_of_form(FORMS[name], name))
        if not names or {*names} - {*COMMANDS, *FORMS}:
            asyncio.run(take_pictures(names))


if __name__ == "__main__":
    main()
