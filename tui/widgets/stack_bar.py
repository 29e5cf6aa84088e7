"""A stacked bar of parts that add up, with a legend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from textual.content import Content

from sysbench.tui.text import percent
from sysbench.tui.theme import Swatch
from sysbench.tui.widgets.drawing import Folding

ROOMY = 100
"""From this width on the legend has amounts and shares."""


class BarPart(NamedTuple):
    name: str
    amount: float
    text: str
    look: Swatch


def bar_shares(amounts: Sequence[float], width: int) -> list[int]:
    """Cells of each part by largest remainder; they sum to the width."""
    total = sum(amounts)
    if total <= 0:
        return [0] * len(amounts)
    exact = [max(amount, 0.0) / total * width for amount in amounts]
    cells = [int(value) for value in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: cells[i] - exact[i])
    for index in by_rest[: width - sum(cells)]:
        cells[index] += 1
    return cells


def stack_lines(parts: Sequence[BarPart], width: int, legend_rows: int) -> list[Content]:
    cells = bar_shares([part.amount for part in parts], width)
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


def labelled_bar(parts: Sequence[BarPart], width: int) -> Content:
    """The bar with names and shares inside the parts that are wide enough."""
    total = sum(part.amount for part in parts) or 1.0
    bar = Content("")
    for part, cells in zip(parts, bar_shares([part.amount for part in parts], width), strict=True):
        texts = (f"{part.name} {percent(part.amount / total, 0)} ", f"{part.name} ", "")
        label = next(text for text in texts if len(text) < cells or not text)
        bar += Content.assemble(
            (label, f"bold {part.look.colour}"),
            (part.look.glyph * (cells - len(label)), part.look.colour),
        )
    return bar


class StackBar(Folding):
    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.parts: Sequence[BarPart] = ()

    def show_parts(
        self, head: Content, parts: Sequence[BarPart], *, brief: Callable[[int], Content]
    ) -> None:
        """Show parts below a line with their sum, or below ``brief(width)`` without a legend."""
        self.parts = parts

        def draw(width: int, height: int) -> Content:
            if not parts:
                return Content("")
            legend_rows = height - 2
            lines = [head, *stack_lines(parts, width, legend_rows)]
            if legend_rows < 1:
                lines = [brief(width), labelled_bar(parts, width)]
            return Content("\n").join(lines[:height])

        self.show(draw)
