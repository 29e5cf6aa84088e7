"""Result: the verdict first, then the evidence, tab by tab."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

from textual import getters, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Static, TabbedContent, TabPane

from ...core.errors import SysbenchError
from ...core.launch import command_line
from ...core.record import Record
from ...core.record_builder import settled_record
from ...core.rundir import RunDirectory
from ...core.spec import PASSES
from ..numerals import day_and_time
from ..widgets.command_line import CommandLine
from ..wording import headline, outcome_glyph, outcome_words
from .base import WorkScreen
from .result_tab import ResultTab

TABS = ("summary", "timing", "kernels", "memory", "telemetry", "log", "export")


class ResultScreen(WorkScreen):
    """The record of one run. A tab is built when it is first looked at."""

    CSS_PATH = "result.tcss"
    BINDING_GROUP_TITLE = "Result"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"tab('{name}')", name.title(), show=False, id=f"result.{name}")
            for number, name in enumerate(TABS, 1)
        ),
        Binding("e", "tab('export')", "Export", id="result.take", tooltip="Take it home"),
        Binding("a", "again", "Again", show=False, id="result.again", tooltip="Back to the form"),
    ]

    tabs = getters.query_one(TabbedContent)

    def __init__(self) -> None:
        super().__init__()
        self.record: Record | None = None
        self._shown: RunDirectory | None = None

    def body(self) -> ComposeResult:
        yield Static(id="heading", markup=False)
        with TabbedContent():
            for number, name in enumerate(TABS, 1):
                yield TabPane(f"{number} {name.title()}", id=name)
        yield CommandLine()

    async def on_mount(self) -> None:
        await self._open()

    async def on_screen_resume(self) -> None:
        await self._open()

    async def _open(self) -> None:
        """Show the app's run, if it is another one than before."""
        run = self.app.shown
        if run is None or run is self._shown:
            return
        self._shown = run
        try:
            self.record = settled_record(run)
        except SysbenchError as error:
            self.record = None
            self.query_one("#heading", Static).update(f"✗ {error}")
            return
        self.query_one("#heading", Static).update(heading(self.record))
        self.query_one(CommandLine).show(self.command())
        for pane in self.query(TabPane):
            await pane.remove_children()
        self.tabs.active = TABS[0]
        await self._build(TABS[0])

    @on(TabbedContent.TabActivated)
    async def _activated(self, event: TabbedContent.TabActivated) -> None:
        await self._build(str(event.pane.id))

    async def _build(self, name: str) -> None:
        """Mount a tab's content the first time, and give it the focus."""
        pane = self.query_one(f"#{name}", TabPane)
        if self.record is None or self._shown is None:
            return
        if not pane.query(ResultTab):
            module = importlib.import_module(f"..result_{name}", __name__)
            tab: ResultTab = module.TAB(self._shown, self.record)
            await pane.mount(tab)
        if self.tabs.active == name:
            self.call_after_refresh(pane.query_one(ResultTab).start_focus)

    @property
    def tab(self) -> ResultTab | None:
        """The tab in view."""
        found = self.query_one(f"#{self.tabs.active}").query(ResultTab)
        return found.first() if found else None

    def action_tab(self, name: str) -> None:
        self.tabs.active = name

    def action_again(self) -> None:
        """Take this run's spec back to the form."""
        from .run import RunScreen

        if self._shown is None:
            return
        header = self._shown.header()
        self.app.action_mode("run")
        if isinstance(self.app.screen, RunScreen):
            self.app.screen.fill(header.spec, header.passes)

    def command(self) -> str:
        if self._shown is None:
            return super().command()
        header = self._shown.header()
        return command_line(header.spec, header.passes or PASSES)

    def copyable(self) -> tuple[str, str]:
        tab = self.tab
        return (tab.copyable() if tab else None) or super().copyable()

    def explanations(self) -> list[str]:
        tab = self.tab
        return list(tab.EXPLAINS) if tab else []

    def action_explain(self) -> None:
        from .explain import ExplainScreen

        tab = self.tab
        self.app.push_screen(ExplainScreen(self.explanations(), tab.subject() if tab else ""))

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        commands: list[tuple[str, str, Any]] = list(self.tab.palette_commands() if self.tab else [])
        for name in TABS:
            if name != self.tabs.active:
                commands.append(
                    (f"result: Show {name}", "", lambda name=name: self.action_tab(name))
                )
        commands.append(("result: Run again", "fill the form with this spec", self.action_again))
        return [*commands, *super().palette_commands()]


def heading(record: Record) -> Content:
    """What was measured, how it ended, when."""
    style = "$success" if record.status == "finished" else "$warning"
    return Content.assemble(
        (f"{outcome_glyph(record.status)} {outcome_words(record.status)}  ", style),
        (headline(record.spec), "bold"),
        (f"  {day_and_time(record.created_ns)}  {record.id}", "$foreground 60%"),
    )
