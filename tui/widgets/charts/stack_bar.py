"""A whole as one bar of parts that add up, with a legend under it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual.content import Content
from textual.widgets import Static

from ...text import percent
from ...theme import Swatch

ROOMY = 100
"""From this width on the legend has amounts next to the shares."""


class Part(NamedTuple):
    """One part: its name, its amount as a number and as text, and its looks."""

    name: str
    amount: float
    text: str
    look: Swatch


def shares(amounts: Sequence[float], width: int) -> list[int]:
    """Cells for each part, by largest remainder: they sum to the width."""
    total = sum(amounts)
    if total <= 0:
        return [0] * len(amounts)
    exact = [max(amount, 0.0) / total * width for amount in amounts]
    cells = [int(value) for value in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: cells[i] - exact[i])
    for index in by_rest[: width - sum(cells)]:
        cells[index] += 1
    return cells


def stack_lines(parts: Sequence[Part], width: int, legend_rows: int) -> list[Content]:
    """The bar, then the legend; parts without room are counted on its last line."""
    cells = shares([part.amount for part in parts], width)
    bar = Content("").join(
        Content.styled(part.look.glyph * count, part.look.colour)
        for part, count in zip(parts, cells, strict=True)
        if count
    )
    lines = [bar]
    row, used = Content(""), 0
    total = sum(part.amount for part in parts) or 1.0
    for number, part in enumerate(parts):
        share = percent(part.amount / total)
        entry = f"{part.name} {share if width < ROOMY else f'{part.text} {share}'}"
        wide = len(entry) + 4
        if used and used + wide > width:
            lines.append(row)
            row, used = Content(""), 0
            if len(lines) > legend_rows:
                rest = len(parts) - number
                lines[-1] += Content.styled(f"+{rest} more", "$foreground 60%")
                return lines
        row += Content.assemble((f"{part.look.glyph} ", part.look.colour), f"{entry}  ")
        used += wide
    return [*lines, row]


class StackBar(Static):
    """The bar and legend of some parts."""

    DEFAULT_CSS = """
    StackBar { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, legend_rows: int = 2, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._legend_rows = legend_rows
        self.parts: Sequence[Part] = ()
        self._head = Content("")

    def show(self, head: Content, parts: Sequence[Part]) -> None:
        """Show these parts under a line with their sum."""
        self._head, self.parts = head, parts
        self._paint()

    def on_resize(self) -> None:
        self._paint()

    def _paint(self) -> None:
        if self.parts and self.size.width:
            lines = stack_lines(self.parts, self.size.width, self._legend_rows)
            self.update(Content("\n").join([self._head, *lines]))
