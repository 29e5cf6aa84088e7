"""The library: filter, open, mark two, compare."""

from __future__ import annotations

import msgspec
from textual.widgets import Input, Static

from sysbench.core.runs.directory import RunDirectory
from sysbench.core.runs.library import Entry
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.library.screen import LibraryScreen, comparison
from sysbench.tui.screens.result.screen import ResultScreen

from ..conftest import until

RESULT_FIRST = True

ENTRY = Entry(
    id="a",
    created_ns=0,
    status="finished",
    identity="0",
    model="tiny",
    parameters=1,
    batch=4,
    context=128,
    precision="fp32",
    attention="naive",
    step="train",
    optimizer="adamw-foreach",
    compile="off",
    device="cpu",
    device_name="EPYC",
    median_ms=100.0,
    half_width=0.01,
    peak_bytes=2**30,
    passes=["timing"],
)


def text_of(a: Entry, b: Entry) -> str:
    return "\n".join(str(line) for line in comparison(a, b))


def test_a_difference_within_the_intervals_is_none() -> None:
    other = msgspec.structs.replace(ENTRY, id="b", median_ms=101.0)
    assert "no difference" in text_of(ENTRY, other)


def test_a_real_difference_has_a_direction_and_its_factors() -> None:
    other = msgspec.structs.replace(ENTRY, id="b", median_ms=80.0, precision="bf16")
    text = text_of(ENTRY, other)
    assert "▼ faster" in text and "-20.0 %" in text
    assert "precision: fp32 → bf16" in text
    assert "▲ slower" in text_of(other, ENTRY)


def test_runs_without_a_median_are_compared_by_what_they_have() -> None:
    failed = msgspec.structs.replace(ENTRY, id="b", median_ms=None, peak_bytes=None)
    assert "n/a" in text_of(ENTRY, failed)


async def test_an_empty_library_says_what_to_do(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        await pilot.pause()
        assert "none yet" in str(app.screen.query_one("RunsTable").border_subtitle)
        await pilot.press("enter", "space", "slash", "escape")


async def test_filter_as_you_type_then_open(
    app: SysbenchApp, own_run: RunDirectory, gpu_run: RunDirectory
) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        library = app.screen
        assert isinstance(library, LibraryScreen)
        await until(pilot, lambda: len(library.entries) == 2)
        await pilot.press("slash", *"bf16 tiny")
        await until(pilot, lambda: [one.id for one in library.entries] == [gpu_run.id])
        await pilot.press(*"x")
        await until(pilot, lambda: not library.entries)
        await pilot.press("escape")
        await until(pilot, lambda: len(library.entries) == 2)
        assert library.query_one("#filter", Input).value == ""

        await pilot.press("space", "down", "space")
        await pilot.pause()
        panel = library.query_one("#comparison", Static)
        assert panel.display and "precision" in str(panel.content)
        assert "A " in str(library.table.get_row_at(0)[0])

        wanted = library.selected
        assert wanted is not None
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ResultScreen))
        await until(pilot, lambda: app.shown is not None and app.shown.id == wanted.id)
