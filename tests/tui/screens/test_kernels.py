"""The views of the Kernels tab: the tree opens, closes and searches, the answers are there."""

from __future__ import annotations

from pathlib import Path

import msgspec
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Static

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.kernel_tables import kernel_table
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.kernels_tab import AnswersView, KernelsTab, row_text
from sysbench.tui.widgets.drawing import Folding
from sysbench.tui.widgets.key_bar import ViewBar
from sysbench.tui.widgets.outline_view import BAR, TreeView
from sysbench.tui.widgets.roofline_plot import RooflinePlot
from sysbench.tui.widgets.stack_bar import StackBar
from sysbench.tui.widgets.table_view import KernelTable
from tests.tui.conftest import open_result, open_tab, until

RESULT_FIRST = True


async def open_kernels(pilot: Pilot[None], app: SysbenchApp, run: RunDirectory) -> KernelsTab:
    tab = await open_tab(pilot, app, run, "kernels")
    assert isinstance(tab, KernelsTab)
    return tab


async def open_tree(pilot: Pilot[None], app: SysbenchApp, run: RunDirectory) -> KernelsTab:
    tab = await open_kernels(pilot, app, run)
    await pilot.press("v")
    await until(pilot, lambda: tab.tree_view.row_count)
    await pilot.pause()
    return tab


def names(tree: TreeView) -> list[str]:
    """What the rows say, without their indentation and mark."""
    at = tree.columns_in_view.index("where")
    return [str(tree.get_row_at(row)[at]).strip(" ▾▸") for row in range(tree.row_count)]


def badge(tab: KernelsTab) -> str:
    return str(tab.query_one("#badge", Static).content)


async def test_keys_that_come_before_a_tab_is_there_are_done_in_it(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_result(pilot, app, own_run)
        number = str(screen.bar.names.index("kernels") + 1)
        for key in (number, "v", "v"):
            app.post_message(Key(key, key))
        await until(pilot, lambda: isinstance(screen.tab, KernelsTab))
        assert isinstance(screen.tab, KernelsTab)
        tab = screen.tab
        await until(pilot, lambda: tab.view == "answers")
        assert app.screen is screen and screen.takes_keys


async def test_one_key_and_a_click_turn_the_views(app: SysbenchApp, own_run: RunDirectory) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        tab = await open_kernels(pilot, app, own_run)
        seen = []
        for _ in range(4):
            seen.append((tab.view, type(tab.active)))
            shown = [one for one in tab.query_one("#views").children if one.display]
            assert shown == [tab.active]
            await until(pilot, lambda: app.focused is tab.active)
            assert tab.active.size.height >= 6
            await pilot.press("v")
            await pilot.pause()
        assert seen == [
            ("table", KernelTable),
            ("tree", TreeView),
            ("answers", AnswersView),
            ("roofline", RooflinePlot),
        ]
        assert tab.view == "table"
        await pilot.click(ViewBar, offset=(11, 0))
        await until(pilot, lambda: tab.view == "tree")


def test_a_fused_row_says_what_it_is_made_of(gpu_run: RunDirectory) -> None:
    kernels = gpu_run.record().kernels
    assert kernels is not None
    fused = msgspec.structs.replace(kernels.rows[1], fused=True, ops=["mul", "[bold]silu"])
    table = kernel_table(msgspec.structs.replace(kernels, rows=[fused, kernels.rows[2]]))
    assert "fused from mul, [bold]silu" in row_text(table, 0, perturbed=False)
    assert "fused" not in row_text(table, 1, perturbed=False)


async def test_the_tree_opens_and_closes_by_keys(app: SysbenchApp, own_run: RunDirectory) -> None:
    # A higher screen has rows left, and unfolds the tree by itself.
    async with app.run_test(size=(120, 24)) as pilot:
        tab = await open_tree(pilot, app, own_run)
        tree = tab.tree_view
        closed = names(tree)
        assert closed[:2] == ["step", "model"]
        assert closed[-2:] == ["idle", "unattributed"]
        assert closed[2].startswith("blocks.0–1 (2×, ")
        await pilot.press("down", "down", "right")
        assert {"ffn", "attention"} <= set(names(tree))
        assert tree.node is not None and tree.node.kind == "layers"
        assert "blocks.0–1" in str(tab.query_one("#detail", Static).content)

        await pilot.press("right")
        assert tree.node.name in ("ffn", "attention")
        await pilot.press("left")
        assert tree.node.kind == "layers", "on a closed node: to its parent"
        await pilot.press("enter")
        assert names(tree) == closed
        await pilot.press("plus")
        opened = len(names(tree))
        await pilot.press("minus", "right")
        assert len(closed) < len(names(tree)) < opened
        times = [node.inclusive_ns for _, node in tree._visible if node.kind != "step"]
        assert all(ns <= tree._visible[0][1].inclusive_ns for ns in times)


async def test_the_tree_is_searched_and_split_by_phase_and_answers_have_their_command(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        tab = await open_tree(pilot, app, own_run)
        await pilot.press("slash", *"attention exp", "enter")
        await pilot.pause()
        found = names(tab.tree_view)
        assert "aten::exp" in found and "attention" in found
        assert not {"ffn", "head", "loss"} & set(found)
        await pilot.press("escape")
        await pilot.pause()
        assert "head" in names(tab.tree_view)
        await pilot.press("p")
        await pilot.pause()
        assert names(tab.tree_view)[0] == tab.phase
        assert "idle" not in names(tab.tree_view)
        await pilot.press("y")
        await pilot.pause()
        assert app.clipboard.splitlines()[0].startswith("| inclusive ms")

        await pilot.press("v")
        view = tab.query_one(AnswersView)
        await until(pilot, lambda: view.answers)
        await pilot.pause()
        text = str(view.query_one(Folding).render())
        assert "step=inference" in text.replace("\n", " ")
        for answer in view.answers:
            assert answer.sentence.split()[0] in text
        await pilot.press("y")
        await pilot.pause()
        assert view.answers[0].sentence[:20] in app.clipboard


async def test_too_little_explained_is_said_on_top(app: SysbenchApp, gpu_run: RunDirectory) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        tab = await open_kernels(pilot, app, gpu_run)
        warning = "5.0 % of the step follows launches"
        assert badge(tab).startswith(f"! {warning}")
        folded = tab.query_one(StackBar)
        total, bar = str(folded.render()).splitlines()
        assert total.startswith("traced step ") and f"! {warning}" in total
        assert "gemm" in bar  # the names are in the bar
        assert folded.region.y < tab.query_one(ViewBar).region.y
        assert tab.table.size.height >= 13


async def test_times_that_tracing_moved_are_marked_and_dim(
    app: SysbenchApp, gpu_run: RunDirectory
) -> None:
    record = gpu_run.record()
    assert record.kernels is not None
    async with app.run_test(size=(120, 40)) as pilot:
        for perturbation, moved in ((1.05, False), (1.2, True), (0.8, True)):
            kernels = msgspec.structs.replace(record.kernels, perturbation=perturbation)
            gpu_run.write_record(msgspec.structs.replace(record, kernels=kernels))
            tab = await open_tree(pilot, app, RunDirectory(gpu_run.path))
            for view in (tab.table, tab.tree_view):
                time, share, *_ = view.get_row_at(0)
                assert str(time).startswith("~") == moved
                assert ("dim" in str(time.style)) == moved
                assert "dim" not in str(share.style) and "~" not in str(share)


async def test_hostile_names_are_literal_in_the_tree(
    app: SysbenchApp, gpu_run: RunDirectory
) -> None:
    record = gpu_run.record()
    assert record.kernels is not None
    hostile = ["triton_poi_fused_[/gelu]_0", "[/]", "\x1b[2J"]
    rows = [
        msgspec.structs.replace(record.kernels.rows[0], name=name, module=f"m.{name}", op=name)
        for name in hostile
    ]
    kernels = msgspec.structs.replace(record.kernels, rows=rows)
    gpu_run.write_record(msgspec.structs.replace(record, kernels=kernels))
    async with app.run_test(size=(160, 48)) as pilot:
        tab = await open_tree(pilot, app, gpu_run)
        await pilot.press("plus")
        await pilot.pause()
        shown = names(tab.tree_view)
        assert set(hostile[:2]) <= set(shown)
        assert all(name.isprintable() for name in shown)
        for _ in shown:
            await pilot.press("down")
            await pilot.pause()
            assert str(tab.query_one("#detail", Static).content).isprintable()
        await pilot.press("v")
        await until(pilot, lambda: tab.query_one(AnswersView).answers)


async def test_damaged_rows_leave_the_folded_tree(app: SysbenchApp, own_run: RunDirectory) -> None:
    Path(own_run.pass_folder("trace") / "kernels.json").write_bytes(b"{")
    async with app.run_test(size=(120, 40)) as pilot:
        tab = await open_tree(pilot, app, own_run)
        assert any(name.startswith("blocks.*") for name in names(tab.tree_view))
        assert "kernels.json" in str(tab.tree_view.border_title)


async def test_a_high_tree_is_unfolded_until_the_user_arranges_it(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        tab = await open_kernels(pilot, app, own_run)
        table = tab.table
        await until(pilot, lambda: table.row_count)
        await pilot.pause()

        def share() -> str:
            return str(table.get_row_at(0)[table.columns_in_view.index("share")])

        # Shares of a wide table have bars.
        assert share().startswith("█") and len(share()) == table.column_widths["share"]
        await pilot.resize_terminal(100, 40)
        await until(pilot, lambda: not share().startswith("█"))
        assert "█" not in table.markdown()

        await pilot.resize_terminal(160, 48)
        tree = (await open_tree(pilot, app, own_run)).tree_view
        unfolded = tree.row_count
        assert "ffn" in names(tree) and unfolded <= tree.scrollable_content_region.height - 1
        assert 20 <= tree.column_widths[BAR] <= 30

        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: tree.row_count < unfolded)
        assert tree.column_widths[BAR] < 12
        await pilot.press("plus")
        arranged = tree.row_count
        assert arranged > unfolded
        await pilot.resize_terminal(160, 48)
        await until(pilot, lambda: tree.column_widths[BAR] >= 20)
        assert tree.row_count == arranged
