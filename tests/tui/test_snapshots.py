"""What each screen looks like at 80x24 and 160x48, on a frozen record of a real run.

`pytest tests/tui/test_snapshots.py --snapshot-update` renews the pictures; look at each.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from sysbench.core.compare.compared_records import verdict_of
from sysbench.core.experiments.experiment import ExperimentEnd
from sysbench.core.runs.library import Label, write_label
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.trace.lanes import LANES_FILE, encode_lanes, lanes_of
from sysbench.core.trace.scopes import STEPS_RANGE
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace
from sysbench.tui.app import SysbenchApp
from sysbench.tui.live.pair_watch import Pair, pair_of
from sysbench.tui.screens.compare_rows import RowsView
from sysbench.tui.screens.compare_screen import CompareScreen
from sysbench.tui.screens.machine_screen import MachineScreen
from sysbench.tui.screens.result_views import USUAL_TABS
from sysbench.tui.screens.run_screen import RunScreen
from sysbench.tui.widgets.drawing import Drawing
from sysbench.tui.widgets.lanes_view import LanesView
from tests.core.conftest import TraceWriter
from tests.factories import machine_state
from tests.tui.conftest import CannedSampler, open_tab, until
from tests.tui.experiments import begun, disturb, with_fixed_names, write_rounds

RESULT_FIRST = True

FROZEN = Path(__file__).parents[1] / "fixtures" / "tiny-cpu"
SIZES = [(80, 24), (160, 48)]
SPEC = RunSpec(
    model="cs336-2025/large",
    context=512,
    precision="bf16",
    device="cpu",
    memory_limit=24 * 2**30,
)

OOM = {"status": "oom", "timing": None}

Compare = Callable[..., bool]

at_both_sizes = pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")


@pytest.fixture
def frozen_run(sysbench_home: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """The frozen run in this test's home."""
    # The Export tab proposes a path in the current folder.
    monkeypatch.chdir("/")
    target = sysbench_home / "runs" / "20261121-120000-tiny-cpu0"
    shutil.copytree(FROZEN, target)
    return RunDirectory(target)


@at_both_sizes
def test_run_screen(
    snap_compare: Compare,
    sysbench_home: Path,
    size: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What a library takes goes by this machine's CPU; see `test_run_form`.
    monkeypatch.setattr("sysbench.tui.screens.run_device_prediction.cpu_flags", frozenset)
    app = SysbenchApp(CannedSampler())

    async def fill(pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        app.screen.form.fill(SPEC, ["timing", "memory"])
        await until(pilot, lambda: app.session.strip.latest)
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=fill)


def has_painted_all(app: SysbenchApp) -> bool:
    """Whether the Live screen has room for the last line of a run that is over."""
    watch, logs = app.watch_run, app.screen.query("#log").results(Drawing)
    last = list(watch.view.lines)[-1:] if watch and watch.over else []
    return bool(last) and any(str(log.render()).endswith(last[0]) for log in logs)


@at_both_sizes
def test_live_screen(
    snap_compare: Compare, app: SysbenchApp, frozen_run: RunDirectory, size: tuple[int, int]
) -> None:
    async def follow(pilot: Pilot[None]) -> None:
        app.follow(frozen_run)
        await until(pilot, lambda: app.session.strip.latest and has_painted_all(app))
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=follow)


def write_lanes(run: RunDirectory) -> None:
    """Write the timeline of two steps on a GPU with two streams."""
    writer = TraceWriter(run.path / "written.json")
    writer.op(f"{STEPS_RANGE}2", 0, 20_000)
    for begin in (0, 10_000):
        for place, phase in enumerate(("forward", "backward")):
            at = begin + 5_000 * place
            writer.op(f"phase:{phase}", at, 4_800)
            writer.op("aten::linear", at + 100, 1_500)
            writer.launch(at + 200, "ampere_sgemm_128x64_tn", at + 400, 1_800)
            copy = "Memcpy HtoD (Pageable -> Device)"
            writer.launch(at + 900, copy, at + 1_200, 300, stream=14, cat="gpu_memcpy")
            writer.op("aten::to", at + 2_300, 1_000)
            writer.launch(at + 3_100, "void softmax_warp_forward<float, 10>(int)", at + 3_400, 900)
    trace = read_trace(writer.write())
    folder = run.pass_folder("trace")
    folder.mkdir(exist_ok=True)
    (folder / LANES_FILE).write_bytes(encode_lanes(lanes_of(trace, time_ledger(trace))))


@pytest.mark.parametrize("tab", [tab for tab in USUAL_TABS if tab != "log"])
@at_both_sizes
def test_result_screen(
    snap_compare: Compare,
    app: SysbenchApp,
    frozen_run: RunDirectory,
    size: tuple[int, int],
    tab: str,
) -> None:
    write_lanes(frozen_run)

    async def show(pilot: Pilot[None]) -> None:
        await open_tab(pilot, app, frozen_run, tab)
        await until(pilot, lambda: app.session.strip.latest)
        if tab == "timeline":
            await until(pilot, lambda: app.screen.query(LanesView))
            await pilot.press("n", "n", "n")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=show)


@at_both_sizes
def test_library_screen(
    snap_compare: Compare,
    app: SysbenchApp,
    frozen_run: RunDirectory,
    size: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = frozen_run.record()
    made: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
        (9, {"compile": "default"}, {}),
        (50, {"batch": 8, "memory_limit": 160 * 2**20}, OOM),
    ]
    for minutes, settings, ended in made:
        run = RunDirectory(frozen_run.path.with_name(f"20261121-12{minutes:02}00-tiny-cpu1"))
        run.path.mkdir()
        created_ns = record.created_ns + minutes * 60 * 10**9
        changed = {"created_ns": created_ns, "spec": record.spec | settings, **ended}
        run.write_record(msgspec.structs.replace(record, **changed))
    write_label(frozen_run.path, Label(name="eager", note="the first of the day"))
    now_ns = record.created_ns + 100 * 60 * 10**9
    monkeypatch.setattr("sysbench.tui.run_text.now_ns", lambda: now_ns)

    async def show(pilot: Pilot[None]) -> None:
        await pilot.press("f5")
        await until(pilot, lambda: app.session.strip.latest and app.screen.query("RunsTable"))
        preview = app.screen.query_one("#preview")
        await until(pilot, lambda: bool(preview.border_title) == preview.display)
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=show)


@pytest.mark.parametrize("view", ["verdict", "time"])
@at_both_sizes
def test_compare_screen(
    snap_compare: Compare,
    app: SysbenchApp,
    frozen_run: RunDirectory,
    size: tuple[int, int],
    view: str,
) -> None:
    async def show(pilot: Pilot[None]) -> None:
        app.open_comparison(experiment_pair() if view == "verdict" else changed_pair(frozen_run))
        await until(pilot, lambda: app.screen.query("#state"))
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        await until(pilot, lambda: screen.reading and app.session.strip.latest)
        if view == "time":
            await pilot.press("2")
            await until(pilot, lambda: screen.query_one("#time", RowsView).table.row_count)
            await pilot.press("down", "down", "right")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=show)


def experiment_pair() -> Pair:
    """An experiment of ten blocks, one of whose rounds was excluded."""
    directory = begun()
    noise = [0.0, 0.021, -0.012, 0.008, -0.017, 0.011, 0.004, -0.008, 0.015, -0.003] * 2
    a = [10.0 * (1 + share) for share in noise]
    b = [9.66 * (1 + share) for share in reversed(noise)]
    write_rounds(directory, a, b)
    disturb(directory.run("B"), 4, "other processes took 61 % of the cores, usually 3 %")
    moved = with_fixed_names(directory)
    verdict = verdict_of(moved.run("A").record(), moved.run("B").record())
    moved.write_end(
        ExperimentEnd(
            ending="out-of-time", detail="another block would exceed 15 minutes", verdict=verdict
        )
    )
    return pair_of(moved)


def changed_pair(run: RunDirectory) -> Pair:
    """The frozen run, and one whose operators took another time, one of them under a new name."""
    other = RunDirectory(run.path.with_name("20261121-120500-tiny-cpu1"))
    shutil.copytree(run.path, other.path)
    record = run.record()
    kernels = record.kernels
    assert kernels is not None
    rows = [
        msgspec.structs.replace(
            row,
            name=row.name.replace("aten::mul", "aten::fused_mul"),
            exclusive_ns=row.exclusive_ns * (0.5 + place % 7 / 10),
        )
        for place, row in enumerate(kernels.rows)
    ]
    gained = sum(row.exclusive_ns for row in kernels.rows) - sum(row.exclusive_ns for row in rows)
    step_ms = kernels.step_ms - gained / 1e6
    changed = msgspec.structs.replace(kernels, rows=rows, step_ms=step_ms, perturbation=1.02)
    spec = record.spec | {"attention": "sdpa"}
    other.write_record(msgspec.structs.replace(record, id=other.id, spec=spec, kernels=changed))
    run.write_record(
        msgspec.structs.replace(record, kernels=msgspec.structs.replace(kernels, perturbation=1.03))
    )
    return Pair(run, other)


@at_both_sizes
@pytest.mark.parametrize("gpus", [0, 8])
def test_machine_screen(
    snap_compare: Compare,
    frozen_run: RunDirectory,
    size: tuple[int, int],
    gpus: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sysbench.tui.live.machine_watch.MachineWatch.start", lambda watch: None)
    app = SysbenchApp(CannedSampler(), mode="machine")

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: isinstance(app.screen, MachineScreen))
        screen = app.screen
        assert isinstance(screen, MachineScreen)
        screen.show(machine_state(gpus))
        await until(pilot, lambda: screen.last and app.session.strip.latest)
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=look)
