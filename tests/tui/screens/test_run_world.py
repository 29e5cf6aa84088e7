"""The row `world` of the Run screen: its checks, the ranks beside the form, and their table."""

from __future__ import annotations

import json

import pytest
from textual.widgets import Button, Input, Static

from sysbench.core.spec.spec import RunSpec
from sysbench.tui.app import SysbenchApp
from sysbench.tui.cli import main
from sysbench.tui.screens.ask_dialog import TableScreen
from sysbench.tui.screens.run_filled import read_command
from sysbench.tui.screens.run_prediction import PredictionView
from sysbench.tui.screens.run_screen import RunScreen
from sysbench.tui.widgets.table_view import TableView
from tests.tui.conftest import painted, until

WORLD = "pp=2,tp=2,microbatches=2"


def screen_of(app: SysbenchApp) -> RunScreen:
    assert isinstance(app.screen, RunScreen)
    return app.screen


def text_of(app: SysbenchApp) -> str:
    return " ".join(str(app.screen.query_one(PredictionView).content).split())


async def test_the_ranks_are_those_of_estimate(
    app: SysbenchApp, capsys: pytest.CaptureFixture[str]
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.screen.query("#field-world"))
        spec = RunSpec(batch=8, context=512)
        screen_of(app).form.fill(spec, ["timing"], card="h100", world=WORLD)
        await until(pilot, lambda: "4 ranks: running each kind" in text_of(app))
        command = screen_of(app).command()
        assert "world" not in command
        await until(pilot, lambda: "^t table" in text_of(app))
        text, lines = text_of(app), str(app.screen.query_one(PredictionView).content).split("\n")
        strip = [line for line in lines if "×" in line]
        assert strip and max(map(len, strip)) <= app.screen.query_one(PredictionView).size.width
        screen_of(app).action_copy_estimate()
        copied = app.clipboard
        await pilot.press("ctrl+t")
        await until(pilot, lambda: isinstance(app.screen, TableScreen))
        table = app.screen.query_one(TableView).table
        assert table is not None
        await pilot.press("escape")
        app.screen.query_one("#field-world", Input).value = ""
        await until(pilot, lambda: "Largest batch" in text_of(app))
        assert not screen_of(app).check_action("ranks", ())
    words = copied.split()
    assert words[:4] == ["sysbench-tui", "estimate", "--card", "h100"]
    assert words[4:6] == ["--world", "tp=2,pp=2,microbatches=2"]
    assert main([*words[1:], "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    worst = document["worst_rank"]
    assert f"Rank {worst}, like 1 other, needs most" in text and f"Rank {worst} Predicted" in text
    assert "✓ Fits" in text and "without NCCL" in text
    by_rank = {row[table.columns.index("rank")]: row for row in table.rows}
    peak = table.columns.index("peak_bytes")
    assert {rank: row[peak] for rank, row in by_rank.items()} == {
        one["rank"]: one["peak_bytes"] for one in document["ranks"]
    }


async def test_a_world_is_checked_as_it_is_typed(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.screen.query("#field-world"))
        box = app.screen.query_one("#field-world", Input)
        box.focus()
        box.value = "tp=3"
        await until(pilot, lambda: app.screen.query("#why-world"))
        why = app.screen.query_one("#why-world", Static)
        assert str(why.content) == "✗ tp=3: a divisor of heads=4"
        await until(pilot, lambda: app.screen.query_one("#start", Button).disabled)
        box.value = "tp"
        await until(pilot, lambda: "keys with a value each" in str(why.content))
        box.value = "dp=4,pp=2,microbatches=2"
        await until(pilot, lambda: not why.display)
        hint = app.screen.query_one("#hint", Static)
        await until(pilot, lambda: "8 ranks, 2 stages" in str(hint.content))


async def test_a_slim_screen_has_the_verdict_of_the_worst_rank(app: SysbenchApp) -> None:
    async with app.run_test(size=(44, 14)) as pilot:
        await until(pilot, lambda: app.screen.query("#field-world"))
        screen_of(app).form.fill(RunSpec(), ["timing"], card="h100", world="dp=2,data=ddp")
        view = app.screen.query_one("#what")
        await until(pilot, lambda: "✓ Fits" in str(view.border_subtitle))
        assert str(view.border_subtitle).endswith("of 79.6 GiB")


def test_a_pasted_world_fills_the_row() -> None:
    pasted = read_command("sysbench-tui estimate tiny --card h100 --world dp=8")
    assert (pasted.world, pasted.unknown) == ("dp=8", [])


async def test_a_text_wider_than_its_field_is_visible(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.screen.query("#field-world"))
        field = app.screen.query_one("#field-world", Input)
        field.focus()
        await pilot.press(*f"{WORLD},data=fsdp2", "tab")
        await pilot.pause()
        row = next(strip.text for strip in painted(app) if "world" in strip.text)
        assert "data=fsdp2" in row
