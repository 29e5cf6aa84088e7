"""Lines over a numeric axis as inline SVG with tooltips."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sysbench.core.colours import place_look
from sysbench.core.export.page_charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, paint
from sysbench.core.export.page_document import tag, text
from sysbench.core.tables.cells import heading
from sysbench.core.tables.timing_tables import Figure, Series

TICKS = 5
BOTTOM_LINE = HEIGHT - BOTTOM + 15
DASHES = ("none", "7 4", "2 3")
"""Adjacent lines also differ in dashes, for readers who cannot distinguish the colours."""


def line_chart(figure: Figure) -> str:
    """Draw one line per series; empty if no series has a value."""
    drawn = figure.drawn
    if not drawn:
        return ""
    points = [
        {"x": round(_across(figure, x), 1), "text": _tooltip(figure, drawn, x)}
        for x in figure.places
    ]
    return tag(
        "figure",
        tag("figcaption", text(figure.title)),
        tag(
            "svg",
            *_axes(figure),
            *(part for index, series in enumerate(drawn) for part in _line(figure, series, index)),
            tag("line", y1=TOP, y2=HEIGHT - BOTTOM, class_="cursor", visibility="hidden"),
            viewBox=f"0 0 {WIDTH} {HEIGHT}",
            role="img",
            aria_label=figure.title,
        ),
        tag("p", text(_tooltip(figure, drawn, figure.places[-1])), class_="tooltip quiet"),
        _legend(drawn),
        data_points=json.dumps(points),
    )


def _across(figure: Figure, x: float) -> float:
    return LEFT + figure.across.part(x) * (WIDTH - LEFT - RIGHT)


def _up(figure: Figure, y: float) -> float:
    return HEIGHT - BOTTOM - figure.up.part(y) * (HEIGHT - TOP - BOTTOM)


def _axes(figure: Figure) -> list[str]:
    parts = []
    for value in figure.up.ticks(TICKS):
        position = f"{_up(figure, value):.1f}"
        label = text(figure.tick(value))
        parts.append(
            tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=position, y2=position, class_="axis")
        )
        parts.append(tag("text", label, x=LEFT - 6, y=position, dy=4, text_anchor="end"))
    for value in figure.places:
        position = f"{_across(figure, value):.1f}"
        parts.append(
            tag("line", x1=position, x2=position, y1=TOP, y2=HEIGHT - BOTTOM, class_="axis")
        )
        parts.append(
            tag("text", text(figure.mark(value)), x=position, y=BOTTOM_LINE, text_anchor="middle")
        )
    return parts


def _line(figure: Figure, series: Series, index: int) -> list[str]:
    colour = paint(place_look(index))
    places = [[(_across(figure, x), _up(figure, y)) for x, y in piece] for piece in series.pieces]
    lines = [
        tag(
            "polyline",
            points=" ".join(f"{x:.1f},{y:.1f}" for x, y in piece),
            fill="none",
            style=f"stroke:{colour}",
            stroke_width=2,
            stroke_dasharray=DASHES[index % len(DASHES)],
        )
        for piece in places
    ]
    dots = [
        tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3, style=f"fill:{colour}")
        for piece in places
        for x, y in piece
    ]
    return [*lines, *dots]


def _legend(drawn: Sequence[Series]) -> str:
    return tag(
        "p",
        *(
            tag(
                "span",
                tag("i", style=f"background:{paint(place_look(index))}"),
                text(series.name),
            )
            for index, series in enumerate(drawn)
        ),
        class_="legend",
    )


def _tooltip(figure: Figure, drawn: Sequence[Series], x: float) -> str:
    """``context 512: small 22.10 ms · medium –``; a dash for no value."""
    values = (
        f"{series.name} {figure.words(dict(series.points).get(x))}".strip() for series in drawn
    )
    return f"{heading(figure.axis)} {figure.mark(x)}: {' · '.join(values)}"
