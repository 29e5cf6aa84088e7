"""The base of the screens that show a record tab by tab."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from textual import getters, on
from textual.binding import BindingType
from textual.containers import Container

from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.loading import load_class
from sysbench.tui.screens.result_registry import TABS
from sysbench.tui.screens.result_tab import ResultTab
from sysbench.tui.screens.work_screen import WorkScreen, unfold_binding
from sysbench.tui.widgets.tab_bar import TabBar


class TabbedScreen(WorkScreen):
    """Shows a record in the container ``#place``. A tab is built when it is first shown."""

    BINDINGS: ClassVar[list[BindingType]] = [unfold_binding(is_shown=True)]
    AREA = ""
    """The area of the palette's commands."""

    bar = getters.query_one(TabBar)
    place = getters.query_one("#place", Container)

    def __init__(self) -> None:
        super().__init__()
        self.record: Record | None = None
        self.tab: ResultTab | None = None
        self._run: RunDirectory | None = None
        self._built: dict[str, ResultTab] = {}

    async def clear(self) -> None:
        """Show no record."""
        self._run, self.record, self.tab = None, None, None
        self._built.clear()
        await self.place.remove_children()

    async def action_tab(self, name: str) -> None:
        """Show a tab, built the first time, and give it the focus."""
        if self.record is None or self._run is None:
            return
        # Painted once it is complete, not in pieces.
        with self.app.batch_update():
            if name not in self._built:
                row = TABS[name]
                self._built[name] = load_class(row.shown_by)(row, self._run, self.record)
                await self.place.mount(self._built[name])
            for other, tab in self._built.items():
                tab.display = other == name
            self.tab = self._built[name]
            self.bar.active = name
            self.tab.start_focus()

    @on(TabBar.Chosen)
    async def _clicked(self, event: TabBar.Chosen) -> None:
        await self.action_tab(event.name)

    def copyable(self) -> tuple[str, str]:
        return (self.tab.copyable() if self.tab else None) or super().copyable()

    def explanations(self) -> list[str]:
        return list(self.tab.row.explains) if self.tab else []

    def action_explain(self) -> None:
        from sysbench.tui.screens.explain_dialog import ExplainScreen, columns_in_view

        subject = self.tab.subject() if self.tab else ""
        self.app.push_screen(ExplainScreen(self.explanations(), subject, columns_in_view(self)))

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        commands: list[tuple[str, str, Any]] = list(self.tab.palette_commands() if self.tab else [])
        commands += [
            (f"{self.AREA}: Show {name}", TABS[name].about, partial(self.action_tab, name))
            for name in self.bar.names
            if self.tab is not None and name != self.bar.active
        ]
        return [*commands, *super().palette_commands()]
