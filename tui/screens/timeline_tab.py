"""Timeline: streams, idle time, steps and phases over time."""

from __future__ import annotations

from textual import work
from textual.app import ComposeResult
from textual.containers import Container
from textual.widgets import Static

from sysbench.core.errors import SysbenchError
from sysbench.core.inspection.inspection import Progressed
from sysbench.core.inspection.lanes_reading import LanesReading
from sysbench.core.record.record import Kernels
from sysbench.core.tables.cells import literal
from sysbench.core.trace.lanes import Lanes
from sysbench.tui.keys import give_focus
from sysbench.tui.screens.result_views import ResultTab
from sysbench.tui.text import decoding_text
from sysbench.tui.widgets.lanes_view import LanesView


class LanesPanel(Container):
    """Reads the timelines of some runs in a thread, then shows them above each other."""

    DEFAULT_CSS = """
    LanesPanel {
        height: 1fr;
        & > Static { padding: 0 1; }
    }
    """

    def __init__(self, readings: dict[str, LanesReading], *, id: str | None = None) -> None:
        """Read by title."""
        super().__init__(id=id)
        self._readings = readings
        self._wants_focus = False

    def compose(self) -> ComposeResult:
        yield Static("reading the timeline", markup=False)

    def on_mount(self) -> None:
        self._read()

    def on_unmount(self) -> None:
        for reading in self._readings.values():
            reading.cancel()

    @work(thread=True)
    def _read(self) -> None:
        def show(step: Progressed) -> None:
            self.call_later(self._say, decoding_text(step))

        try:
            files = {title: reading.run(show) for title, reading in self._readings.items()}
        except (SysbenchError, OSError) as error:
            self.call_later(self._say, f"No timeline: {error}")
            return
        self.call_later(self._show, files)

    def _say(self, text: str) -> None:
        for line in self.query(Static):
            line.update(literal(text))

    async def _show(self, files: dict[str, Lanes]) -> None:
        notes = [note for lanes in files.values() for note in lanes.left_out]
        await self.query(Static).remove()
        await self.mount(LanesView(files))
        if notes:
            await self.mount(Static(f"Not shown: {', '.join(notes)}.", markup=False))
        if self._wants_focus:
            self.start_focus()

    def start_focus(self) -> None:
        """Focus the timeline, now or when it has been read."""
        self._wants_focus = True
        for view in self.query(LanesView):
            give_focus(view)

    def in_full(self) -> str:
        return next((view.in_full() for view in self.query(LanesView)), "")


class TimelineTab(ResultTab[Kernels]):
    """The lanes of a run or an imported file."""

    def content(self, block: Kernels) -> ComposeResult:
        yield LanesPanel({self.record.id: LanesReading(self.run)})

    def start_focus(self) -> None:
        for panel in self.query(LanesPanel):
            panel.start_focus()

    def subject(self) -> str:
        return next((panel.in_full() for panel in self.query(LanesPanel)), "")

    def copyable(self) -> tuple[str, str] | None:
        text = self.subject()
        return ("the event at the cursor", text) if text else None
