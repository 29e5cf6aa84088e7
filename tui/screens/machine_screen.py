"""Machine: GPUs, processes and the host now, and what ran beside the last run."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import ClassVar

from textual import getters, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Resize, ScreenResume

from sysbench.core.errors import SysbenchError
from sysbench.core.machine.sample import GpuProcess, MachineState, ProcessState
from sysbench.core.tables.machine_tables import (
    command_words,
    gpu_processes_table,
    processes_table,
)
from sysbench.tui.live.machine_watch import LastRun, MachineWatch, last_run
from sysbench.tui.screens.machine_text import (
    PAST,
    gpu_panel,
    host_lines,
    last_run_lines,
    panel_height,
)
from sysbench.tui.screens.work_screen import WorkScreen
from sysbench.tui.widgets.drawing import Drawing, Folding, wrap_lines
from sysbench.tui.widgets.key_bar import CommandLine
from sysbench.tui.widgets.table_view import TableView

MIN_OTHER_LINES = 14
"""Lines of strip, host, processes, last run and keys that the GPUs leave free."""


class MachineScreen(WorkScreen):
    """Reads the machine every two seconds while it is in view, every five during a run."""

    CSS_PATH = "machine_screen.tcss"
    BINDING_GROUP_TITLE = "Machine"
    BINDINGS: ClassVar[list[BindingType]] = []

    table = getters.query_one(TableView)

    def __init__(self) -> None:
        super().__init__()
        self.reading = MachineWatch()
        self.state: MachineState | None = None
        self.last: LastRun | None = None
        self._shown: list[ProcessState] = []
        self._history: defaultdict[int, deque[float | None]] = defaultdict(
            lambda: deque(maxlen=PAST)
        )

    def body(self) -> ComposeResult:
        with Vertical(id="gpus", classes="panel") as gpus:
            gpus.border_title = "GPUs"
            yield Drawing(lambda width, height: Content("reading the machine …"))
        yield Drawing(id="host")
        yield TableView(title="Processes")
        yield Folding(id="last-run")
        yield CommandLine(self.command())

    def on_screen_resume(self, event: ScreenResume) -> None:
        self.reading.start()
        self._read_last_run()
        self.paint()

    def on_screen_suspend(self) -> None:
        self.reading.stop()

    def on_unmount(self) -> None:
        self.reading.stop()

    def on_resize(self, event: Resize) -> None:
        if self.state is not None:
            self._show_gpus(self.state)

    @work(thread=True, group="machine.last", exclusive=True)
    def _read_last_run(self) -> None:
        """Read the newest record in a thread, since it may be large."""
        try:
            last = last_run()
        except (SysbenchError, OSError) as error:
            text = f"Cannot read the last run: {error}"
            self.call_later(self.notify, text, severity="warning", markup=False)
        else:
            self.call_later(self._take_last_run, last)

    def _take_last_run(self, last: LastRun | None) -> None:
        if last is not None and last != self.last:
            self.last = last
            draw = wrap_lines(lambda width: last_run_lines(last.id, last.words, width))
            self.query_one("#last-run", Folding).show(draw)

    def paint(self) -> None:
        super().paint()
        if not self.is_current:
            return
        self.reading.is_live = self.app.session.live
        if (error := self.reading.error) is not None:
            self.reading.error = None
            text = f"The machine cannot be read: {error}"
            self.notify(text, severity="error", markup=False)
        state = self.reading.latest()
        if state is not None:
            self.show(state)

    def show(self, state: MachineState) -> None:
        self.state = state
        for gpu in state.gpus:
            self._history[gpu.sample.index].append(gpu.sample.utilization)
        self._show_gpus(state)
        self.query_one("#host", Drawing).show(
            lambda width, height: Content("\n").join(host_lines(state.host, width)[:height])
        )
        self._show_processes(state)

    def _show_gpus(self, state: MachineState) -> None:
        panel = self.query_one("#gpus")
        driver = f"driver {state.driver}, CUDA {state.cuda}" if state.driver else ""
        panel.border_subtitle = Content(driver)
        drawing = panel.query_one(Drawing)
        drawing.styles.height = panel_height(state, self.size.height - MIN_OTHER_LINES)
        drawing.show(lambda width, height: gpu_panel(state, self._history, width, height))

    def _show_processes(self, state: MachineState) -> None:
        selected = self.table.selected
        before = None if selected is None else _key(self._shown[selected])
        self._shown = [*state.gpu_processes, *state.processes]
        tabulate = gpu_processes_table if state.gpus else processes_table
        table = tabulate(self._shown)
        if self.table.table is not None and table.rows == self.table.table.rows:
            return
        place = next((n for n, each in enumerate(self._shown) if _key(each) == before), 0)
        self.table.show(
            table,
            sort=self.table.sort_column if self.table.sort_column in table.columns else "",
            descending=self.table.descending,
            select=place,
        )

    def command(self) -> str:
        return "sysbench-tui top"

    def copyable(self) -> tuple[str, str]:
        return "the processes as Markdown", self.table.markdown()

    def explanations(self) -> list[str]:
        return ["machine.gpu", "machine.processes", "machine.last_run"]

    def subject(self) -> str:
        place = self.table.selected
        return "" if place is None else command_words(self._shown[place])


def _key(process: ProcessState) -> tuple[int, int | None]:
    return process.pid, process.gpu if isinstance(process, GpuProcess) else None
