"""A study of 1,000 cells: reading the file, expanding it, and drawing its grid at 120x40.

In one process, warm: medians of several rounds. Forecasts and tables are made beside the
interface and are timed apart.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TEXTUAL_ANIMATIONS"] = "none"

from textual.app import App, ComposeResult

from sysbench.core.studies.schema import Study, load_study
from sysbench.tui.live.study_watch import StudyWatch
from sysbench.tui.screens.studies_grid import Grid, StudyGrid
from sysbench.tui.screens.studies_text import GridTexts, arrange

ROUNDS = 7
STUDY = """
title = "A thousand cells"
fixed = { device = "cpu" }

[axes]
batch = { from = 1, to = 10, step = 1 }
context = { from = 32, to = 800, step = 32 }
step = ["inference", "forward", "forward+backward", "train"]

[[tables]]
name = "steps"
rows = ["context", "step"]
columns = [{ name = "ms", value = "timing.step.median_ms", where = { batch = "1" } }]
"""


class GridApp(App[None]):
    """The grid alone."""

    def compose(self) -> ComposeResult:
        yield StudyGrid()


def grid_of(watch: StudyWatch) -> Grid:
    """The texts of every cell."""
    return GridTexts(watch, None).grid(arrange(watch.study, watch.cells))


def milliseconds(work: Callable[[], object]) -> float:
    """Median of the rounds."""
    samples = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        samples.append(1e3 * (time.perf_counter() - began))
    return statistics.median(samples)


async def drawn(study: Study) -> float:
    """From a study to the painted grid."""
    app = GridApp()
    async with app.run_test(size=(120, 40)) as pilot:
        samples = []
        for _ in range(ROUNDS):
            widget = app.query_one(StudyGrid)
            widget.show(Grid("", (), (), ()))
            await pilot.pause()
            began = time.perf_counter()
            widget.show(grid_of(StudyWatch(study)))
            await pilot.pause()
            samples.append(1e3 * (time.perf_counter() - began))
        return statistics.median(samples)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SYSBENCH_HOME"] = folder
        path = Path(folder) / "many.toml"
        path.write_text(STUDY)
        study = load_study(path)
        watch = StudyWatch(study)
        print(f"a study of {len(watch.cells):,} cells, medians of {ROUNDS} rounds, in ms")
        print(f"  read the file     {milliseconds(lambda: load_study(path)):8.1f}")
        print(f"  expand, look      {milliseconds(lambda: StudyWatch(study)):8.1f}")
        print(f"  texts of cells    {milliseconds(lambda: grid_of(watch)):8.1f}")
        print(f"  all, painted      {asyncio.run(drawn(study)):8.1f}")
        print(f"  report, beside    {milliseconds(watch.report):8.1f}")


if __name__ == "__main__":
    main()
