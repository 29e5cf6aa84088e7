"""Files to open on the Inspect screen: recent ones, and those of a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Container
from textual.message import Message

from sysbench.core.inspection.entries import Listed, Recent, readable_files, recent_files
from sysbench.core.tables.cells import literal
from sysbench.core.tables.table import Column, tabulate
from sysbench.tui.keys import give_focus
from sysbench.tui.run_text import age
from sysbench.tui.text import KIND_WORDS, amount
from sysbench.tui.widgets.table_view import TableView

RECENT_COLUMNS = (
    Column[Recent]("file", lambda row: Path(row.path).name),
    Column[Recent]("opened", lambda row: age(row.opened_ns), priority=10),
    Column[Recent]("kind", lambda row: KIND_WORDS[row.kind], priority=2),
    Column[Recent]("size", lambda row: amount(row.bytes), priority=11),
    Column[Recent]("verdict", priority=1, is_flexible=True),
)
FOLDER_COLUMNS = (
    Column[Listed](
        "file", lambda row: row.path.name + "/" * (row.kind == "folder"), is_flexible=True
    ),
    Column[Listed]("kind", lambda row: KIND_WORDS.get(row.kind, row.kind), priority=1),
    Column[Listed]("size", lambda row: "" if row.bytes is None else amount(row.bytes), priority=2),
    Column[Listed](
        "changed", lambda row: age(row.changed_ns) if row.changed_ns else "", priority=3
    ),
)
FRAME_ROWS = 3
"""Rows of a table's frame and heading."""
RANKS = "ranks of a job"
"""Kind of the row of the folder itself."""


class StartPanel(Container):
    DEFAULT_CSS = """
    StartPanel {
        layout: vertical;
        height: 1fr;

        TableView.panel {
            height: 1fr;
            padding: 0;
        }
        #recent {
            max-height: 50%;
        }
    }
    """

    @dataclass
    class Opened(Message):
        path: Path

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._recent: Sequence[Recent] = ()
        self._listed: Sequence[Listed] = ()
        self._folder = Path()

    def compose(self) -> ComposeResult:
        yield TableView(title="Recent files", id="recent")
        yield TableView(title="Folder", id="folder")

    def load(self) -> None:
        self._load(self._folder)

    def start_focus(self) -> None:
        for table in self.query(TableView):
            if table.display and table.row_count:
                give_focus(table)
                return

    @work(thread=True, group="inspect.start", exclusive=True)
    def _load(self, folder: Path) -> None:
        reason, listed = "", list[Listed]()
        try:
            folder = folder.absolute()
            listed = _with_parents(folder, readable_files(folder))
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
        self.call_later(self._show, recent_files(), folder, listed, reason)

    def _show(
        self, recent: Sequence[Recent], folder: Path, listed: Sequence[Listed], reason: str
    ) -> None:
        if not self.query("#recent"):  # the app exits
            return
        if (recent, folder, listed) == (self._recent, self._folder, self._listed):
            return
        self._recent, self._folder, self._listed = recent, folder, listed
        recents, files = self.query_one("#recent", TableView), self.query_one("#folder", TableView)
        recents.display = bool(recent)
        recents.styles.height = len(recent) + FRAME_ROWS
        recents.show(tabulate(recent, *RECENT_COLUMNS, name="recent", title=""), select=0)
        files.border_title = literal(str(folder))
        files.note = reason
        files.show(tabulate(listed, *FOLDER_COLUMNS, name="folder", title=""), select=0)

    @on(TableView.RowSelected, "#recent")
    def _open_recent(self) -> None:
        row = self.query_one("#recent", TableView).selected
        if row is not None:
            self.post_message(self.Opened(Path(self._recent[row].path)))

    @on(TableView.RowSelected, "#folder")
    def _open_listed(self) -> None:
        row = self.query_one("#folder", TableView).selected
        if row is None:
            return
        listed = self._listed[row]
        if listed.kind == "folder":
            self._load(Path(os.path.normpath(listed.path)))
        else:
            self.post_message(self.Opened(listed.path))


def _with_parents(folder: Path, listed: Sequence[Listed]) -> list[Listed]:
    """The parent folder first, then the folder itself where it may have the ranks of a job."""
    parent = Listed(path=folder / "..", kind="folder", bytes=None, changed_ns=0)
    above = [parent] if folder.parent != folder else []
    if sum(row.kind != "folder" for row in listed) > 1:
        above.append(Listed(path=folder, kind=RANKS, bytes=None, changed_ns=0))
    return [*above, *listed]
