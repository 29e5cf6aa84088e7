"""`?`: formula, clock, source and scope of the numbers in view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ...explanations import EXPLANATIONS, Explanation
from ...widgets.tables.facts import DIALOG_EDGES, DIALOG_WIDTH, pair_lines


class ExplainScreen(ModalScreen[None]):
    """One paragraph a number; `subject` is the row in view, literal, when there is one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "dismiss", "Close", id="explain.close")
    ]

    def __init__(self, keys: Sequence[str], subject: str = "") -> None:
        super().__init__()
        self._keys = keys
        self._subject = subject

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = "Where it comes from"
            dialog.border_subtitle = "esc closes"
            if self._subject:
                yield Static(Content(f"{self._subject}\n"), id="subject", markup=False)
            yield Static(id="origins", markup=False)

    def on_mount(self) -> None:
        width = min(self.app.size.width, DIALOG_WIDTH) - DIALOG_EDGES
        lines = [line for key in self._keys for line in _paragraph(EXPLANATIONS[key], width)]
        if not lines:
            lines = [Content("This tab has no numbers to explain.")]
        self.query_one("#origins", Static).update(Content("\n").join(lines))


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
