"""The Machine screen: at each size, with each number of GPUs, and its place beside Live."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from sysbench.core.machine.sample import MachineState
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.app import SysbenchApp
from sysbench.tui.live.machine_watch import MachineWatch
from sysbench.tui.screens import machine_screen
from sysbench.tui.screens.machine_screen import MachineScreen, gpu_panel, host_lines, panel_height
from tests.factories import host_state, machine_state
from tests.tui.conftest import painted, until


class CannedWatch(MachineWatch):
    """Delivers what a test gives it; reads nothing."""

    def start(self) -> None:
        """Start nothing."""

    def give(self, state: MachineState) -> None:
        self._newest.append(state)


@pytest.fixture(autouse=True)
def canned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_screen, "MachineWatch", CannedWatch)


def lines(app: SysbenchApp) -> list[str]:
    return [strip.text for strip in painted(app)]


async def open_machine(pilot: Pilot[None], app: SysbenchApp, state: MachineState) -> MachineScreen:
    await pilot.press("f3")
    await until(pilot, lambda: isinstance(app.screen, MachineScreen))
    screen = app.screen
    assert isinstance(screen, MachineScreen)
    await show(pilot, screen, state)
    return screen


async def show(pilot: Pilot[None], screen: MachineScreen, state: MachineState) -> None:
    assert isinstance(screen.reading, CannedWatch)
    screen.reading.give(state)
    screen.paint()
    await pilot.pause()
    await pilot.pause()


async def test_f3_without_a_run_shows_gpus_processes_and_host(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_machine(pilot, app, machine_state(8))
        shown = lines(app)
        gpus = [line for line in shown if "17.0/79.0 GiB" in line or "10.0/79.0 GiB" in line]
        assert len(gpus) == 2 and all("612/700 W" in line and "power cap" in line for line in gpus)
        row = next(line for line in shown if "train.py" in line)
        assert "4211" in row and "9.00 GiB" in row and "1.50" in row
        assert any("50 % of 4 cores" in line and "load 1.50" in line for line in shown)
        assert any("temporary n/a: Permission denied" in line for line in shown)
        assert screen.command() == "sysbench-tui top"
        await pilot.press("f3")
        await pilot.pause()
        assert app.screen is screen  # there is no run to go to


async def test_the_same_gpus_at_other_sizes_and_their_loss(app: SysbenchApp) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await open_machine(pilot, app, machine_state(2))
        assert sum("SM 37 %" in line for line in lines(app)) == 2  # the second line of each
        assert any("H100 80GB HBM3" in line and "software thermal" in line for line in lines(app))
        await pilot.resize_terminal(44, 14)
        await pilot.pause()
        assert any("4211" in line for line in lines(app))
        await pilot.resize_terminal(120, 40)
        await show(pilot, screen, machine_state(2, lost=1))
        await until(pilot, lambda: any("stopped answering" in line for line in lines(app)))


async def test_without_a_gpu_the_busiest_processes_are_first(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_machine(pilot, app, machine_state(0))
        assert any("no NVIDIA driver" in line for line in lines(app))
        assert [row[0] for row in screen.table.table.rows] == [77, 78, 79]  # type: ignore[union-attr]
        await pilot.press("down")
        await show(pilot, screen, machine_state(1))
        selected = screen.table.selected
        assert selected is not None and screen.subject() == "sshd"  # another row, the same process


async def test_f3_changes_between_the_run_and_the_machine(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.follow(own_run)
        await until(pilot, lambda: app.current_mode == "live")
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(app.screen, MachineScreen))
        screen = app.screen
        await until(pilot, lambda: any(own_run.id in line for line in lines(app)))
        await pilot.press("f3")
        await until(pilot, lambda: app.current_mode == "live")
        await pilot.press("f9")
        await until(pilot, lambda: app.screen is screen)


async def test_top_stays_at_the_machine_if_a_run_is_found(own_run: RunDirectory) -> None:
    app = SysbenchApp(mode="machine")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, MachineScreen))
        await until(pilot, lambda: app.shown is not None and app.shown.id == own_run.id)
        assert app.current_mode == "machine"


async def test_what_cannot_be_read_is_reported_once(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_machine(pilot, app, machine_state(1))
        screen.reading.error = OSError("no /proc")
        screen.paint()
        screen.paint()
        await pilot.pause()
        texts = [note.message for note in app._notifications]
        assert texts == ["The machine cannot be read: no /proc"]


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("width", [40, 76, 116, 156])
def test_lines_of_gpus_fit_and_are_aligned(count: int, width: int) -> None:
    state = machine_state(count)
    height = panel_height(state, 30)
    drawn = str(gpu_panel(state, {}, width, height)).split("\n")
    assert len(drawn) == height == 2 * count
    if width > 70:
        assert max(map(len, drawn)) <= width
        assert len({line.index("GiB") for line in drawn[::2]}) == 1


@pytest.mark.parametrize(("free", "height"), [(16, 16), (15, 8), (8, 8), (7, 1), (0, 1)])
def test_gpus_take_the_lines_that_are_free(free: int, height: int) -> None:
    state = machine_state(8)
    assert panel_height(state, free) == height
    assert len(str(gpu_panel(state, {}, 76, height)).split("\n")) == height


def test_unknown_shares_have_no_bar() -> None:
    unknown, known = (str(host_lines(host_state(cpu=cpu), 80)[0]) for cpu in (None, 0.0))
    assert "░" not in unknown and "n/a" in unknown
    assert "░" in known


def test_a_watch_reads_until_it_is_stopped(sysbench_home: object) -> None:
    watch = MachineWatch()
    watch.start()
    seen = wait_for(watch.latest)
    watch.stop()
    assert seen.host.cpu is not None and seen.processes and watch.error is None


def wait_for(read: Callable[[], MachineState | None]) -> MachineState:
    while (state := read()) is None:
        time.sleep(0.01)
    return state
