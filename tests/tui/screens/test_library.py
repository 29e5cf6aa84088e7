"""The library: filter, open, mark two, compare."""

from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from textual.widgets import Input, Static

from sysbench.core.analysis.compare import compare
from sysbench.core.runs.directory import RunDirectory
from sysbench.core.runs.library import Entry, entry_of
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.library.screen import LibraryScreen, comparison
from sysbench.tui.screens.result.screen import ResultScreen

from ... import factories
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
    ci_low_ms=99.0,
    ci_high_ms=101.0,
    half_width=0.01,
    peak_bytes=2**30,
    passes=["timing"],
)


def text_of(a: Entry, b: Entry) -> str:
    return "\n".join(str(line) for line in comparison(a, b))


def timed(entry: Entry, low: float, median: float, high: float) -> Entry:
    half_width = (high - low) / 2 / median
    return msgspec.structs.replace(
        entry, median_ms=median, ci_low_ms=low, ci_high_ms=high, half_width=half_width
    )


def test_overlapping_wide_intervals_decide_nothing() -> None:
    wide = timed(ENTRY, 97.0, 100.0, 104.0)
    text = text_of(wide, timed(ENTRY, 99.0, 101.0, 103.0))
    assert "not decidable" in text and "overlap" in text


def test_narrow_overlapping_intervals_are_the_same() -> None:
    assert "the same" in text_of(timed(ENTRY, 99.5, 100, 100.5), timed(ENTRY, 100, 100.2, 101))


def test_a_real_difference_has_a_direction_and_its_factors() -> None:
    other = msgspec.structs.replace(timed(ENTRY, 79.0, 80.0, 81.0), id="b", precision="bf16")
    text = text_of(ENTRY, other)
    assert "▼ faster" in text and "-20.0 %" in text
    assert "precision: fp32 → bf16" in text
    assert "▲ slower" in text_of(other, ENTRY)


WORDS = {"FASTER": "faster", "SLOWER": "slower", "SAME": "the same", "AMBIGUOUS": "not decidable"}
MEDIANS = st.tuples(*[st.floats(0.1, 1e4)] * 3).map(sorted)


# Symmetric half widths would overlap here; the intervals themselves do not.
@example([97.0, 100.0, 100.5], [101.0, 102.0, 103.0])
@given(MEDIANS, MEDIANS)
def test_the_panel_gives_the_verdict_of_the_command(a: list[float], b: list[float]) -> None:
    runs = [
        factories.record(timing=factories.timing(factories.spread(median, low, high)))
        for low, median, high in (a, b)
    ]
    first, second = (entry_of(run) for run in runs)
    assert f"{WORDS[compare(*runs).verdict]}: " in text_of(first, second)


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
