"""The tabs of a result: what they show, sort and filter, and why they may be blank."""

from __future__ import annotations

import msgspec
import pytest
from textual.screen import Screen
from textual.widgets import Input, Log, Static

from sysbench.core.formatting import milliseconds
from sysbench.core.record.record import Finding, PassRecord
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.ask_dialog import ExplainScreen, NotesScreen
from sysbench.tui.screens.kernels_tab import KernelsTab
from sysbench.tui.screens.memory_tab import MemoryTab, cursor_text
from sysbench.tui.screens.result_views import USUAL_TABS
from sysbench.tui.screens.summary_tab import machine_facts, passes
from sysbench.tui.screens.timing_tab import headline_of
from sysbench.tui.widgets.drawing import Folding
from sysbench.tui.widgets.stack_bar import StackBar
from sysbench.tui.widgets.table_view import TableView
from sysbench.tui.widgets.timeline import TimelineView, steps_window
from tests import factories
from tests.tui.conftest import CannedSampler, is_shown, open_result, open_tab, until

RESULT_FIRST = True


def shown(table: TableView, column: str) -> list[str]:
    """The texts of one visible column, top to bottom."""
    at = table.columns_in_view.index(column)
    return [str(table.get_row_at(row)[at]) for row in range(table.row_count)]


def numbers(table: TableView, column: str) -> list[float]:
    """The values behind one column of the visible rows, top to bottom."""
    assert table.table is not None
    values = table.table.column(column)
    return [float(values[row] or 0) for row in table.matching]


async def test_the_summary_begins_with_the_answer(app: SysbenchApp, own_run: RunDirectory) -> None:
    async with app.run_test(size=(100, 40)) as pilot:
        tab = await open_tab(pilot, app, own_run, "summary")
        record = tab.record
        assert record.timing is not None
        lines = str(tab.query_one("#overview", Folding).render()).splitlines()
        assert lines[0].startswith(f"{milliseconds(record.timing.step.median_ms)} ")
        assert "tokens/s" in lines[0]
        text = "\n".join(lines)
        assert text.index("backward") < text.index("blocks.*.") < text.index("memory  ")
        assert tab.copyable() is not None
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, NotesScreen))
        assert "system os" in str(app.screen.query_one("#text", Folding).render())


async def test_a_key_opens_what_disturbed_measuring(
    app: SysbenchApp, own_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = Finding("not-settled", "warning", "Noisy: ±9 %.", "few steps", "Free the machine.")
    record = msgspec.structs.replace(own_run.record(), findings=[noisy])
    monkeypatch.setattr("sysbench.tui.screens.result_screen.load_record", lambda run: record)
    async with app.run_test(size=(80, 24)) as pilot:
        tab = await open_tab(pilot, app, own_run, "summary")
        text = str(tab.query_one("#overview", Folding).render())
        assert "! 1 warning: noisy (w)" in text
        assert "few steps" not in text
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, NotesScreen))
        assert "few steps" in str(app.screen.query_one("#text", Folding).render())


async def test_a_tab_that_is_shown_again_is_laid_out_once(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    layouts: list[Screen[object]] = []
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await open_result(pilot, app, own_run)

        async def show(number: int, name: str) -> None:
            layouts.clear()
            await pilot.press(str(number))
            await until(pilot, lambda: is_shown(screen, name))
            await pilot.pause()
            await pilot.pause()

        tabs = list(enumerate(USUAL_TABS[:4], 1))
        for number, name in tabs:
            await show(number, name)
        screen.screen_layout_refresh_signal.subscribe(screen, layouts.append)
        for number, name in tabs:
            await show(number, name)
            assert len(layouts) == 1, name


async def test_kernels_add_up_sort_filter_and_turn_phases(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        tab = await open_tab(pilot, app, own_run, "kernels")
        assert isinstance(tab, KernelsTab)
        table, kernels = tab.table, tab.record.kernels
        assert kernels is not None
        parts = tab.query_one(StackBar).parts
        assert sum(part.amount for part in parts) == pytest.approx(kernels.step_ms * 1e6, rel=0.01)
        assert {"idle", "unattributed"} <= {part.name for part in parts}

        await pilot.press("g")  # one row for each module that runs a kernel
        await pilot.pause()
        everything = len(kernels.rows) + len(kernels.idle) + 1
        assert len(table.matching) == everything

        times = numbers(table, "exclusive_ns")
        assert times == sorted(times, reverse=True)
        await pilot.press("S")
        await pilot.pause()
        times = numbers(table, "exclusive_ns")
        assert times == sorted(times)
        await pilot.press("s", "down", "enter")
        await until(pilot, lambda: table.sort_column == "share")

        await pilot.press("slash", *"gemm backward")
        await pilot.pause()
        gemms = [r for r in kernels.rows if r.category == "gemm" and r.phase == "backward"]
        assert table.row_count == len(gemms) > 0
        assert {text[2:] for text in shown(table, "category")} == {"gemm"}
        await pilot.press("escape")
        await pilot.pause()
        assert len(table.matching) == everything

        await pilot.press("p")
        await pilot.pause()
        assert len(set(shown(table, "phase"))) == 1


async def test_a_row_is_shown_in_full_explained_and_copied(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    async with app.run_test(size=(200, 50)) as pilot:
        tab = await open_tab(pilot, app, own_run, "kernels")
        assert isinstance(tab, KernelsTab)
        wide = tab.table.columns_in_view
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        narrow = tab.table.columns_in_view
        assert len(narrow) < len(wide)
        assert [name for name in wide if name in narrow] == narrow
        assert "name" in narrow

        await pilot.press("down")
        await pilot.pause()
        index = tab.table.selected
        assert index is not None and tab.table.table is not None
        at = tab.table.table.columns.index("name")
        name = str(tab.table.table.rows[index][at])
        assert name in str(tab.query_one("#detail", Static).content)
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, ExplainScreen)
        text = str(app.screen.query_one("#text", Folding).render())
        assert text.startswith(name[:20]) and "traced steps" in text

        await pilot.press("escape", "slash", *"softmax", "enter", "y")
        await pilot.pause()
        lines = app.clipboard.splitlines()
        assert lines[0].startswith("| time ms")
        assert len(lines) - 2 == tab.query_one(TableView).row_count
        assert all("softmax" in line for line in lines[2:])


async def test_names_with_markup_and_escapes_are_literal(
    app: SysbenchApp, gpu_run: RunDirectory
) -> None:
    record = gpu_run.record()
    assert record.kernels is not None
    hostile = ["triton_poi_fused_[/gelu]_0", "[/]", "[type=x, v={'a[0]'}]", "\x1b[2J\u202ename"]
    rows = [
        msgspec.structs.replace(record.kernels.rows[0], name=name, module=name, op=name)
        for name in hostile
    ]
    kernels = msgspec.structs.replace(record.kernels, rows=rows)
    gpu_run.write_record(msgspec.structs.replace(record, kernels=kernels))
    gpu_run.log_path("timing").parent.mkdir()
    gpu_run.log_path("timing").write_text("[/] \x1b[31m[bold]\n")
    async with app.run_test(size=(160, 48)) as pilot:
        tab = await open_tab(pilot, app, gpu_run, "kernels")
        assert isinstance(tab, KernelsTab)
        names = shown(tab.table, "name")
        assert set(hostile[:3]) <= set(names)
        assert all(name.isprintable() for name in names)
        for _ in names:
            await pilot.press("down")
            await pilot.pause()
            assert str(tab.query_one("#detail", Static).content).isprintable()
        for name in USUAL_TABS:
            await open_tab(pilot, app, gpu_run, name)
        await pilot.press("7")
        await pilot.pause()
        assert app.screen.query_one(Log).lines[0].startswith("[/] ")


async def test_empty_logs_come_last(app: SysbenchApp, own_run: RunDirectory) -> None:
    for name, text in {"timing": "", "trace": "disk full\n", "memory": "warning\n"}.items():
        own_run.log_path(name).write_text(text)
    async with app.run_test(size=(160, 48)) as pilot:
        tab = await open_tab(pilot, app, own_run, "log")
        log = tab.query_one(Log)
        assert (str(log.border_title), log.lines[0]) == ("trace log", "disk full")
        await pilot.press("w")
        assert (str(log.border_title), log.lines[0]) == ("memory log", "warning")


async def test_the_memory_cursor_lists_live_categories_and_is_zoomed_around(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        tab = await open_tab(pilot, app, own_run, "memory")
        assert isinstance(tab, MemoryTab)
        view = tab.query_one(TimelineView)
        await until(pilot, lambda: app.focused is view)
        at_peak = str(tab.query_one("#at-cursor", Static).content)
        assert "parameters" in at_peak and "activations" in at_peak
        await pilot.press("home")
        await pilot.pause()
        assert view.sample <= view.peak
        assert str(tab.query_one("#at-cursor", Static).content) != at_peak
        await pilot.press("k")
        await pilot.pause()
        assert str(tab.query_one("#at-cursor", Static).content) == at_peak
        live = sum(values[view.sample] for values in view.timeline.categories.values())
        assert live == view.timeline.live_bytes[view.sample]
        assert "live" in str(cursor_text(view, view.sample, 30))

        times, whole = view.timeline.t_ms, view.window
        assert whole == steps_window(view.timeline)
        for zoomed in range(1, 4):
            await pilot.press("+")
            begin, end = view.window
            assert end - begin == pytest.approx((whole[1] - whole[0]) / 2**zoomed)
            assert begin <= times[view.peak] <= end
            assert view.sample == view.peak
        # The cursor takes the window along, sample by sample where they are far apart.
        await pilot.press("home")
        assert view.sample == 0
        assert view.window[0] == times[0]
        steps = 0
        while view.sample < len(times) - 1:
            before = view.sample
            await pilot.press("shift+right")
            assert view.sample > before
            assert view.window[0] <= times[view.sample] <= view.window[1]
            steps += 1
        assert steps > 1
        await pilot.press("k", *3 * ["-"])
        assert view.window == whole
        assert view.sample == view.peak


async def test_memory_tables_turn(app: SysbenchApp, own_run: RunDirectory) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        tab = await open_tab(pilot, app, own_run, "memory")
        assert isinstance(tab, MemoryTab)
        await pilot.press("w")
        seen = []
        for _ in range(len(tab.views) - 1):  # all but the timeline
            seen.append(tab.table.id)
            assert [table.id for table in tab.query(TableView) if table.display] == [seen[-1]]
            await pilot.press("w")
            await pilot.pause()
        assert len(set(seen)) == len(tab.views) - 1
        await pilot.resize_terminal(160, 48)
        await pilot.pause()
        both = [table.id for table in tab.query(TableView) if table.display]
        assert both[0] == "view-ledger" and len(both) == 2


async def test_a_tab_without_data_says_why(app: SysbenchApp, gpu_run: RunDirectory) -> None:
    names = ("timing", "kernels", "memory", "telemetry")
    record = gpu_run.record()
    passes = [
        PassRecord(one.name, "oom", "asked 512 MiB in backward", 1.0) for one in record.passes
    ]
    blank = dict.fromkeys(names)
    gpu_run.write_record(msgspec.structs.replace(record, passes=passes, status="oom", **blank))
    async with app.run_test(size=(80, 24)) as pilot:
        for name in names:
            found = await open_tab(pilot, app, gpu_run, name)
            assert found.block is None
            text = str(found.query_one(".blank", Static).content)
            assert "out of memory" in text and "asked 512 MiB" in text
            assert text.endswith("Press a to rerun.")
            for key in ("slash", "p", "w", "s", "y", "question_mark", "escape"):
                await pilot.press(key)
            await pilot.pause()


async def test_a_part_too_short_for_a_sample_says_so(
    app: SysbenchApp, gpu_run: RunDirectory
) -> None:
    record = gpu_run.record()
    assert record.telemetry is not None
    short = msgspec.structs.replace(record.telemetry, series={})
    gpu_run.write_record(msgspec.structs.replace(record, telemetry=short))
    async with app.run_test(size=(80, 24)) as pilot:
        tab = await open_tab(pilot, app, gpu_run, "telemetry")
        text = " ".join(str(part.content) for part in tab.query(Static))
        assert "No sample in the measured part" in text
        assert not tab.query(TableView) and tab.copyable() is None


async def test_again_fills_the_form_with_the_spec(own_run: RunDirectory) -> None:
    app = SysbenchApp(CannedSampler())
    async with app.run_test(size=(100, 40)) as pilot:
        await open_tab(pilot, app, own_run, "summary")
        await pilot.press("a")
        await until(pilot, lambda: app.current_mode == "run")
        await pilot.pause()
        assert app.screen.query_one("#field-steps", Input).value == "12"


def test_the_machine_of_a_gpu_run_begins_with_the_gpu(gpu_run: RunDirectory) -> None:
    names = [name for name, _ in machine_facts(gpu_run.record())]
    assert names[0] == "device name"
    assert "cpu model" in names


def test_the_machine_is_in_words(own_run: RunDirectory) -> None:
    facts = dict(machine_facts(own_run.record()))
    assert facts["memory capacity"].endswith("GiB")
    assert facts["cpu threads allowed"].isdigit()


def test_the_head_of_timing_gives_up_whole_facts() -> None:
    step = factories.spread(100.0, 98.0, 102.0, n=20)
    timing = factories.timing(step, stop_reason="the limit of 15 s was reached")
    spec = {"until": 0.05, "steps": 0}
    whole = str(headline_of(timing, spec, 200))
    assert whole == ("100.0 ms ±2 % of 20 steps in one process  ✓ within ±5 %  stopped at 15 s")
    narrow = str(headline_of(timing, spec, 40))
    assert narrow == "100.0 ms ±2 %  ✓ within ±5 %"
    assert "! not within ±1 %" in str(headline_of(timing, {"until": 0.01, "steps": 0}, 60))
    assert all(len(str(headline_of(timing, spec, width))) <= width for width in range(14, 90))


def test_a_pass_that_was_left_out_is_among_the_passes() -> None:
    why = "the trace pass was left out: the timing pass ran out of memory"
    record = factories.record(
        passes=[PassRecord("timing", "oom", "out of memory: 1 GiB asked for", 1.0)],
        missing={"kernels": why, "nsys": "this run has no nsys pass"},
    )
    rows = list(passes(record))
    assert rows[1:] == [("– trace", "left out: the timing pass ran out of memory")]
