"""Pictures of every screen on null GPUs, to be looked at: H100, A100, and eight H100s.

``python -m docs.validation.null_gpu_screens FOLDER`` measures two runs and a study on each kind of
`tests/null_gpu`, follows a third run, and saves every screen, tab and view at both sizes as an SVG
in ``FOLDER/KIND``. Times mean nothing there, and the screens have to say so.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from textual.pilot import Pilot

from sysbench.core.runs.directory import list_runs
from sysbench.tui.app import SysbenchApp
from sysbench.tui.live.pair_watch import Pair
from sysbench.tui.screens.compare.screen import CompareScreen
from sysbench.tui.screens.inspect.screen import InspectScreen
from sysbench.tui.screens.result.registry import TABS
from sysbench.tui.screens.result.screen import ResultScreen
from sysbench.tui.screens.result.views import ViewsTab
from sysbench.tui.screens.studies.choice import choices
from sysbench.tui.screens.studies.screen import StudiesScreen

from .null_gpu_page import ROOT, null_gpu

KINDS: dict[str, dict[str, object]] = {
    "h100": {"card": "h100"},
    "a100": {"card": "a100"},
    "eight": {"card": "h100", "count": 8},
}
SIZES = ("80x24", "160x48")
PASSES = ("--passes", "timing,trace,memory")
SPEC = ("cs336-2025/small", "device=cuda", "batch=2", "context=256", "warmup=1", "precision=bf16")
STUDY = """
title = "Precisions and contexts of a small model"
passes = ["timing", "memory"]
[fixed]
model = "tiny"
device = "cuda"
warmup = 1
steps = 3
[axes]
precision = ["fp32", "bf16"]
context = [64, 128]
[[tables]]
name = "sizes"
columns = [
    { name = "Step (ms)", value = "timing.step.median_ms" },
    { name = "Peak (MiB)", value = "memory.peak_allocated_bytes", unit = "MiB" },
]
"""
SETTLED = 1.5
"""Seconds that a screen has to fill before its picture is taken."""

Save = Callable[[str], Awaitable[None]]


async def look(folder: Path, size: str, what: str) -> None:
    """Save the pictures of one app: of everything that is at rest, or of the run that is live."""
    width, height = map(int, size.split("x"))
    app = SysbenchApp()
    async with app.run_test(size=(width, height)) as pilot:

        async def save(name: str) -> None:
            await pilot.pause(SETTLED)
            app.save_screenshot(str(folder / f"{name}-{width}.svg"))

        if what == "live":
            await save("live")
            return
        await save("run")
        await _result(app, save)
        await _comparison(app, pilot, save)
        for mode in ("library", "studies", "inspect"):
            app.action_mode(mode)
            await save(mode)
            if isinstance(app.screen, StudiesScreen):
                begun = next(one for key, one in choices().items() if key.startswith("begun"))
                app.screen.open(begun)
                await save("study")
            if isinstance(app.screen, InspectScreen):
                run = list_runs()[-1]
                for file in sorted(run.path.glob("**/*.json.gz")):
                    await app.screen.open(file)
                    await save(f"inspect-{file.name.partition('.')[0]}")


async def _result(app: SysbenchApp, save: Save) -> None:
    """Each tab of the oldest run, and each view of it."""
    app.open_result(list_runs()[-1])
    await save("result")
    assert isinstance(app.screen, ResultScreen)
    for name in TABS:
        await app.screen.action_tab(name)
        await save(name)
        tab = app.screen.tab
        if isinstance(tab, ViewsTab):
            for view in list(tab.views)[1:]:
                tab.show_view(view)
                await save(f"{name}-{view.replace(' ', '_')}")


async def _comparison(app: SysbenchApp, pilot: Pilot[None], save: Save) -> None:
    old, new = list_runs()[-1], list_runs()[-2]
    app.open_comparison(Pair(old, new))
    await save("compare")
    assert isinstance(app.screen, CompareScreen)
    for name in list(app.screen.bar.names)[1:]:
        app.screen.action_view(name)
        await save(f"compare-{name}")


def take(kind: str, folder: Path) -> None:
    """Measure on a kind of null GPU, and take the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with null_gpu(**KINDS[kind]) as (python, environment):
        environment |= {"COLORTERM": "truecolor"}  # the theme goes by the terminal
        run = partial(subprocess.run, cwd=ROOT, env=environment, check=True)
        program = [python, "-P", "-m", "sysbench.tui.cli"]
        study = folder / "widths.toml"
        study.write_text(STUDY)
        for attention in ("naive", "sdpa"):
            run([*program, "run", *SPEC, "steps=3", f"attention={attention}", *PASSES])
        run([*program, "study", str(study)])
        this = [python, "-m", "docs.validation.null_gpu_screens", str(folder)]
        for size in SIZES:
            run([*this, "--look", "rest", "--size", size])
        run([*program, "run", *SPEC, "steps=1000000", "max_seconds=300", "--detach"])
        for size in SIZES:
            run([*this, "--look", "live", "--size", size])
        run([*program, "stop", "last"])


def main() -> None:
    """Take the pictures; with ``--look`` those of one app, in a process that sees a null GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--look", choices=("rest", "live"), help=argparse.SUPPRESS)
    parser.add_argument("--size", choices=SIZES, default=SIZES[0], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.look:
        asyncio.run(look(arguments.folder, arguments.size, arguments.look))
        return
    for kind in arguments.kind or KINDS:
        take(kind, arguments.folder.absolute() / kind)


if __name__ == "__main__":
    main()
