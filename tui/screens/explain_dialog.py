"""`?`: formula, clock, source and scope of the numbers in view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from sysbench.core.tables.cells import heading_of
from sysbench.tui.explanations import EXPLANATIONS, Explanation, explain_column
from sysbench.tui.widgets.dialog import Dialog
from sysbench.tui.widgets.facts import Pair, dialog_room, pair_lines
from sysbench.tui.widgets.table_view import TableView


class ExplainScreen(Dialog[None]):
    """The columns of the table where the cursor stands, then one paragraph a number; `subject` is
    the row in view, literal, when there is one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "dismiss", "Close", id="explain.close")
    ]

    def __init__(
        self, keys: Sequence[str], subject: str = "", columns: Sequence[Pair] = ()
    ) -> None:
        super().__init__()
        self._keys = keys
        self._subject = subject
        self._columns = columns

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = "Where it comes from"
            dialog.border_subtitle = "esc closes"
            if self._subject:
                yield Static(Content(f"{self._subject}\n"), id="subject", markup=False)
            yield Static(id="origins", markup=False)

    def on_mount(self) -> None:
        width = dialog_room(self.app.size.width)
        lines = [line for key in self._keys for line in _paragraph(EXPLANATIONS[key], width)]
        if self._columns:
            heading = Content.styled("Columns of this table", "bold $accent")
            lines = [heading, *pair_lines(self._columns, width), Content(""), *lines]
        if not lines:
            lines = [Content("This tab has no numbers to explain.")]
        self.query_one("#origins", Static).update(Content("\n").join(lines))


def columns_in_view(screen: Screen[Any]) -> list[Pair]:
    """Heading and sentence of each column of the table with the focus, else of the first."""
    tables = [table for table in screen.query(TableView) if table.is_on_screen]
    tables.sort(key=lambda table: not table.has_focus)
    shown = next((table.table for table in tables if table.table is not None), None)
    if shown is None:
        return []
    sentences = {name: explain_column(shown.name, name) for name in shown.columns}
    return [
        (f"  {heading_of(shown, name)}", sentence)
        for name, sentence in sentences.items()
        if sentence
    ]


def _paragraph(entry: Explanation, width: int) -> Iterator[Content]:
    yield Content.styled(entry.title, "bold $accent")
    pairs = [
        ("  is", entry.formula),
        ("  clock", entry.clock),
        ("  source", entry.source),
        ("  includes", entry.included),
    ]
    yield from pair_lines(pairs, width)
    yield Content("")
