"""Compare on the screen and from the shell: the same answer, in both orders."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from sysbench.core.experiments.experiment import create_experiment
from sysbench.core.inspection.compared_sides import ComparedSource
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.table import Row
from sysbench.tui.app import SysbenchApp
from sysbench.tui.cli import main
from sysbench.tui.live.pair_watch import Pair
from sysbench.tui.screens.compare_rows import RowsView
from sysbench.tui.screens.compare_screen import CompareScreen
from sysbench.tui.screens.compare_text import DiffersView, StepsView
from sysbench.tui.screens.compare_verdict import Words
from sysbench.tui.screens.inspect_screen import InspectScreen
from sysbench.tui.widgets.table_view import TableView
from tests.conftest import KERNELS, MEMORY
from tests.imported_files import write_snapshot, write_trace
from tests.tui.conftest import until
from tests.tui.experiments import OTHER, SPEC, timed_run, write_rounds

RESULT_FIRST = True
MIB = 2**20
SLOW, FAST = [10.0, 10.1, 9.9, 10.05, 10.02, 9.95], [8.0, 8.1, 7.9, 8.05, 8.02, 7.95]


def with_rows(run: RunDirectory, times: float) -> RunDirectory:
    """Give a run a traced step and a peak, each this many times as large."""
    rows = [
        msgspec.structs.replace(row, exclusive_ns=times * row.exclusive_ns) for row in KERNELS.rows
    ]
    kernels = msgspec.structs.replace(KERNELS, step_ms=times * KERNELS.step_ms, rows=rows)
    peak = round(times * MEMORY.peak_allocated_bytes)
    memory = msgspec.structs.replace(MEMORY, peak_allocated_bytes=peak)
    run.write_record(msgspec.structs.replace(run.record(), kernels=kernels, memory=memory))
    return run


def pairs(folder: Path) -> dict[str, tuple[ComparedSource, ComparedSource]]:
    """Two sides of each kind; the traced step of the runs changes against the untraced one."""
    experiment = create_experiment(SPEC, OTHER, seed=1, method="blocks")
    write_rounds(experiment, SLOW, FAST)
    a_steps, b_steps = [[("gemm", 90), ("softmax", 20)]] * 3, [[("gemm", 45)]] * 5
    snapshots = (
        [(60 * MIB, [("/w/model.py", 14, "f"), ("/w/run.py", line, "<module>")]), (more, [])]
        for line, more in ((21, MIB), (40, 3 * MIB))
    )
    a_snapshot, b_snapshot = (
        write_snapshot(folder / f"{name}.pickle", blocks)
        for name, blocks in zip("ab", snapshots, strict=True)
    )
    return {
        "runs": (
            with_rows(timed_run(*SLOW), 1.0),
            with_rows(timed_run(*FAST, attention="sdpa"), 1.5),
        ),
        "experiment": (
            with_rows(experiment.run("A"), 1.0),
            with_rows(experiment.run("B"), 0.5),
        ),
        "traces": (
            write_trace(folder / "a.json", a_steps),
            write_trace(folder / "b.json", b_steps),
        ),
        "snapshots": (a_snapshot, b_snapshot),
        "a run and a trace": (
            with_rows(timed_run(*SLOW, batch=2), 1.0),
            write_trace(folder / "c.json", b_steps),
        ),
    }


async def shown(pilot: Pilot[None], app: SysbenchApp, pair: Pair) -> CompareScreen:
    """Open a pair; returns when its rows are in view."""
    app.open_comparison(pair)
    await until(pilot, lambda: isinstance(app.screen, CompareScreen))
    screen = app.screen
    assert isinstance(screen, CompareScreen)
    await until(pilot, lambda: screen.pair_watch and screen.pair_watch.pair == pair)
    await until(pilot, lambda: screen.difference)
    await pilot.pause()
    return screen


def rows_of(view: TableView) -> Sequence[Row]:
    return view.table.rows if view.table else ()


def assert_equal(screen: CompareScreen, document: dict[str, Any], printed: str) -> None:
    """What is in view is what the shell says."""
    reading = screen.reading
    assert reading is not None
    difference = document["difference"]
    assert msgspec.to_builtins(reading.verdict) == document["step"]
    assert msgspec.to_builtins(screen.difference) == difference
    words = str(screen.query_one(Words).content)
    assert printed.splitlines()[3] in words, "the verdict is the fourth line of the report"
    sentences: list[str] = []
    for name in ("time", "memory"):
        view = screen.query_one(f"#{name}", RowsView)
        root = difference[name]
        assert view.table.display == (root is not None)
        sentences += [text for text in view.sentences if text in difference["summary"]]
        if root is not None:
            view.table.move_cursor(row=0)
            node = view.table.node
            assert node is not None
            assert msgspec.to_builtins(node.node) == root
    assert sentences == difference["summary"]
    factors = rows_of(screen.query_one(DiffersView).table)
    both = [*document["factors"], *document["procedure"]]
    assert [row[0] for row in factors] == [factor["name"] for factor in both]
    assert ("steps" in screen.bar.names) == bool(difference["steps"])
    if difference["steps"]:
        steps = rows_of(screen.query_one(StepsView).table)
        assert len(steps) == len(difference["steps"])


async def test_the_screen_and_the_shell_agree_in_both_orders(
    app: SysbenchApp,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    orders = [
        (kind, Pair(*sides))
        for kind, (a, b) in pairs(tmp_path).items()
        for sides in ((a, b), (b, a))
    ]
    unexplained: dict[str, list[str]] = {}
    answers = []
    for _, pair in orders:
        assert main(["compare", *pair.names, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert main(["compare", *pair.names]) == 0
        answers.append((document, capsys.readouterr().out))
    assert main(["compare", *orders[0][1].names, "-o", "shell.html"]) == 0
    async with app.run_test(size=(160, 48)) as pilot:
        for (kind, pair), answer in zip(orders, answers, strict=True):
            screen = await shown(pilot, app, pair)
            assert_equal(screen, *answer)
            unexplained.setdefault(kind, []).append(answer[0]["difference"]["unexplained"])
            if kind != "experiment":
                assert screen.command() == shlex.join(["sysbench-tui", "compare", *pair.names])
        pair = orders[0][1]
        await shown(pilot, app, pair)
        for name in ("", "-2"):
            written = tmp_path / f"compare-{'-'.join(pair.names)}{name}.html"
            await pilot.press("e")
            await until(pilot, written.exists)
            assert written.read_text() == (tmp_path / "shell.html").read_text()
    assert [text[:8] for text in unexplained.pop("runs")] == ["Traced +", "Traced -"]
    assert not any(text for texts in unexplained.values() for text in texts)


async def test_two_files_are_compared_from_inspect(app: SysbenchApp, tmp_path: Path) -> None:
    a, b = (write_trace(tmp_path / f"{name}.json", [[("gemm", 9)]] * 2) for name in "ab")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f7")
        await until(pilot, lambda: isinstance(app.screen, InspectScreen))
        inspect = app.screen
        assert isinstance(inspect, InspectScreen)
        assert not inspect.check_action("compare", ())
        await inspect.open(a)
        await until(pilot, lambda: inspect.tab)
        await pilot.press("c")
        await pilot.pause()
        await pilot.press(*"no", "enter")
        await pilot.pause()
        assert app.compared is None, "no run and no file has that name"
        await pilot.press("backspace", "backspace", *str(b), "enter")
        await until(pilot, lambda: app.compared == Pair(a, b))
        await until(pilot, lambda: isinstance(app.screen, CompareScreen))
