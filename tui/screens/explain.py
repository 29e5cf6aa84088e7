"""`?`: formula, clock, source and scope of the numbers in view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ..explanations import EXPLANATIONS, Explanation


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
                yield Static(Content(self._subject + "\n"), markup=False)
            for key in self._keys:
                yield Static(_paragraph(EXPLANATIONS[key]), markup=False)


def _paragraph(entry: Explanation) -> Content:
    rows = [
        ("is", entry.formula),
        ("clock", entry.clock),
        ("source", entry.source),
        ("includes", entry.included),
    ]
    lines = [Content.styled(entry.title, "bold $accent")]
    lines += [Content.assemble((f"  {name:<10}", "$foreground 60%"), text) for name, text in rows]
    return Content("\n").join([*lines, Content("")])
