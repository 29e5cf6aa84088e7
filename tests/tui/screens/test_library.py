"""The library: filter, open, mark two, compare."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Input, Static

from sysbench.core.compare.compared_records import verdict_of
from sysbench.core.compare.comparison import compare
from sysbench.core.compare.verdict import describe_verdict
from sysbench.core.experiments.baselines import save_baseline
from sysbench.core.export.exports import write_export
from sysbench.core.record.record import Record
from sysbench.core.runs.library import UNLABELLED, Entry, Label, entry_of
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import locked
from sysbench.tui.app import SysbenchApp
from sysbench.tui.commands.run_list import table_of
from sysbench.tui.run_text import age
from sysbench.tui.screens.ask_dialog import AskScreen
from sysbench.tui.screens.library_screen import REFRESH_TICKS, LibraryScreen
from sysbench.tui.screens.library_text import comparison, runs_table, step_time, usual_text
from sysbench.tui.screens.result_screen import ResultScreen, result_heading
from sysbench.tui.text import milliseconds
from sysbench.tui.widgets.drawing import Folding
from tests import factories
from tests.tui.conftest import until

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


async def test_a_filter_typed_before_the_runs_are_there_is_in_its_field(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        for key, character in (("f5", None), ("slash", "/"), ("b", "b"), ("f", "f")):
            app.post_message(Key(key, character))
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        await until(pilot, lambda: app.screen.query("#filter"))
        await until(pilot, lambda: app.screen.query_one("#filter", Input).value == "bf")
        assert app.focused is app.screen.query_one("#filter")


def text_of(a: Entry, b: Entry) -> str:
    return "\n".join(str(line) for line in comparison(a, b))


def measured(*medians_ms: float, **changes: object) -> Record:
    """A run of several processes, one median each."""
    return factories.record_of_rounds(medians_ms, RunSpec(device="cpu").changed(**changes))


def panel_of(a: Record, b: Record) -> str:
    lines = comparison(entry_of(a), entry_of(b), verdict_of(a, b))
    return "\n".join(str(line) for line in lines)


def test_a_step_time_of_rounds_says_so() -> None:
    assert step_time(ENTRY) == "100.0 ms ±1 %"
    of_rounds = msgspec.structs.replace(ENTRY, rounds=5)
    assert step_time(of_rounds) == "100.0 ms ±1 % of 5 rounds"
    assert "rounds" not in table_of([ENTRY]).columns
    assert table_of([ENTRY, of_rounds]).column("rounds") == [0, 5]


def test_one_process_a_side_decides_nothing() -> None:
    text = panel_of(measured(100.0), measured(50.0))
    assert "Inconclusive" in text and "1 run each" in text
    assert "faster" not in text and "sysbench-tui ab" in text
    assert "3 runs and 1" in panel_of(measured(100.0, 101.0, 99.0), measured(50.0))


def test_a_real_difference_has_a_direction_and_its_factors() -> None:
    a = measured(100.0, 101.0, 99.0, 100.5)
    b = measured(80.0, 81.0, 79.0, 80.5, precision="bf16")
    text = panel_of(a, b)
    assert "▼ B is faster" in text and "-20.0 %" in text
    assert "precision: fp32 → bf16" in text
    assert "▲ B is slower" in panel_of(b, a)


ROUNDS = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=6)


@given(ROUNDS, ROUNDS)
def test_the_panel_gives_the_verdict_of_the_command(a: list[float], b: list[float]) -> None:
    first, second = measured(*a), measured(*b)
    text = describe_verdict(compare(first, second).step)
    assert f"{text.glyph} {text.headline}" in panel_of(first, second)


def test_runs_without_a_median_are_compared_by_what_they_have() -> None:
    failed = msgspec.structs.replace(ENTRY, id="b", median_ms=None, peak_bytes=None)
    assert "n/a" in text_of(ENTRY, failed)


async def test_an_empty_library_says_what_to_do(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        await pilot.pause()
        assert "no runs yet" in str(app.screen.query_one("RunsTable").border_subtitle)
        await pilot.press("enter", "space", "slash", "escape")


async def test_a_tick_on_the_way_out_finds_no_widgets_and_ends_well(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        library = await opened(pilot, app, 0)
        app._running = False  # as the app does first when it shuts down
        await library.query("*").remove()
        for _ in range(REFRESH_TICKS):
            app._tick()


async def opened(pilot: Pilot[None], app: SysbenchApp, runs: int) -> LibraryScreen:
    """The Library after it has listed ``count`` runs."""
    await pilot.press("f5")
    await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
    library = app.screen
    assert isinstance(library, LibraryScreen)
    await until(pilot, lambda: len(library.entries) == runs)
    return library


async def test_filter_as_you_type_then_open(
    app: SysbenchApp, own_run: RunDirectory, gpu_run: RunDirectory
) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        library = await opened(pilot, app, 2)
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
        ages = [str(library.table.get_row_at(row)[0]) for row in (0, 1)]
        assert [text[0] for text in ages] == ["B", "A"], "the newer is judged against the older"

        wanted = library.selected
        assert wanted is not None
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ResultScreen))
        await until(pilot, lambda: app.shown is not None and app.shown.id == wanted.id)


async def test_a_run_is_named_deleted_and_brought_back(
    app: SysbenchApp, own_run: RunDirectory, gpu_run: RunDirectory
) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        library = await opened(pilot, app, 2)
        first = library.selected
        assert first is not None and not library.check_action("undo", ())
        await pilot.press("n")
        await until(pilot, lambda: app.screen is not library)
        await pilot.press(*"before", "enter")
        await until(pilot, lambda: app.screen is library)
        await until(pilot, lambda: "before" in str(library.table.get_row_at(0)[1]))

        await pilot.press("x")
        await until(pilot, lambda: len(library.entries) == 1)
        assert first.id not in [entry.id for entry in library.entries]
        assert library.selected is not None and library.check_action("undo", ())
        await pilot.press("u")
        await until(pilot, lambda: len(library.entries) == 2)
        assert library.selected is not None and library.selected.id == first.id
        assert library.selected.name == "before"

        # The one that is looked at stays so when another one comes or goes.
        await pilot.press("down", "s", "down", "enter")
        await pilot.pause()
        kept = library.selected
        (other,) = [entry.id for entry in library.entries if entry.id != kept.id]
        library._delete(other)
        assert library.selected is not None and library.selected.id == kept.id


async def test_a_run_in_use_is_deleted_only_after_a_question(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    save_baseline("main", own_run.record())
    async with app.run_test(size=(120, 30)) as pilot:
        library = await opened(pilot, app, 1)
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, AskScreen))
        assert "baseline main" in str(app.screen.query_one(Static).content)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is library)
        assert own_run.path.exists()
        with locked(own_run.lock_path):  # live
            library._reload()
            await pilot.press("x")
            await until(pilot, lambda: app.screen is not library)
            await pilot.press("x")
            await until(pilot, lambda: app._notifications)
        assert own_run.path.exists()


async def test_the_runs_at_80_columns_have_their_peak_and_state(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    record = own_run.record()
    failed = RunDirectory(own_run.path.with_name("20261121-120000-tiny-f001"))
    failed.path.mkdir()
    failed.write_record(msgspec.structs.replace(record, id=failed.id, status="oom", timing=None))
    async with app.run_test(size=(80, 24)) as pilot:
        library = await opened(pilot, app, 2)
        assert {"step time", "peak", "status"} <= {*library.table.columns_in_view}
        await pilot.resize_terminal(56, 24)  # too narrow for any age and step time
        await until(pilot, lambda: "status" not in library.table.columns_in_view)
        (row,) = [n for n, one in enumerate(library.entries) if one.id == failed.id]
        assert "out of memory" in " ".join(map(str, library.table.get_row_at(row)))


async def test_a_wide_library_previews_the_run_under_the_cursor(
    app: SysbenchApp, own_run: RunDirectory, gpu_run: RunDirectory
) -> None:
    async with app.run_test(size=(160, 40)) as pilot:
        library = await opened(pilot, app, 2)
        preview = library.query_one("#preview")

        def title_has(text: str) -> bool:
            return text in str(preview.border_title)

        for key in ("home", "down"):
            await pilot.press(key)
            assert library.selected is not None
            run = RunDirectory(own_run.path.with_name(library.selected.id))
            await until(pilot, partial(title_has, run.id))
            text = str(preview.query_one(Folding).render())
            timing = run.record().timing
            assert timing is not None and milliseconds(timing.step.median_ms) in text
            assert all(name in text for name in timing.phases)

        # Another size shows what a narrow screen did not read, and an unreadable run says so.
        await pilot.resize_terminal(100, 40)
        await until(pilot, lambda: not preview.display)
        await pilot.press("home")
        assert library.selected is not None
        gone = RunDirectory(own_run.path.with_name(library.selected.id))
        gone.path.rename(gone.path.with_name("gone"))
        await pilot.resize_terminal(160, 40)
        await until(pilot, lambda: gone.id in str(preview.query_one(Folding).render()))


def test_a_users_model_does_not_list_dimensions_that_it_does_not_have() -> None:
    zeros = {"d_model": 0, "d_ff": 0, "layers": 0, "heads": 0, "vocab": 0}
    own = msgspec.structs.replace(
        ENTRY,
        model="train.py:Net",
        attention="own",
        settings={**zeros, "workload": "own-model", "model_args": {"width": 64}},
    )
    (text, *_) = runs_table([own, ENTRY, ENTRY], []).column("spec")
    assert str(text).startswith("train.py:Net · model args")
    assert " 0" not in str(text) and "own" not in str(text)


def test_a_row_lists_only_settings_that_most_runs_do_not_share() -> None:
    compiled = msgspec.structs.replace(ENTRY, id="b", compile="default")
    limited = msgspec.structs.replace(ENTRY, id="c", settings={"memory_limit": 160 * 2**20})
    entries = [ENTRY, compiled, limited]
    assert runs_table(entries, []).column("spec") == [
        *("tiny", "tiny · compile default", "tiny · limit 160 MiB"),
    ]
    usual = "shared by most rows: B4 · ctx 128 · fp32 · naive · train · adamw-foreach · eager"
    assert usual_text(entries).startswith(usual)
    # A run that lacks a shared setting lists it.
    assert runs_table([ENTRY, limited, limited], []).column("spec") == [
        *("tiny · memory limit default", "tiny", "tiny"),
    ]
    # With two different runs no setting is shared by most; a single run is listed in full.
    assert runs_table([ENTRY, compiled], []).column("spec") == [
        *("tiny · eager", "tiny · compile default"),
    ]
    (alone,) = runs_table([limited], []).column("spec")
    assert str(alone).startswith("tiny · B4 · ctx 128") and str(alone).endswith("limit 160 MiB")
    assert usual_text([limited]) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "just now"), (60, "1 min ago"), (7199, "1 h ago"), (90_000, "1 d ago")],
)
def test_ages_are_counted_in_one_unit(
    seconds: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysbench.tui.run_text.now_ns", lambda: seconds * 10**9)
    assert age(0) == text
    assert age(10**9 * 10**6)[:4] == "1970"  # a clock that was set back


def test_a_state_has_one_word_on_screens_and_in_the_list() -> None:
    for status, word in (("oom", "out of memory"), ("cancelled", "stopped")):
        entry = msgspec.structs.replace(ENTRY, status=status)
        assert word in str(runs_table([entry], []).column("status"))
        assert table_of([entry]).column("status") == [word]


def test_a_result_is_headed_by_the_name_and_the_note_as_text() -> None:
    record = measured(1.0)
    assert "first\\x1b[2J" in str(result_heading(record, Label(name="first\x1b[2J"), 200))
    noted = Label(note="clocks locked")
    assert str(result_heading(record, noted, 200)).endswith("clocks locked")
    assert result_heading(record, noted, 60).cell_length <= 60
    assert str(result_heading(record, UNLABELLED, 200)).endswith(record.id)


async def test_a_bundle_in_the_folder_is_a_run_that_is_only_read(
    app: SysbenchApp,
    own_run: RunDirectory,
    gpu_run: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (sent,) = write_export(own_run, "bundle", tmp_path / "sent.zip")
    own_run.path.rename(tmp_path / "elsewhere")
    (tmp_path / "damaged.zip").write_bytes(sent.read_bytes()[:-30])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.zip")}
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        assert isinstance(app.screen, LibraryScreen)
        screen: LibraryScreen = app.screen
        await until(pilot, lambda: {one.id for one in screen.entries} == {own_run.id, gpu_run.id})
        await until(pilot, lambda: any("damaged" in one.message for one in app._notifications))
        entry = next(one for one in screen.entries if one.id == own_run.id)
        assert entry.note == "read-only: sent.zip"
        screen.table.move_cursor(row=screen.entries.index(entry))
        await until(pilot, lambda: screen.selected == entry)
        for key in ("x", "n", "m"):
            app.clear_notifications()
            await pilot.press(key)
            assert any("which is only read" in one.message for one in app._notifications)
            assert isinstance(app.screen, LibraryScreen)
        screen.marked = [own_run.id, gpu_run.id]
        assert len(screen.pair) == 2
        screen.action_compare()
        await until(pilot, lambda: app.compared)
        assert app.compared and {*app.compared.names} == {own_run.id, gpu_run.id}
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        await pilot.press("slash", *"sent")
        await until(pilot, lambda: [one.id for one in screen.entries] == [own_run.id])
        await pilot.press("enter", "enter")
        await until(pilot, lambda: isinstance(app.screen, ResultScreen))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.zip")} == before
