"""Live shows the ranks of a watched command, the parts of their steps, and the slowest one."""

from __future__ import annotations

import pytest

from sysbench.core.record.events import (
    AnyEvent,
    FirstStepTimed,
    PassStarted,
    RankReading,
    RanksRead,
    RunStarted,
    StepsTimed,
    WarmupStepTimed,
)
from sysbench.core.runs.run_directory import EventLog, RunDirectory
from sysbench.core.watch.supervise_job import create_job
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.live_screen import LiveScreen
from sysbench.tui.screens.summary_tab import OverviewPanel
from sysbench.tui.widgets.drawing import Facts
from tests.tui.conftest import open_result, until
from tests.tui.screens.test_live import live

RESULT_FIRST = True
COMMAND = ["torchrun", "--nproc-per-node", "12", "train.py"]


def read(count: int, slowest: int | None) -> RanksRead:
    parts = {"input": 20.0, "forward": 30.0, "backward": 45.0, "other": 5.0}
    ranks = [
        RankReading(rank=rank, steps=40, step_ms=100.0, phases_ms=parts, held_bytes=2**30)
        for rank in range(count)
    ]
    return RanksRead(ranks=ranks, slowest=slowest, late_ms=25.0 if slowest else None)


@pytest.fixture
def job(sysbench_home: object, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    run = create_job(COMMAND, ["--window", "9:3"])
    monkeypatch.setattr(RunDirectory, "is_live", lambda one: one.id == run.id)
    spec = run.header().spec
    steps = StepsTimed(
        first_index=0,
        step_ms=[100.0] * 30,
        phases_ms={},
        median_ms=100.0,
        half_width=0.01,
    )
    happened: list[AnyEvent] = [
        RunStarted(run=run.id, pid=1, identity="", passes=["timing"], spec=spec.known()),
        PassStarted(name="timing", pid=7),
        FirstStepTimed(step_ms=300.0),
        WarmupStepTimed(index=0, step_ms=300.0),
        steps,
        read(12, 11),
    ]
    with EventLog(run) as log:
        for event in happened:
            log.append(event)
    return run


async def test_ranks_are_rows_and_the_slowest_is_named(app: SysbenchApp, job: RunDirectory) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        app.follow(job)
        await until(pilot, lambda: isinstance(app.screen, LiveScreen) and app.screen.query("#log"))
        await until(pilot, lambda: "slowest by 25" in live(app, "#stages"))
        rows = live(app, "#stages").splitlines()
        assert "rank 11" in next(row for row in rows if "slowest" in row)
        assert "1.00 GiB" in rows[0] and "more" in rows[-1]
        assert "rank 11: " in live(app, "#phases") and "backward 45" in live(app, "#phases")
        assert "step 40" in live(app, "#passes")
        assert "watch --window 9:3 -- torchrun" in live(app, "CommandLine")
        assert "process 7" in live(app, "#log") and "timing" not in live(app, "#log")
        with EventLog(job) as log:
            log.append(read(1, None))
        await until(pilot, lambda: live(app, "#stages").startswith("step "))
        assert "slowest" not in live(app, "#stages") and "rank" not in live(app, "#phases")
        for width, height in ((160, 48), (44, 14), (200, 50)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            assert "100" in live(app, "#median")
            assert "1.00 GiB" in live(app, "#stages")


async def test_the_result_of_a_command_that_runs_has_no_empty_box(
    app: SysbenchApp, job: RunDirectory
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_result(pilot, app, job)
        assert screen.query(OverviewPanel)
        assert [box.border_title for box in screen.query(Facts) if not box.pairs] == []
