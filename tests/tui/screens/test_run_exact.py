"""Exact mode from the Run screen: in the background, next to the closed form."""

from __future__ import annotations

import time
from pathlib import Path

from textual.events import Paste
from textual.widgets import Input

from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.run_prediction import PredictionView
from sysbench.tui.screens.run_screen import RunScreen
from tests.tui.conftest import until


def text_of(app: SysbenchApp) -> str:
    return " ".join(str(app.screen.query_one(PredictionView).content).split())


async def test_the_exact_figure_appears_beside_the_closed_form_until_the_form_changes(
    app: SysbenchApp,
) -> None:
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, RunScreen)
        screen.action_exact()
        await pilot.pause()
        assert "exact: running" in text_of(app)
        assert "Predicted peak" in text_of(app)
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "exact: 32.8 MiB in backward (loss), closed form +0.0 %; fits cpu" in text_of(app)
        screen.query_one("#field-batch", Input).value = "8"
        await pilot.pause()
        assert "exact:" not in text_of(app)


async def test_leaving_ends_the_process(app: SysbenchApp) -> None:
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, RunScreen)
        screen.action_exact()
        estimator = screen.estimator
        assert estimator is not None
        while estimator.pid is None:
            await pilot.pause(0.02)
    deadline = time.monotonic() + 10
    while estimator.pid is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert estimator.pid is None


async def test_the_ledger_of_a_model_without_a_closed_form_appears(
    app: SysbenchApp, tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))\n"
    )
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        await app.on_event(Paste(f"sysbench-tui run {file}:make batch=4 context=16"))
        await until(pilot, lambda: "use Predict exactly" in text_of(app))
        screen = app.screen
        assert isinstance(screen, RunScreen)
        screen.action_exact()
        await until(pilot, lambda: "Predicted peak" in text_of(app))
        words = text_of(app)
        assert "Predicted peak 106 KiB" in words and "logits and loss 48.0 KiB" in words
        assert "use Predict exactly" not in words
