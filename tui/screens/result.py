"""Result: the verdict first, then the evidence, tab by tab."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any, ClassVar

from textual import getters, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.widgets import Static

from ...core.errors import SysbenchError
from ...core.launch import command_line
from ...core.record import Record
from ...core.record_builder import settled_record
from ...core.rundir import RunDirectory
from ..numerals import day_and_time
from ..widgets.command_line import CommandLine
from ..widgets.tab_bar import TabBar
from ..wording import headline, outcome_glyph, outcome_words
from .base import WorkScreen
from .result_tab import ResultTab

TABS = ("summary", "timing", "kernels", "memory", "telemetry", "log", "export")


class ResultScreen(WorkScreen):
    """The record of one run. A tab is built when it is first looked at."""

    CSS_PATH = "result.tcss"
    AUTO_FOCUS = ""
    BINDING_GROUP_TITLE = "Result"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"tab('{name}')", name.title(), show=False, id=f"result.{name}")
            for number, name in enumerate(TABS, 1)
        ),
        Binding("e", "tab('export')", "Export", id="result.take", tooltip="Take it home"),
        Binding("a", "again", "Again", show=False, id="result.again", tooltip="Back to the form"),
    ]

    bar = getters.query_one(TabBar)
    place = getters.query_one("#place", Container)

    def __init__(self) -> None:
        super().__init__()
        self.record: Record | None = None
        self.tab: ResultTab | None = None
        self._run: RunDirectory | None = None
        self._built: dict[str, ResultTab] = {}

    def body(self) -> ComposeResult:
        yield Static(id="heading", markup=False)
        yield TabBar(TABS)
        yield Container(id="place")
        yield CommandLine()

    async def on_mount(self) -> None:
        await self._open()

    async def on_screen_resume(self) -> None:
        # The first resume comes before the screen is composed.
        if self.is_mounted:
            await self._open()

    async def _open(self) -> None:
        """Show the app's run, if it is another one than before."""
        run = self.app.shown
        if run is None or run is self._run:
            return
        self._run, self.record, self.tab = run, None, None
        self._built.clear()
        await self.place.remove_children()
        try:
            self.record = settled_record(run)
        except SysbenchError as error:
            self.query_one("#heading", Static).update(Content(f"✗ {error}"))
            return
        self.query_one("#heading", Static).update(heading(self.record))
        self.query_one(CommandLine).show(self.command())
        await self.action_tab(TABS[0])

    async def action_tab(self, name: str) -> None:
        """Show a tab, built if it is its first time, and give it the focus."""
        if self.record is None or self._run is None:
            return
        if name not in self._built:
            module = importlib.import_module(f"..result_{name}", __name__)
            self._built[name] = module.TAB(self._run, self.record)
            await self.place.mount(self._built[name])
        for other, tab in self._built.items():
            tab.display = other == name
        self.tab = self._built[name]
        self.bar.active = name
        self.call_after_refresh(self.tab.start_focus)

    @on(TabBar.Chosen)
    async def _clicked(self, event: TabBar.Chosen) -> None:
        await self.action_tab(event.name)

    def action_again(self) -> None:
        """Take this run's spec back to the form."""
        from .run import RunScreen

        if self._run is None:
            return
        header = self._run.header()
        self.app.action_mode("run")
        if isinstance(self.app.screen, RunScreen):
            self.app.screen.fill(header.spec, header.passes)

    def command(self) -> str:
        if self._run is None:
            return super().command()
        header = self._run.header()
        return command_line(header.spec, header.passes)

    def copyable(self) -> tuple[str, str]:
        return (self.tab.copyable() if self.tab else None) or super().copyable()

    def explanations(self) -> list[str]:
        return list(self.tab.EXPLAINS) if self.tab else []

    def action_explain(self) -> None:
        from .explain import ExplainScreen

        subject = self.tab.subject() if self.tab else ""
        self.app.push_screen(ExplainScreen(self.explanations(), subject))

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        commands: list[tuple[str, str, Any]] = list(self.tab.palette_commands() if self.tab else [])
        commands += [
            (f"result: Show {name}", "", partial(self.action_tab, name))
            for name in TABS
            if self.tab is not None and name != self.bar.active
        ]
        if self.record is not None:
            commands.append(("result: Run again", "form with this spec", self.action_again))
        return [*commands, *super().palette_commands()]


def heading(record: Record) -> Content:
    """What was measured, how it ended, when."""
    style = "$success" if record.status == "finished" else "$warning"
    return Content.assemble(
        (f"{outcome_glyph(record.status)} {outcome_words(record.status)}  ", style),
        (headline(record.spec), "bold"),
        (f"  {day_and_time(record.created_ns)}  {record.id}", "$foreground 60%"),
    )
