"""The questions of a profile, each with its sentence and the numbers that it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ...core.analysis.kernels.attention import Answer
from ...core.export.text_formats import table_as_markdown
from ...core.tables.cells import literal
from ...core.tables.kernels import question_table
from ..widgets.facts import hanging

QUIET = "$foreground 60%"


class AnswersView(VerticalScroll, can_focus=True):
    """All answers, one below the other."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: Sequence[Answer] = ()
        self.border_title = "Answers"

    def compose(self) -> Iterator[Static]:
        yield Static("Reading the other runs of this spec …", id="answers", markup=False)

    def show(self, answers: Sequence[Answer]) -> None:
        """Show these."""
        self.answers = answers
        self._paint()

    def on_resize(self) -> None:
        self._paint()

    def _paint(self) -> None:
        width = self.scrollable_content_region.width
        if self.answers and width:
            lines = [line for answer in self.answers for line in _lines(answer, width)]
            self.query_one("#answers", Static).update(Content("\n").join(lines))

    def markdown(self) -> str:
        """The questions and answers as a table."""
        return table_as_markdown(question_table(self.answers))


def _lines(answer: Answer, width: int) -> Iterator[Content]:
    yield from hanging(Content(""), answer.question, width, "bold $accent")
    yield from hanging(Content("  "), literal(answer.sentence), width)
    if answer.rows:
        rows = f"{len(answer.rows)} rows: " if len(answer.rows) > 1 else ""
        yield Content.styled(_cut(f"  from {rows}{literal(', '.join(answer.rows))}", width), QUIET)
    for command in answer.commands:
        yield from hanging(Content.styled("  $ ", QUIET), command, width, QUIET)
    yield Content("")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
