"""Result: the record of one run, tab by tab."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import PurePath
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content

from sysbench.core.errors import SysbenchError
from sysbench.core.record.record import Record
from sysbench.core.runs.library import Label, label_known
from sysbench.core.runs.run_directory import load_record
from sysbench.core.spec.own_model import is_job
from sysbench.core.tables.cells import literal
from sysbench.tui.screens.result_views import STYLES, TABS, USUAL_TABS, Tab, TabbedScreen
from sysbench.tui.screens.run_screen import RunScreen
from sysbench.tui.text import day_and_time, fitted_headline, outcome_glyph, outcome_text, truncate
from sysbench.tui.widgets.dialog import report_errors
from sysbench.tui.widgets.drawing import Drawing
from sysbench.tui.widgets.key_bar import CommandLine, TabBar, tab_bindings


class ResultScreen(TabbedScreen):
    AREA = "result"
    CSS_PATH: ClassVar[list[str | PurePath]] = [*STYLES]
    AUTO_FOCUS = ""
    BINDING_GROUP_TITLE = "Result"
    BINDINGS: ClassVar[list[BindingType]] = [
        *tab_bindings("result", "tab", {name: tab.about for name, tab in TABS.items()}),
        Binding("e", "tab('export')", "Export", show=False, id="result.take", tooltip="Artifacts"),
        Binding(
            "a",
            "again",
            "Edit and rerun",
            show=False,
            id="result.again",
            tooltip="Open the form with this spec",
        ),
    ]

    def body(self) -> ComposeResult:
        yield Drawing(id="heading")
        yield TabBar(USUAL_TABS, order=tuple(TABS))
        yield Container(id="place")
        yield CommandLine()

    def __init__(self) -> None:
        super().__init__()
        self.takes_keys = False

    async def on_mount(self) -> None:
        await self.open()
        self.app.call_later(self.take_keys)

    @property
    def is_outdated(self) -> bool:
        return self.app.shown is not None and self.app.shown is not self._run

    def catch_up(self) -> None:
        self.call_next(self.open)

    async def open(self) -> None:
        run = self.app.shown
        if run is None or not self.is_outdated:
            return
        await self.clear()
        self._run = run
        try:
            self.record = load_record(run)
        except SysbenchError as error:
            problem = Content(f"✗ {error}")
            self.query_one("#heading", Drawing).show(lambda width, height: problem)
            return
        self.bar.names = tuple(tab.name for tab in TABS.values() if _has(self.record, tab))
        self.bar.refresh()
        self.query_one("#heading", Drawing).show(
            partial(result_heading, self.record, label_known(run.path))
        )
        self.query_one(CommandLine).show(self.command())
        await self.action_tab(USUAL_TABS[0])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "tab":
            return parameters[0] in self.bar.names
        if action == "again" and self.record is not None and is_job(self.record.spec):
            return False
        return super().check_action(action, parameters)

    def action_again(self) -> None:
        if self._run is None:
            return
        with report_errors(self):
            header = self._run.header()
            self.app.action_mode("run")
            if isinstance(self.app.screen, RunScreen):
                self.app.screen.form.fill(header.spec, header.passes, header.repeat)

    def command(self) -> str:
        if self._run is None:
            return super().command()
        try:
            return self._run.header().command_line()
        except SysbenchError:  # only the record is left
            return shlex.join(("sysbench-tui", "show", self._run.id))


def _has(record: Record, tab: Tab) -> bool:
    if tab.name == "compile" and is_job(record.spec):
        return False
    return not tab.is_rare or record.pass_named(tab.name) is not None


def result_heading(record: Record, label: Label, width: int, height: int = 1) -> Content:
    style = "$success" if record.status == "finished" else "$warning"
    line = Content.assemble(
        (f"{outcome_glyph(record.status)} {outcome_text(record.status)}  ", style),
        (f"{literal(label.name)}  " if label.name else "", "bold $accent"),
    )
    line += Content.styled(fitted_headline(record.spec, width - line.cell_length), "bold")
    for further in (f"  {day_and_time(record.created_ns)}", f"  {record.id}"):
        if line.cell_length + len(further) > width:
            return line
        line += Content.styled(further, "$foreground 60%")
    room = width - line.cell_length - 2
    if label.note and room > 3:
        line += Content.styled(f"  {truncate(literal(label.note), room)}", "$foreground 80%")
    return line
