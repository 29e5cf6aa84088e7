"""Two runs side by side: the verdict, the rows, an experiment followed from disk."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Button, Input

from sysbench.core.compare.comparison import Factor
from sysbench.core.compare.nodes import TimeNode
from sysbench.core.compare.verdict import GLYPHS, Verdict, describe_verdict
from sysbench.core.errors import SpecError
from sysbench.core.experiments.experiment import (
    Ending,
    ExperimentEnd,
    create_experiment,
    list_experiments,
)
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import locked
from sysbench.tui.app import SysbenchApp
from sysbench.tui.cli import main
from sysbench.tui.live.pair_watch import Pair, pair_of
from sysbench.tui.screens.ask_dialog import ExplainScreen
from sysbench.tui.screens.compare_measure import MeasureScreen, spec_of_side
from sysbench.tui.screens.compare_rows import DifferenceView, RowsView
from sysbench.tui.screens.compare_screen import CompareScreen
from sysbench.tui.screens.compare_text import STYLES, DiffersView, side_line, subject_line
from sysbench.tui.screens.compare_verdict import Painted
from sysbench.tui.screens.library_screen import LibraryScreen, RunsTable
from sysbench.tui.widgets.choice import complete_setting
from sysbench.tui.widgets.drawing import Folding
from sysbench.tui.widgets.key_bar import CommandLine
from tests import factories
from tests.tui.conftest import until
from tests.tui.experiments import (
    OTHER,
    SPEC,
    begun,
    disturb,
    timed_run,
    write_pairs,
    write_rounds,
)

RESULT_FIRST = True

SLOW, FAST = [10.0, 10.1, 9.9, 10.05, 10.02, 9.95], [8.0, 8.1, 7.9, 8.05, 8.02, 7.95]


async def compared(pilot: Pilot[None], app: SysbenchApp, pair: Pair) -> CompareScreen:
    """Open two runs; returns when they are judged."""
    app.open_comparison(pair)
    await until(pilot, lambda: isinstance(app.screen, CompareScreen))
    screen = app.screen
    assert isinstance(screen, CompareScreen)
    await until(pilot, lambda: screen.reading)
    await pilot.pause()
    return screen


def text_of(screen: CompareScreen, selector: str) -> str:
    return str(screen.query_one(selector).render())


def all_text(screen: CompareScreen) -> str:
    """The text of the whole verdict, the lines above the tabs included."""
    panels = [str(panel.content) for panel in screen.query(Painted)]
    return "\n".join(
        [*(text_of(screen, name) for name in ("#heading", "#sides", "#state")), *panels]
    )


async def show_rows(pilot: Pilot[None], screen: CompareScreen, key: str, name: str) -> RowsView:
    await pilot.press(key)
    rows = screen.query_one(f"#{name}", RowsView)
    await until(pilot, lambda: rows.display and rows.table.row_count)
    await until(pilot, lambda: screen.app.focused is rows.table)
    return rows


def names(table: DifferenceView) -> list[str]:
    return [str(table.get_row_at(row)[0]).strip(" ▾▸") for row in range(table.row_count)]


@pytest.mark.parametrize("keys", ["space down space", "down space up space"])
async def test_of_two_marked_runs_the_older_is_a(app: SysbenchApp, keys: str) -> None:
    older, newer = timed_run(*SLOW), timed_run(*FAST, attention="sdpa")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        library = app.screen
        assert isinstance(library, LibraryScreen)
        await until(pilot, lambda: len(library.entries) == 2)
        await pilot.press("c")
        assert app.current_mode == "library", "nothing is marked"
        await pilot.press(*keys.split())
        await until(pilot, lambda: len(library.pair) == 2)
        assert [entry.id for entry in library.pair] == [older.id, newer.id]
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen))
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        await until(pilot, lambda: screen.reading)
        assert "attention: naive → sdpa" in all_text(screen)
        assert "▼ B is faster" in all_text(screen)
        assert "between 6 processes" in all_text(screen)
        assert screen.command() == f"sysbench-tui compare {older.id} {newer.id}"


@pytest.mark.parametrize("sides", ["AB", "BA"])
@pytest.mark.parametrize("smallest", [0.01, 0.4])
async def test_an_experiment_has_the_verdict_of_compare_in_both_orders(
    app: SysbenchApp, capsys: pytest.CaptureFixture[str], sides: str, smallest: float
) -> None:
    directory = create_experiment(SPEC, OTHER, seed=1, smallest=smallest, method="blocks")
    write_rounds(directory, SLOW, FAST)
    a, b = (directory.run("A" if side == "A" else "B") for side in sides)
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await compared(pilot, app, Pair(a, b))
        assert screen.reading is not None and screen.reading.directory is not None
        assert screen.reading.directory.id == directory.id
        shown, reading = all_text(screen), screen.reading
    assert main(["compare", a.id, b.id, "--json"]) == 0
    step = json.loads(capsys.readouterr().out)["step"]
    word = "faster" if sides == "AB" else "slower"
    assert step["verdict"] == (word if smallest == 0.01 else "same")
    assert msgspec.to_builtins(reading.verdict) == step
    assert describe_verdict(reading.verdict).headline in shown
    medians = [row.median_ms for row in reading.rounds_a]
    assert medians == (SLOW if sides == "AB" else FAST)
    assert reading.report is not None
    assert (reading.report.a.run, reading.report.b.run) == (a.id, b.id)
    changes = [look.alone for look in reading.looks]
    assert all((change < 0) == (sides == "AB") for change in changes)


async def test_rows_that_come_late_get_the_focus(
    app: SysbenchApp, own_run: RunDirectory, gpu_run: RunDirectory
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        app.open_comparison(Pair(own_run, gpu_run))
        await until(pilot, lambda: app.screen.query("#time"))
        assert isinstance(app.screen, CompareScreen)
        rows = await show_rows(pilot, app.screen, "2", "time")
        await pilot.press("down")
        await until(pilot, lambda: rows.table.cursor_row == 1)


async def test_each_view_has_its_key_explains_itself_and_folds_its_columns(
    app: SysbenchApp, own_run: RunDirectory, gpu_run: RunDirectory
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await compared(pilot, app, Pair(own_run, gpu_run))
        assert "? Inconclusive" in all_text(screen)
        for key, name in (("2", "time"), ("3", "memory"), ("4", "differs"), ("1", "verdict")):
            await pilot.press(key)
            await pilot.pause()
            shown = [view.id for view in screen.query_one("#place").children if view.display]
            assert shown == [name] == [screen.bar.active]
            await pilot.press("question_mark")
            await until(pilot, lambda: isinstance(app.screen, ExplainScreen))
            assert len(str(app.screen.query_one("#text", Folding).render())) > 100
            await pilot.press("escape")
            await pilot.pause()
        factors = screen.query_one(DiffersView).table.table
        assert factors is not None and "precision" in factors.column("factor")

        rows = await show_rows(pilot, screen, "2", "time")
        await pilot.press("1")
        for key in ("2", "down", "down"):
            app.post_message(Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: rows.table.cursor_row == 2)

        for key, name in (("2", "time"), ("3", "memory")):
            table = (await show_rows(pilot, screen, key, name)).table
            widths = table.column_widths
            assert [name.partition("_")[0] for name in widths][:4] == ["name", "a", "b", "change"]
            assert widths["name"] >= 24
            assert "a_calls" not in widths and table.size.height >= 6
            await pilot.press("down")
            assert "/" in text_of(screen, f"#{name} #detail"), "the row is written out below"


async def test_rows_open_and_add_up_and_are_never_sorted(
    app: SysbenchApp, own_run: RunDirectory, gpu_run: RunDirectory
) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await compared(pilot, app, Pair(own_run, gpu_run))
        rows = await show_rows(pilot, screen, "2", "time")
        table = rows.table
        assert "not tested" in str(table.border_title)
        root = table.node
        assert root is not None and isinstance(root.node, TimeNode)
        assert root.node.change == sum(child.node.change for child in root.children)
        assert f"{root.node.change / 1e6:+,.3f} ms" in str(table.border_title)
        changes = [abs(child.node.change) for child in root.children]
        assert changes == sorted(changes, reverse=True)
        assert {"a_calls", "b_calls"} <= {*table.columns_in_view}

        closed = names(table)
        assert any(name.startswith("− gone") for name in closed)
        await pilot.press("down", "down", "right")
        assert len(names(table)) > len(closed)
        await pilot.press("left")
        await pilot.click(DifferenceView, offset=(40, 1))
        assert names(table) == closed, "a click on a heading sorts nothing"
        await pilot.press("y")
        assert app.clipboard.startswith("| name")

        await pilot.press("slash", *"gemm", "enter")
        await until(
            pilot,
            lambda: all("gemm" in branch.path or branch.children for _, branch in table._visible),
        )
        await pilot.press("escape")
        await until(pilot, lambda: names(table) == closed)


def test_only_a_difference_has_a_colour() -> None:
    assert {word for word, style in STYLES.items() if "$" in style} == {"faster", "slower"}
    assert len(set(GLYPHS.values())) == len(GLYPHS)


async def test_an_experiment_is_followed_from_disk(app: SysbenchApp) -> None:
    directory = begun()
    async with app.run_test(size=(120, 40)) as pilot:
        with locked(directory.lock_path):
            screen = await compared(pilot, app, pair_of(directory))
            assert "no block of four rounds is complete" in all_text(screen)
            assert "▼" not in all_text(screen)
            await until(pilot, lambda: "block 1, round 1 of 4" in text_of(screen, "#state"))
            assert screen.check_action("stop", ()) and not screen.check_action("measure", ())

            write_rounds(directory, SLOW[:2], FAST[:2])
            await until(pilot, lambda: "95 % CI unknown" in all_text(screen))
            assert "block 2, round 1 of 4" in text_of(screen, "#state")
            write_rounds(directory, SLOW, FAST)
            await until(pilot, lambda: "▼ B is faster" in all_text(screen))
            looks = [
                line
                for line in text_of(screen, "#change").splitlines()
                if re.match(r"^ +\d ", line)
            ]
            assert [line.split()[0] for line in looks] == ["1", "2", "3"]
            assert "◇" in looks[0] and "●" in looks[-1]
            assert "12 rounds" in str(screen.query_one("#rounds").border_title)
        reading = screen.reading
        assert reading is not None
        directory.write_end(
            ExperimentEnd(
                ending="decided",
                detail="decided after 3 blocks",
                verdict=reading.verdict,
                seconds=9,
            )
        )
        await until(pilot, lambda: "✓ A/B: decided after 3 blocks" in text_of(screen, "#state"))
        assert not screen.can_go_on
        assert screen.command().startswith("sysbench-tui ab ")

        # On a short screen the rounds stand under the change; a key shows how that settled.
        await pilot.resize_terminal(80, 24)
        rounds = screen.query_one("#rounds")
        await until(
            pilot, lambda: "L: after each block" in str(screen.query_one("#change").border_title)
        )
        await pilot.pause()
        assert screen.find_widget(rounds).visible_region == rounds.region
        assert "after N blocks" not in text_of(screen, "#change")
        await pilot.press("L")
        await pilot.pause()
        assert "after N blocks" in text_of(screen, "#change")
        assert "L: after" not in str(screen.query_one("#change").border_title)


async def test_pairs_are_followed_as_blocks_are(app: SysbenchApp) -> None:
    directory = create_experiment(SPEC, OTHER, seed=1)
    slow, fast = [10.0 + n % 3 / 10 for n in range(7)], [9.0 + n % 2 / 10 for n in range(7)]
    async with app.run_test(size=(160, 48)) as pilot:
        with locked(directory.lock_path):
            screen = await compared(pilot, app, pair_of(directory))
            assert "no pair of rounds is complete" in all_text(screen)
            write_pairs(directory, slow[:1], fast[:1])
            await until(pilot, lambda: "95 % CI unknown" in all_text(screen))
            assert "A and B in turns: pair 2" in text_of(screen, "#state")
            assert "the first look is after 7 pairs" in all_text(screen)
            write_pairs(directory, slow, fast)
            await until(pilot, lambda: "▼ B is faster" in all_text(screen))
            assert "after N pairs" in text_of(screen, "#change")
            assert "a pair" in str(screen.query_one("#change").border_subtitle)


@pytest.mark.parametrize("ending", ["out-of-time", "failed", "cancelled", None])
async def test_an_ending_without_a_verdict_can_go_on(
    app: SysbenchApp, ending: Ending | None
) -> None:
    directory = begun()
    write_rounds(directory, SLOW[:4], SLOW[1:5])
    disturb(directory.run("A"), 2, "python (7) came to the device")
    if ending:
        verdict = Verdict(verdict="not decidable", why="")
        directory.write_end(
            ExperimentEnd(ending=ending, detail="it stopped", verdict=verdict, seconds=1)
        )
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await compared(pilot, app, pair_of(directory))
        await until(pilot, lambda: "A/B" in text_of(screen, "#state"))
        assert ("it stopped" if ending else "killed") in text_of(screen, "#state")
        assert screen.can_go_on
        assert "1 excluded" in str(screen.query_one("#rounds").border_title)
        assert "a" in "".join(text_of(screen, "#rounds").splitlines()[:-1])
        assert "python (7) came" in text_of(screen, "#conditions")


async def test_the_limits_are_asked_for_first(app: SysbenchApp) -> None:
    timed_run(*SLOW)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        await until(pilot, lambda: app.screen.query_one(RunsTable).row_count)
        await pilot.press("b")
        await until(pilot, lambda: isinstance(app.screen, MeasureScreen))
        dialog = app.screen
        start = dialog.query_one("#start", Button)
        await until(pilot, lambda: start.disabled)
        await pilot.press(*"attention=s")
        await until(pilot, lambda: dialog.query_one("#changes", Input)._suggestion)
        await pilot.press("right")
        assert dialog.query_one("#changes", Input).value == "attention=sdpa"
        plan = dialog.query_one("#plan", Folding)
        await until(pilot, lambda: "processes that take turns" in str(plan.render()))
        assert not start.disabled
        assert "--set-b attention=sdpa" in dialog.query_one(CommandLine).command
        dialog.query_one("#minutes", Input).value = "soon"
        await until(pilot, lambda: start.disabled)
        await pilot.press("enter")
        assert app.screen is dialog and not list_experiments()
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))


async def test_an_experiment_is_started_and_stopped_by_keys(app: SysbenchApp) -> None:
    short: dict[str, object] = {"steps": 4, "warmup": 1, "batch": 1, "context": 16}
    pair = Pair(timed_run(1.0, **short), timed_run(1.0, **short, attention="sdpa"))
    async with app.run_test(size=(80, 24)) as pilot:
        await compared(pilot, app, pair)
        await pilot.press("b")
        await until(pilot, lambda: isinstance(app.screen, MeasureScreen))
        await pilot.press("enter")
        await until(pilot, lambda: app.compared is not None and app.compared != pair)
        (directory,) = list_experiments()
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        for key in ("", "g"):
            await pilot.press(*key)
            await until(pilot, lambda: "measuring" in text_of(screen, "#state"))
            await pilot.press("x")
            await pilot.pause()
            await pilot.press("s")
            await until(pilot, lambda: not directory.is_live())
            await until(pilot, lambda: "stopped after" in text_of(screen, "#state"))
            ended = directory.ended()
            assert ended is not None and ended.ending == "cancelled" and screen.can_go_on


async def test_another_experiment_waits_for_its_key(app: SysbenchApp) -> None:
    first, other = pair_of(begun()), pair_of(begun())
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await compared(pilot, app, first)
        app.compared = other
        await pilot.press("f1")
        await until(pilot, lambda: app.screen is not screen)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        await pilot.pause(0.1)
        assert screen.pair_watch is not None and screen.pair_watch.pair == first
        await pilot.press("f8")
        await until(pilot, lambda: screen.pair_watch and screen.pair_watch.pair == other)


async def test_a_live_experiment_is_found_at_the_start(sysbench_home: Path) -> None:
    directory = begun()
    app = SysbenchApp()
    with locked(directory.lock_path):
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, CompareScreen))
            assert app.compared is not None and app.compared.experiment_id == directory.id


def test_values_that_do_not_fit_are_not_cut_after_those_of_a() -> None:
    names = ("attention", "batch", "seed", "steps")
    changes = [Factor(name=name, a="naive", b="sdpa") for name in names]
    a = factories.record()
    one = changes[:1]
    assert str(subject_line(a, one, 80)).endswith("B has attention: naive → sdpa")
    assert str(subject_line(a, one, 44)).endswith("B differs in attention")
    assert str(subject_line(a, changes[:3], 44)).endswith("B differs in attention, batch, seed")
    assert str(subject_line(a, changes, 44)).endswith("in 4 settings")


def test_settings_are_completed_and_checked() -> None:
    assert complete_setting("comp") == "compile="
    assert complete_setting("batch=2 attention=s") == "batch=2 attention=sdpa"
    assert complete_setting("batch=") is None and complete_setting("no_such") is None
    assert spec_of_side(SPEC, "batch=2 precision=bf16") == SPEC.changed(batch=2, precision="bf16")
    for text in ("", "batch", "batch=many", "bathc=2"):
        with pytest.raises(SpecError):
            spec_of_side(SPEC, text)


def test_a_side_says_what_its_interval_is_of() -> None:
    several, one = timed_run(*SLOW).record(), timed_run(10.0).record()
    assert "between 6 processes" in str(side_line("A", several, 80))
    assert "inside 1 process" in str(side_line("B", one, 80))
    assert all(len(side_line("A", record, 80)) <= 78 for record in (several, one))
