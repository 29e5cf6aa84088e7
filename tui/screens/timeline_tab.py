"""Timeline: streams, idle time, steps and phases over time."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import Static

from sysbench.core.errors import SysbenchError
from sysbench.core.inspection.inspection import Progressed, format_of
from sysbench.core.inspection.lanes_reading import LanesReading
from sysbench.core.record.record import Kernels
from sysbench.core.runs.library import Library
from sysbench.core.tables.cells import literal
from sysbench.core.tables.trust import steps_words
from sysbench.core.trace.lanes import Lanes
from sysbench.tui.keys import give_focus
from sysbench.tui.screens.compare_rows import NOT_TESTED
from sysbench.tui.screens.result_views import ResultTab
from sysbench.tui.text import decoding_text
from sysbench.tui.widgets.choice import path_box
from sysbench.tui.widgets.dialog import InputDialog
from sysbench.tui.widgets.lanes_view import LanesView


class LanesPanel(Container):
    DEFAULT_CSS = """
    LanesPanel {
        height: 1fr;
        layout: vertical;
        & > Static {
            height: auto;
            max-height: 3;
            padding: 0 1;
            text-overflow: ellipsis;
            color: $foreground 70%;
        }
        & > .note {
            height: 1;
            text-wrap: nowrap;
        }
    }
    """

    def __init__(self, readings: dict[str, LanesReading], note: str = "") -> None:
        super().__init__()
        self._readings = readings
        self._note = note
        self._wants_focus = False
        self.has_failed = False

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
            self.call_later(self._fail, str(error))
            return
        self.call_later(self._show, files)

    def _fail(self, reason: str) -> None:
        self.has_failed = True
        self._say(f"No timeline: {reason}")

    def _say(self, text: str) -> None:
        for line in self.query(Static):
            line.update(literal(text))

    async def _show(self, files: dict[str, Lanes]) -> None:
        notes = [note for lanes in files.values() for note in lanes.left_out]
        if not any(lanes.lanes for lanes in files.values()):
            self._fail(", ".join(notes) or "nothing ran")
            return
        await self.query(Static).remove()
        await self.mount(LanesView(files))
        words = [self._note] if self._note else []
        if notes:
            words.append(f"Not shown: {', '.join(notes)}.")
        if len(files) > 1:
            words.append(f"Times are of {NOT_TESTED}.")
        if words:
            await self.mount(Static(" ".join(words), classes="note", markup=False))
        is_shown = all(node.display for node in self.ancestors_with_self)
        if self._wants_focus and is_shown:
            self.start_focus()

    def start_focus(self) -> None:
        self._wants_focus = True
        for view in self.query(LanesView):
            give_focus(view)

    def in_full(self) -> str:
        return next((view.in_full() for view in self.query(LanesView)), "")


class TimelineTab(ResultTab[Kernels]):
    """The lanes of a run or an imported file; on request those of another one below."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "d", "beside", "Second file", id="timeline.second", tooltip="Show another one below it"
        )
    ]

    def content(self, block: Kernels) -> ComposeResult:
        steps = " · ".join(steps_words(self.record))
        yield LanesPanel(
            {self.record.id: LanesReading(self.run)}, f"Step: {steps}." if steps else ""
        )

    def start_focus(self) -> None:
        for panel in self.query(LanesPanel):
            panel.start_focus()

    def subject(self) -> str:
        return next((panel.in_full() for panel in self.query(LanesPanel)), "")

    def copyable(self) -> tuple[str, str] | None:
        text = self.subject()
        return ("the event at the cursor", text) if text else None

    def action_beside(self) -> None:
        if self.block is None:
            return
        box = path_box("a file, or the id of a run")
        title = "Show another timeline below this one"
        self.app.push_screen(InputDialog(title, "shows", box, self._show_below))

    def _show_below(self, text: str) -> str:
        path = Path(text).expanduser()
        if path.is_file():
            format_of(path)  # raises before the dialog closes
            name, other = path.name, LanesReading(path)
        else:
            name, other = text, LanesReading(Library().open(text))
        self.call_later(self._replace, {f"B {literal(name)}": other})
        return ""

    async def _replace(self, other: dict[str, LanesReading]) -> None:
        await self.query(LanesPanel).remove()
        own = {f"A {literal(self.record.id)}": LanesReading(self.run)}
        panel = LanesPanel(own | other)
        await self.mount(panel)
        panel.start_focus()
