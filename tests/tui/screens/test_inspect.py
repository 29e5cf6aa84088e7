"""The Inspect screen: decoding in view, cancelled, refused, and the tabs of a result."""

from __future__ import annotations

import os
import pickle
import shlex
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from textual.pilot import Pilot
from textual.widgets import Input, ProgressBar, Static

from sysbench.core.export.exports import write_export
from sysbench.core.inspection.decoding import Decoding
from sysbench.core.inspection.entries import recent_files
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.kernel_tables import group_by_name
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.ask_dialog import EXPLANATIONS
from sysbench.tui.screens.inspect_screen import InspectScreen
from sysbench.tui.screens.kernels_tab import KernelsTab, NsysTab
from sysbench.tui.screens.memory_tab import MemoryTab
from sysbench.tui.screens.result_screen import ResultScreen
from sysbench.tui.screens.summary_tab import FindingsTab
from sysbench.tui.widgets.choice import complete_path
from sysbench.tui.widgets.table_view import TableView
from tests.tui.conftest import WAIT_SECONDS, until

RESULT_FIRST = True

EVENT = '{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 5}'


def long_trace(folder: Path) -> Path:
    """Takes seconds to decode."""
    path = folder / "long.json"
    path.write_text(f"[{','.join([EVENT] * 300_000)}]")
    return path


async def opened(pilot: Pilot[None], app: SysbenchApp, path: Path) -> InspectScreen:
    """Name a file on the screen, with the keyboard alone."""
    await pilot.press("f7")
    await until(pilot, lambda: isinstance(app.screen, InspectScreen) and app.screen.is_mounted)
    screen = app.screen
    assert isinstance(screen, InspectScreen)
    box = screen.query_one("#file", Input)
    await until(pilot, lambda: box.has_focus)
    box.value = str(path)
    await pilot.press("enter")
    await pilot.pause()
    return screen


def decoders_of(path: Path) -> list[psutil.Process]:
    """Processes that decode a file; tests before this one may have left children of theirs."""
    return [child for child in psutil.Process().children() if str(path) in arguments_of(child)]


def decoder_of(path: Path) -> psutil.Process:
    (child,) = decoders_of(path)
    return child


@contextmanager
def slowed_decoder(path: Path) -> Iterator[None]:
    """Let the decoder of a file run a tenth of the time, so that it is still there when the
    screen of a busy machine is painted."""
    over = threading.Event()

    def throttle() -> None:
        found: list[psutil.Process] = []
        while not over.wait(0.02):
            found = found or decoders_of(path)
            for child in found:
                with suppress(psutil.Error):
                    child.suspend()
                    over.wait(0.18)
                    child.resume()

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def arguments_of(process: psutil.Process) -> list[str]:
    """None if it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def ended(process: psutil.Process) -> bool:
    """Whether it runs no more, or is about to end."""
    gone, _ = psutil.wait_procs([process], timeout=WAIT_SECONDS)
    return bool(gone)


def text_of(screen: InspectScreen, name: str) -> str:
    widget = screen.query_one(name)
    return str(widget.content if isinstance(widget, Static) else widget.render()) * widget.display


async def test_a_trace_opens_as_the_kernels_of_a_result(
    app: SysbenchApp, tiny_run: RunDirectory
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, app, tiny_run.trace_path)
        await until(pilot, lambda: isinstance(screen.tab, FindingsTab))
        assert "chrome trace" in text_of(screen, "#heading")
        assert screen.bar.names == ("findings", "kernels", "timeline")
        assert "traced step" in text_of(screen, "#overview")
        await pilot.press("2")
        await until(pilot, lambda: isinstance(screen.tab, KernelsTab))
        tab = screen.tab
        assert isinstance(tab, KernelsTab)
        kernels = tiny_run.record().kernels
        assert kernels is not None
        rows = group_by_name(kernels).rows
        table = tab.table
        assert len(table.matching) == len(rows) + len(kernels.idle) + 1
        await until(pilot, lambda: table.has_focus)
        assert screen.command().endswith(f"inspect {shlex.quote(str(tiny_run.trace_path))}")


async def test_the_bundle_of_a_run_opens_as_its_result(
    app: SysbenchApp, tiny_run: RunDirectory, tmp_path: Path
) -> None:
    (bundle,) = write_export(tiny_run, "bundle", tmp_path / "sent.zip")
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot, app, bundle)
        await until(pilot, lambda: isinstance(app.screen, ResultScreen))
        screen = app.screen
        assert isinstance(screen, ResultScreen)
        await until(pilot, lambda: screen.record is not None)
        assert screen.record is not None
        assert screen.record.id == tiny_run.id
        assert {"timing", "kernels", "memory"} <= {*screen.bar.names}


async def test_another_file_follows(
    app: SysbenchApp, tiny_run: RunDirectory, tmp_path: Path
) -> None:
    event = {"action": "alloc", "addr": 4096, "size": 2**20, "time_us": 1, "frames": []}
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[event]]}))
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await opened(pilot, app, tiny_run.trace_path)
        await until(pilot, lambda: screen.tab)
        await pilot.press("o")
        box = screen.query_one("#file", Input)
        assert box.display and box.has_focus
        await pilot.press("escape")
        assert not box.display
        await pilot.press("o")
        box.value = str(path)
        await pilot.press("enter")
        await until(pilot, lambda: screen.bar.names == ("findings", "memory") and screen.tab)
        await until(pilot, lambda: screen.bar.active == "findings" and not box.has_focus)
        await pilot.press("2")
        await until(pilot, lambda: isinstance(screen.tab, MemoryTab))
        # Only runs can be held against each other.
        assert "against" not in [one.binding.action for one in screen.active_bindings.values()]


async def test_a_snapshot_names_its_device_and_a_state_has_no_empty_timeline(
    app: SysbenchApp, tmp_path: Path
) -> None:
    blocks = [
        {"address": at * 2**20, "size": 2**20, "requested_size": 2**20, "state": "active_allocated"}
        for at in range(1, 4)
    ]
    segment = {"device": 3, "address": 2**20, "total_size": 2**23, "blocks": blocks}
    event = {"action": "alloc", "addr": 4096, "size": 2**10, "time_us": 1, "frames": []}
    path = tmp_path / "state.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[event]]}))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, app, path)
        await until(pilot, lambda: screen.bar.names == ("findings", "memory") and screen.tab)
        words = app.export_screenshot().replace("&#160;", " ")
        assert "other device: 0 (1.00 KiB)" in words
        assert "3.00 MiB allocated on device 3" in words
        await pilot.press("2")
        await until(pilot, lambda: isinstance(screen.tab, MemoryTab))
        tab = screen.tab
        assert isinstance(tab, MemoryTab)
        head = str(tab.query_one(".head", Static).content)
        assert head.startswith("3.00 MiB allocated on device 3 when the snapshot was taken")
        assert "peak is unknown" in head
        assert not tab.query_one("#upper").display and tab.query_one("#tables").display


async def test_an_export_has_a_tab_of_what_only_nsys_knows(
    app: SysbenchApp, nsys_export: Path
) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await opened(pilot, app, nsys_export)
        await until(pilot, lambda: screen.tab)
        assert screen.bar.names == ("findings", "kernels", "nsys", "timeline")
        await pilot.press("3")
        await until(pilot, lambda: screen.bar.active == "nsys")
        tab = screen.tab
        assert isinstance(tab, NsysTab)
        await until(pilot, lambda: tab.table.has_focus)
        assert tab.subject().startswith("[bold]forward · projected ms")
        await pilot.press("slash", *"absent", "enter")
        assert tab.table.row_count == 0
        await pilot.press("escape")
        assert tab.table.row_count == 1
        seen = []
        for _ in tab.views:
            await pilot.press("w")
            seen.append(tab.view)
        assert set(seen) == tab.views.keys()
        assert set(screen.explanations()) <= EXPLANATIONS.keys()


async def test_every_view_of_a_foreign_trace_can_be_shown(
    app: SysbenchApp, tiny_run: RunDirectory
) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await opened(pilot, app, tiny_run.trace_path)
        await until(pilot, lambda: screen.tab)
        await pilot.press("2")
        await until(pilot, lambda: isinstance(screen.tab, KernelsTab))
        tab = screen.tab
        assert isinstance(tab, KernelsTab)
        seen = [tab.view]
        await pilot.press("v")
        while tab.view != seen[0]:
            seen.append(tab.view)
            await pilot.press("v")
        # Its spec is not known: no answers. torch annotates the optimizer's step.
        assert seen == ["table", "tree", "annotations", "roofline"]
        await until(pilot, lambda: tab.detailed is not None)
        assert tab.tree_view.row_count


async def test_escape_ends_the_decoding_and_its_process(app: SysbenchApp, tmp_path: Path) -> None:
    path = long_trace(tmp_path)
    with slowed_decoder(path):
        async with app.run_test(size=(80, 24)) as pilot:
            screen = await opened(pilot, app, path)
            bar = screen.query_one(ProgressBar)
            await until(pilot, lambda: bar.total is not None)
            assert screen.query_one("#decoding").display
            assert "esc cancels" in text_of(screen, "#stage")
            child = decoder_of(path)
            await pilot.press("escape")
            await until(pilot, lambda: not child.is_running())
            await until(pilot, lambda: "cancelled" in text_of(screen, "#message"))
            assert screen.query_one("#file", Input).value == str(path)


async def test_the_rows_of_an_export_fill_the_bar(app: SysbenchApp, nsys_export: Path) -> None:
    with closing(sqlite3.connect(nsys_export)) as database:
        database.execute(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 1000000) "
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT i, i + 1, 1, i, 1 FROM n"
        )
        database.commit()
    with slowed_decoder(nsys_export):
        async with app.run_test(size=(80, 24)) as pilot:
            screen = await opened(pilot, app, nsys_export)
            bar = screen.query_one(ProgressBar)
            await until(pilot, lambda: bar.total is not None)
            assert "reading rows" in text_of(screen, "#stage")
            assert "of 1,000,004 · esc cancels" in text_of(screen, "#stage")
            await pilot.press("escape")
            assert "cancelled" in text_of(screen, "#message")


async def test_leaving_the_app_ends_the_decoding(app: SysbenchApp, tmp_path: Path) -> None:
    path = long_trace(tmp_path)
    with slowed_decoder(path):
        async with app.run_test(size=(80, 24)) as pilot:
            screen = await opened(pilot, app, path)
            bar = screen.query_one(ProgressBar)
            await until(pilot, lambda: bar.total is not None)
            child = decoder_of(path)
    assert ended(child)


async def test_a_damaged_file_says_so_on_the_screen(app: SysbenchApp, tmp_path: Path) -> None:
    path = tmp_path / "[bold]torn.json"
    path.write_text('{"traceEvents": [{"ph": "X"')
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, app, path)
        await until(pilot, lambda: "✗" in text_of(screen, "#message"))
        assert "[bold]torn.json is not a valid chrome trace" in text_of(screen, "#message")
        assert screen.tab is None and not screen.query_one("#decoding").display
        screen.query_one("#file", Input).value = str(tmp_path / "absent")
        await pilot.press("enter")
        await until(pilot, lambda: "No such file" in text_of(screen, "#message"))


def test_paths_are_completed(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "trace.json").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / os.fsdecode(b"odd\xff")).touch()
    base = f"{tmp_path}/"
    assert complete_path(f"{base}tr") == f"{base}trace.json"
    assert complete_path(f"{base}traces") == f"{base}traces/"
    assert complete_path(f"{base}.h") == f"{base}.hidden"
    for text in ("", base, f"{base}odd", f"{base}absent/x", "~nobody-there/x", "\0/x"):
        assert complete_path(text) is None


def trace_with_steps(folder: Path) -> Path:
    """A kernel in each of three steps."""
    place = '"ph": "X", "pid": 1, "tid": 1'
    events = [
        f'{{{place}, "cat": "user_annotation", "name": "ProfilerStep#{n}", "ts": {at}, "dur": 90}},'
        f'{{{place}, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": {at}, "dur": 2, '
        f'"args": {{"correlation": {n}}}}},'
        f'{{{place}, "cat": "kernel", "name": "kernel_{n}", "ts": {at + 5}, "dur": 80, '
        f'"args": {{"correlation": {n}, "device": 0}}}}'
        for n, at in ((1, 100), (2, 200), (3, 300))
    ]
    path = folder / "my steps.json"
    path.write_text(f"[{','.join(events)}]")
    return path


async def test_findings_come_first_and_a_key_chooses_steps(
    app: SysbenchApp, tmp_path: Path
) -> None:
    path = trace_with_steps(tmp_path)
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await opened(pilot, app, path)
        await until(pilot, lambda: screen.tab)
        assert isinstance(screen.tab, FindingsTab)
        await until(pilot, lambda: "launch" in text_of(screen, "#overview"))
        found = text_of(screen, "#overview")
        assert "The GPU is idle for 14 % of the span, mostly waiting for the CPU" in found
        assert "Of 0.28 ms: waiting for the CPU to launch 0.03 ms" in found
        await pilot.press("2")
        await until(pilot, lambda: isinstance(screen.tab, KernelsTab))
        tab = screen.tab
        assert isinstance(tab, KernelsTab)
        assert [*tab.views][2:-1] == ["steps", "annotations", "api"]
        tab.turn_to("steps")
        assert tab.active.row_count == 4
        box = screen.query_one("#file", Input)
        await pilot.press("t")
        await until(pilot, lambda: box.has_focus and box.value.endswith("--steps="))
        await pilot.press("2", "-", "3", "enter")
        await until(pilot, lambda: screen.tab is not None and screen.tab is not tab)
        record = screen.record
        assert record is not None and record.kernels is not None
        assert [row.name for row in record.kernels.rows] == ["kernel_2", "kernel_3"]
        assert screen.command().endswith("--steps=2-3")
        await pilot.press("t")
        await until(pilot, lambda: box.has_focus and box.value.endswith("--steps="))
        await pilot.press("9", "enter")
        await until(pilot, lambda: "no step 9" in text_of(screen, "#message"))


async def test_the_empty_screen_lists_recent_files_and_those_of_a_folder(
    app: SysbenchApp, tiny_run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    trace = here / "jobs" / "one.json.gz"
    trace.parent.mkdir(parents=True)
    trace.write_bytes(tiny_run.trace_path.read_bytes())
    (here / "settings.json").write_text('{"a": 1}')
    monkeypatch.chdir(here)
    decoding = Decoding(trace)
    decoding.run(lambda step: None)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("f7")
        await until(pilot, lambda: isinstance(app.screen, InspectScreen))
        screen = app.screen
        assert isinstance(screen, InspectScreen)
        recent, folder = (screen.query_one(name, TableView) for name in ("#recent", "#folder"))
        await until(pilot, lambda: recent.row_count == 1 and folder.row_count == 2)
        assert recent.table is not None and recent.table.column("file") == [trace.name]
        assert folder.table is not None and folder.table.column("file") == ["../", "jobs/"]

        await pilot.press("down")
        assert recent.has_focus
        folder.focus()
        await pilot.press("down", "enter")
        await until(pilot, lambda: folder.row_count == 2 and "jobs" in str(folder.border_title))
        await pilot.press("down", "enter")
        await until(pilot, lambda: screen.tab is not None)
        assert screen.command().endswith(shlex.quote(str(trace)))

    # The list lacks files that are gone.
    trace.unlink()
    assert recent_files() == []
