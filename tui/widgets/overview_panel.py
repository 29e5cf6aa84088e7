"""The overview of a record as drawn text."""

from __future__ import annotations

from collections.abc import Iterator

from textual.content import Content

from sysbench.core.tables.overview import Overview, Span, overview_lines
from sysbench.tui.theme import SEVERITY_COLOURS, swatch_of
from sysbench.tui.widgets.drawing import Folding, wrap_lines

STYLES = {
    "": "",
    "strong": "bold",
    "quiet": "$foreground 60%",
    **SEVERITY_COLOURS,
}


class OverviewPanel(Folding):
    """The number, where time and memory go, the main finding, and the count of warnings."""

    def __init__(self, shown: Overview, *, more: str = "", id: str | None = None) -> None:
        super().__init__(wrap_lines(lambda width: overview_contents(shown, width, more)), id=id)


def overview_contents(shown: Overview, width: int, more: str = "") -> Iterator[Content]:
    for line in overview_lines(shown, width, more):
        yield Content("").join(_content(span) for span in line)


def _content(span: Span) -> Content:
    style = swatch_of(span.look).colour if span.role == "bar" else STYLES[span.role]
    return Content.styled(span.text, style)
