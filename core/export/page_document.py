"""An HTML page in one file, without requests, and its charts as inline SVG."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import accumulate

from sysbench.core.colours import HUES, Look, look_of, place_look
from sysbench.core.compare.verdict import Verdict
from sysbench.core.formatting import format_bytes, percent, signed_percent
from sysbench.core.record.record import Timeline
from sysbench.core.tables.cells import cells_as_text, heading, heading_of, is_numeric, literal
from sysbench.core.tables.table import Table
from sysbench.core.tables.timing_tables import Figure, Series
from sysbench.core.tables.trust import mark_perturbed

HEADING = re.compile(r"<h2>(.*?)</h2>")
BREAK = re.compile(r"[:;,] ")


def text(value: object) -> str:
    return html.escape(literal(str(value)))


def tag(name: str, *inside: str, **attributes: object) -> str:
    """Make an element around trusted HTML. Attributes are escaped, ``_`` becomes ``-``, and a
    trailing underscore is dropped: ``class_`` is ``class``."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{given}>{''.join(inside)}</{name}>"


def with_code_tags(value: str) -> str:
    """Escape untrusted text; text between backticks becomes code."""
    parts = value.split("`")
    if len(parts) % 2 == 0:
        return text(value)
    return "".join(tag("code", text(part)) if n % 2 else text(part) for n, part in enumerate(parts))


def section(title: str, *inside: str, anchor: str) -> str:
    return tag("section", tag("h2", text(title)), *inside, id=anchor)


def table(content: Table, perturbed: Collection[str] = ()) -> str:
    """Make a table; ``perturbed`` are columns whose numbers are marked."""
    looks = ["number" if is_numeric(content, name) else "words" for name in content.columns]
    head = [
        tag("th", text(heading_of(content, name)), class_=look)
        for name, look in zip(content.columns, looks, strict=True)
    ]
    marks = [mark_perturbed if name in perturbed else str for name in content.columns]
    rows = [
        tag(
            "tr",
            *(
                tag("td", text(mark(cell)), class_=look)
                for cell, look, mark in zip(row, looks, marks, strict=True)
            ),
        )
        for row in cells_as_text(content)
    ]
    return tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows))


def branch(
    name: str, figures: Iterable[str], share: float, *below: str, is_open: bool = False
) -> str:
    """Make a line of a tree with a bar for its share, and its children."""
    width = f"width:{min(max(share, 0.0), 1.0):.1%}"
    line = [
        tag("span", tag("i", style=width), class_="bar"),
        *(tag("span", text(figure), class_="figure") for figure in figures),
        tag("span", text(name), class_="name"),
    ]
    how = {"open": "open"} if is_open else {}
    return tag("details", tag("summary", *line), *below, class_="" if below else "leaf", **how)


def document(title: str, head: str, sections: Mapping[str, str], about: str = "") -> str:
    """Make a page with inline style and script and a policy that forbids all requests.

    Title and description are plain text; the list of contents follows from the sections.
    """
    style, script = (_part(name) for name in ("page.css", "page.js"))
    links = [_link(anchor, inside) for anchor, inside in sections.items()]
    described = f'<meta name="description" content="{text(about)}">\n' if about else ""
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<link rel="icon" href="data:,">\n',
            described,
            f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n",
            tag("header", head, tag("nav", *links)),
            "\n",
            "\n".join(sections.values()),
            f"\n<script>{script}</script>\n</body>\n</html>\n",
        )
    )


def _link(anchor: str, inside: str) -> str:
    """Link to a section by its heading up to the first break."""
    found = HEADING.search(inside)
    title = html.unescape(found[1]) if found else anchor.replace("-", " ")
    return tag("a", text(BREAK.split(title)[0]), href=f"#{anchor}")


def _policy(script: str) -> str:
    """Return a content security policy that allows only this script and no requests."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = "style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {allowed}; script-src 'sha256-{digest}'"


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


WIDTH, HEIGHT = 1100, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 10, 12, 34
LETTER = 6.5
"""Average width of a letter."""
TICKS = 4

Point = tuple[float, float]


def paint(look: Look) -> str:
    """Return a look's CSS colour for both colour schemes; faint ones are mixed with the page."""
    hue = HUES[look.hue]
    colour = f"light-dark({hue.light}, {hue.dark})"
    return f"color-mix(in srgb, {colour} 55%, var(--card))" if look.faint else colour


def colour_of(name: str) -> str:
    return paint(look_of(name))


def memory_chart(timeline: Timeline) -> str:
    """Draw live bytes by category, stacked, with a tooltip per instant.

    Points are equidistant, not by time, because building a model takes longer than a step.
    """
    count = len(timeline.t_ms)
    if count < 2:
        return ""
    x = [_across(index / (count - 1)) for index in range(count)]
    highest = max(timeline.live_bytes) or 1
    names = [name for name, values in timeline.categories.items() if any(values)]
    layers = list(
        accumulate(
            (timeline.categories[name] for name in names),
            lambda below, above: [a + b for a, b in zip(below, above, strict=True)],
            initial=[0] * count,
        )
    )
    areas = [
        _area(x, [_up(v / highest) for v in below], [_up(v / highest) for v in above], colour)
        for below, above, colour in zip(layers, layers[1:], map(colour_of, names), strict=False)
    ]
    points = [
        {"x": round(position, 1), "text": _tooltip(timeline, index, names)}
        for index, position in enumerate(x)
    ]
    peak = timeline.live_bytes.index(highest)
    return tag(
        "figure",
        _svg(*_scale(highest), *areas, *_phases(timeline, x), _cursor()),
        tag("p", text(_tooltip(timeline, peak, names)), class_="tooltip quiet"),
        _legend((name, colour_of(name)) for name in names),
        data_points=json.dumps(points),
    )


def steps_chart(samples_ms: Sequence[float], median_ms: float) -> str:
    """Draw each measured step as a point and the median as a line."""
    if len(samples_ms) < 2:
        return ""
    low, high = min(samples_ms), max(samples_ms)
    span = (high - low) or 1.0
    last = len(samples_ms) - 1
    dots = [
        tag("circle", cx=f"{_across(n / last):.1f}", cy=f"{_up((ms - low) / span):.1f}", r=2.5,
            class_="step")
        for n, ms in enumerate(samples_ms)
    ]  # fmt: skip
    median_y = f"{_up((median_ms - low) / span):.1f}"
    line = tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=median_y, y2=median_y, class_="median")
    labels = [
        tag("text", text(f"{value:.4g} ms"), x=LEFT - 6, y=_up(height) + 4, text_anchor="end")
        for value, height in ((low, 0.0), (high, 1.0))
    ]
    return tag("figure", _svg(line, *dots, *labels))


def _svg(*inside: str, height: int = HEIGHT, **attributes: object) -> str:
    return tag("svg", *inside, viewBox=f"0 0 {WIDTH} {height}", role="img", **attributes)


def _axis(*, x: object = None, y: object = None) -> str:
    """Draw a line over the whole chart: at an x from top to bottom, at a y from left to right."""
    if x is None:
        return tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="axis")
    return tag("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="axis")


def _across(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _up(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _area(x: Sequence[float], below: Sequence[float], above: Sequence[float], colour: str) -> str:
    outline: list[Point] = [
        *zip(x, above, strict=True),
        *zip(reversed(x), reversed(below), strict=True),
    ]
    return tag("polygon", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in outline), class_="area",
               style=f"fill:{colour}")  # fmt: skip


def _scale(highest: int) -> list[str]:
    parts = []
    for tick in range(TICKS + 1):
        y = _up(tick / TICKS)
        label = text(format_bytes(highest * tick // TICKS))
        parts += [_axis(y=y), tag("text", label, x=LEFT - 6, y=y + 4, text_anchor="end")]
    return parts


def _phases(timeline: Timeline, x: Sequence[float]) -> list[str]:
    """Draw a line at the start of each phase and its name if it fits."""
    parts = []
    for name, begin_ms, end_ms in timeline.phases:
        inside = [
            position for position, t in zip(x, timeline.t_ms, strict=True) if begin_ms <= t < end_ms
        ]
        if not inside or inside[-1] - inside[0] < LETTER * len(name):
            continue
        label = tag("text", text(name), x=inside[0] + 3, y=HEIGHT - BOTTOM + 16)
        parts += [_axis(x=inside[0]), label]
    return parts


def _cursor() -> str:
    return tag("line", y1=TOP, y2=HEIGHT - BOTTOM, class_="cursor", visibility="hidden")


def _legend(lines: Iterable[tuple[str, str]]) -> str:
    """List names with their colours."""
    items = (
        tag("span", tag("i", style=f"background:{colour}"), text(name)) for name, colour in lines
    )
    return tag("p", *items, class_="legend")


def _tooltip(timeline: Timeline, index: int, names: Sequence[str]) -> str:
    parts = [
        f"{name} {format_bytes(timeline.categories[name][index])}"
        for name in names
        if timeline.categories[name][index]
    ]
    live = format_bytes(timeline.live_bytes[index])
    return f"{timeline.t_ms[index]:.3f} ms: {live} live = {' + '.join(parts)}"


LINE_TICKS = 5
BOTTOM_LINE = HEIGHT - BOTTOM + 15
DASHES = ("none", "7 4", "2 3")
"""Adjacent lines also differ in dashes, for readers who cannot distinguish the colours."""


def line_chart(figure: Figure) -> str:
    """Draw one line per series; empty if no series has a value."""
    drawn = figure.drawn
    if not drawn:
        return ""
    points = [
        {"x": round(_across(figure.across.part(x)), 1), "text": _line_tooltip(figure, drawn, x)}
        for x in figure.places
    ]
    return tag(
        "figure",
        tag("figcaption", text(figure.title)),
        _svg(
            *_axes(figure),
            *(part for index, series in enumerate(drawn) for part in _line(figure, series, index)),
            _cursor(),
            aria_label=figure.title,
        ),
        tag("p", text(_line_tooltip(figure, drawn, figure.places[-1])), class_="tooltip quiet"),
        _legend((line.name, paint(place_look(n))) for n, line in enumerate(drawn)),
        data_points=json.dumps(points),
    )


def _axes(figure: Figure) -> list[str]:
    parts = []
    for value in figure.up.ticks(LINE_TICKS):
        y, label = f"{_up(figure.up.part(value)):.1f}", text(figure.tick(value))
        parts += [_axis(y=y), tag("text", label, x=LEFT - 6, y=y, dy=4, text_anchor="end")]
    for value in figure.places:
        x, label = f"{_across(figure.across.part(value)):.1f}", text(figure.mark(value))
        parts += [_axis(x=x), tag("text", label, x=x, y=BOTTOM_LINE, text_anchor="middle")]
    return parts


def _line(figure: Figure, series: Series, index: int) -> list[str]:
    colour = paint(place_look(index))
    places = [
        [(_across(figure.across.part(x)), _up(figure.up.part(y))) for x, y in piece]
        for piece in series.pieces
    ]
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


def _line_tooltip(figure: Figure, drawn: Sequence[Series], x: float) -> str:
    """``context 512: small 22.10 ms · medium –``; a dash for no value."""
    values = (
        f"{series.name} {figure.words(dict(series.points).get(x))}".strip() for series in drawn
    )
    return f"{heading(figure.axis)} {figure.mark(x)}: {' · '.join(values)}"


AXIS_HEIGHT = 74
AXIS_Y = 30


def interval_chart(verdict: Verdict) -> str:
    """Draw the change of the step time with its interval and the smallest difference that matters.

    Empty without a change; without an interval only the change is drawn.
    """
    if verdict.change is None:
        return ""
    ends = [end for end in (verdict.change, verdict.low, verdict.high) if end is not None]
    reach = 1.15 * max(2 * verdict.smallest, *map(abs, ends))

    def x(share: float) -> float:
        return round(WIDTH / 2 + share / reach * (WIDTH / 2 - RIGHT), 1)

    low, high = x(-verdict.smallest), x(verdict.smallest)
    parts = [
        tag("rect", x=low, y=AXIS_Y - 16, width=round(high - low, 1), height=32, class_="band"),
        tag("line", x1=RIGHT, x2=WIDTH - RIGHT, y1=AXIS_Y, y2=AXIS_Y, class_="axis"),
        tag("line", x1=x(0), x2=x(0), y1=AXIS_Y - 20, y2=AXIS_Y + 20, class_="axis"),
        tag("text", "0", x=x(0), y=AXIS_Y + 36, text_anchor="middle"),
    ]
    if verdict.low is not None and verdict.high is not None:
        ends_x = {"x1": x(verdict.low), "x2": x(verdict.high)}
        parts.append(tag("line", **ends_x, y1=AXIS_Y, y2=AXIS_Y, class_="interval"))
        for end, anchor in ((verdict.low, "end"), (verdict.high, "start")):
            side = -6 if anchor == "end" else 6
            label = text(signed_percent(end))
            parts.append(tag("text", label, x=x(end) + side, y=AXIS_Y + 4, text_anchor=anchor))
    parts.append(tag("circle", cx=x(verdict.change), cy=AXIS_Y, r=6, class_="step"))
    label = text(signed_percent(verdict.change))
    parts.append(tag("text", label, x=x(verdict.change), y=AXIS_Y - 20, text_anchor="middle"))
    words = "95 % interval" if verdict.low is not None else "no interval"
    note = (
        f"Change of the step time, B against A, {words}; the band is ±{percent(verdict.smallest)}."
    )
    return tag(
        "figure",
        _svg(*parts, height=AXIS_HEIGHT, aria_label=note),
        tag("figcaption", text(note)),
    )
