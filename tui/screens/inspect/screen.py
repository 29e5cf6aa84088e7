"""Inspect: a foreign trace, snapshot or nsys export, shown with the tabs of a result.

A confined child process decodes the file.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, ProgressBar, Static

from ....core.errors import SysbenchError
from ....core.inspection.decoding import Decoding
from ....core.inspection.inspection import Inspection
from ....core.inspection.kinds import READABLE
from ....core.inspection.messages import Progressed
from ....core.tables.cells import literal
from ...text import decoding_text, file_text
from ...widgets.bars.command_line import CommandLine
from ...widgets.bars.tab_bar import TabBar
from ...widgets.inputs.path_suggester import PathSuggester
from ..result.registry import STYLES, TABS
from ..result.tabbed import TabbedScreen

INSPECTED = tuple(tab for tab in TABS.values() if hasattr(Inspection, tab.block))
"""The tabs whose block an inspection may have."""

INTRODUCTION = (
    f"Name {READABLE}, of any program and any machine. The format is recognised from the "
    "content. A separate process with a memory limit decodes it; a second look is instant."
)


class InspectScreen(TabbedScreen):
    """A path above; below it the progress of decoding, the reason it failed, or the tabs."""

    AREA = "inspect"
    CSS_PATH: ClassVar[list[str | PurePath]] = [*STYLES, "screen.tcss"]
    AUTO_FOCUS = "#file"
    BINDING_GROUP_TITLE = "Inspect"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "choose", "Open", show=False, id="inspect.open", tooltip="Name another file"),
        Binding("escape", "cancel", "Cancel", id="inspect.cancel", tooltip="End the decoding"),
        Binding("escape", "back", "Back", show=False, id="inspect.back"),
        *(
            Binding(
                str(number),
                f"number({number})",
                "Tab",
                show=False,
                id=f"inspect.tab-{number}",
                tooltip="The tab of that number",
            )
            for number in range(1, len(INSPECTED) + 1)
        ),
    ]

    @dataclass
    class Advanced(Message):
        """The decoding has progressed."""

        decoding: Decoding
        step: Progressed

    @dataclass
    class Ended(Message):
        """The decoding has ended, with tables or with the reason why there are none."""

        decoding: Decoding
        inspection: Inspection | None = None
        reason: str = ""

    def __init__(self) -> None:
        super().__init__()
        self._decoding: Decoding | None = None

    def body(self) -> ComposeResult:
        yield Input(
            placeholder="a file, then enter", compact=True, id="file", suggester=PathSuggester()
        )
        yield Static(id="heading", markup=False)
        with Container(id="tabs"):
            yield TabBar(())
        yield Static(id="message", markup=False)
        with Vertical(id="decoding"):
            yield ProgressBar(show_eta=False)
            yield Static(id="stage", markup=False)
        yield Container(id="place")
        yield CommandLine("sysbench-tui inspect FILE")

    def on_mount(self) -> None:
        self.query_one("#message", Static).update(INTRODUCTION)
        self._show_only("file", "message")

    def on_unmount(self) -> None:
        self._stop()

    @on(Input.Submitted, "#file")
    async def _submitted(self, event: Input.Submitted) -> None:
        if event.value.strip():
            await self.open(Path(os.path.expanduser(event.value.strip())))

    async def open(self, path: Path) -> None:
        """Decode this file, then show its tables."""
        self._stop()
        await self.clear()
        self.query_one("#file", Input).value = str(path)
        words = ["sysbench-tui", "inspect", str(path)]
        self.query_one(CommandLine).show(literal(shlex.join(words)))
        try:
            self._decoding = Decoding(path)
        except (SysbenchError, OSError) as error:
            self._refuse(str(error))
            return
        self._show_only("file", "decoding")
        self.query_one(ProgressBar).update(total=None)
        self.query_one("#stage", Static).update("starting")
        self.refresh_bindings()
        self._decode(self._decoding)

    @work(thread=True)
    def _decode(self, decoding: Decoding) -> None:
        """Wait for the decoding process; this thread only passes its messages on."""

        def show(step: Progressed) -> None:
            self.post_message(self.Advanced(decoding, step))

        try:
            inspection = decoding.run(show)
        except (SysbenchError, OSError) as error:
            self.post_message(self.Ended(decoding, reason=str(error)))
        else:
            self.post_message(self.Ended(decoding, inspection))

    @on(Advanced)
    def _show_step(self, event: Advanced) -> None:
        if event.decoding is self._decoding:
            share = event.step.share
            self.query_one(ProgressBar).update(
                total=None if share is None else 1.0, progress=share or 0.0
            )
            self.query_one("#stage", Static).update(f"{decoding_text(event.step)} · esc cancels")

    @on(Ended)
    async def _show_end(self, event: Ended) -> None:
        if event.decoding is not self._decoding:
            return
        self._decoding = None
        if event.inspection is None:
            self._refuse(event.reason)
        else:
            await self._show_tables(event.decoding, event.inspection)
        self.refresh_bindings()

    async def _show_tables(self, decoding: Decoding, inspection: Inspection) -> None:
        self._run, self.record = decoding.entry.as_run, inspection.as_record()
        self.bar.names = tuple(
            tab.name for tab in INSPECTED if getattr(inspection, tab.block) is not None
        )
        self.query_one("#heading", Static).update(
            Content.assemble(
                (f"✓ {file_text(inspection)}  ", "$success"),
                (literal(Path(inspection.file).name), "bold"),
                ("  o opens another", "$foreground 60%"),
            )
        )
        self._show_only("heading", "tabs", "place")
        await self.action_tab(self.bar.names[0])

    def _refuse(self, reason: str) -> None:
        message = self.query_one("#message", Static)
        message.set_class(True, "-refused")
        message.update(Content("\n".join(map(literal, f"✗ {reason}".splitlines()))))
        self._show_only("file", "message")
        self.query_one("#file").focus()

    def _show_only(self, *names: str) -> None:
        for name in ("file", "message", "decoding", "heading", "tabs", "place"):
            self.query_one(f"#{name}").display = name in names

    def _stop(self) -> None:
        """End the decoding that is under way, and ignore its further messages."""
        if self._decoding is not None:
            self._decoding.cancel()
            self._decoding = None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "cancel":
            return self._decoding is not None
        if action == "back":
            return self._decoding is None and self.tab is not None
        if action == "number":
            return int(str(parameters[0])) <= len(self.bar.names)
        return super().check_action(action, parameters)

    def action_cancel(self) -> None:
        """End the decoding; the path stays, to be changed or tried again."""
        self._stop()
        self._refuse("cancelled")
        self.refresh_bindings()

    def action_choose(self) -> None:
        """Ask for another file."""
        box = self.query_one("#file")
        box.display = True
        box.focus()

    def action_back(self) -> None:
        """Go from the path to the tables."""
        self.query_one("#file").display = False
        if self.tab is not None:
            self.tab.start_focus()

    async def action_number(self, number: int) -> None:
        """Show the tab of this number."""
        await self.action_tab(self.bar.names[number - 1])

    def command(self) -> str:
        return self.query_one(CommandLine).command

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        commands: list[tuple[str, str, Any]] = [
            ("inspect: Open file", "a trace, a snapshot or an nsys export", self.action_choose)
        ]
        if self._decoding is not None:
            commands.append(("inspect: Cancel decoding", "", self.action_cancel))
        return [*commands, *super().palette_commands()]
