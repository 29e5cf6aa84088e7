"""Lanes over time with a cursor: what ran when, and why nothing ran before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click

from sysbench.core.formatting import format_duration
from sysbench.core.tables.cells import literal
from sysbench.core.trace.classify import idle_label
from sysbench.core.trace.kernel_names import short_kernel_name
from sysbench.core.trace.lane_drawing import Cells, DrawnLane, DrawnLanes, cell_edges
from sysbench.core.trace.lanes import HOST, Lanes
from sysbench.core.trace.scopes import OTHER_PHASE, UNKNOWN_PHASE
from sysbench.tui.glyphs import ascii_only
from sysbench.tui.text import truncate
from sysbench.tui.theme import Swatch, swatch_of
from sysbench.tui.widgets.lanes_text import (
    STATUS_ROWS,
    format_instant,
    gap_text,
    letter_of,
    plain_name,
    status_rows,
    tick_step,
)
from sysbench.tui.widgets.plot import Chart
from sysbench.tui.widgets.traces import BLANK, EIGHTHS, Span, flow_entries, join_spans

NAMED_CELLS = 6
"""An event of at least this width has its name in it."""
MAX_LANE_HEIGHT = 3
TICK_CELLS = 16
KEY_HINT = "+ - zoom  ← → ↑ ↓ move  n p event  enter fit  w all"
HEAD_ROWS = 2
MIN_WIDTH, MIN_HEIGHT, ROOMY_HEIGHT = 30, 6, 12
MIN_MARGIN = 18
UNKNOWN_WORDS = {UNKNOWN_PHASE: "phase unknown", OTHER_PHASE: "in no phase"}
REVERSED = "@"
"""Prefix of the kind of a span with foreground and background swapped."""


class LanesSide(NamedTuple):
    """The lanes of one file; its time 0 is at ``origin`` of the file's times."""

    title: str
    drawn: DrawnLanes
    origin: int


class LaneRow(NamedTuple):
    side: LanesSide
    lane: DrawnLane | None
    label: str


@dataclass(frozen=True, slots=True)
class Extent:
    """The visible part, in nanoseconds of the sides' common time."""

    low: int
    high: int

    @property
    def span(self) -> int:
        return self.high - self.low


class LanesView(Chart, can_focus=True):
    """One file's lanes, or those of two files with one zoom and one cursor."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"chart--dim"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Left", show=False),
        Binding("right", "move(1)", "Right", show=False),
        Binding("shift+left,left_square_bracket", "page(-1)", "Half left", show=False),
        Binding("shift+right,right_square_bracket", "page(1)", "Half right", show=False),
        Binding("up", "lane(-1)", "Lane above", show=False),
        Binding("down", "lane(1)", "Lane below", show=False),
        Binding("home", "end(0)", "Start", show=False),
        Binding("end", "end(1)", "End", show=False),
        Binding("n", "event(1)", "Next event", show=False, id="timeline.next"),
        Binding("p", "event(-1)", "Previous event", show=False, id="timeline.previous"),
        Binding("plus,equals_sign", "zoom(1)", "Zoom in", show=False, id="timeline.zoom-in"),
        Binding("minus", "zoom(-1)", "Zoom out", show=False, id="timeline.zoom-out"),
        Binding("enter,z", "fit", "Fit the event", show=False, id="timeline.fit"),
        Binding("w", "whole", "Whole span", show=False, id="timeline.whole"),
    ]
    DEFAULT_CSS = """
    LanesView {
        min-height: 5;
        padding: 0 1;
        & > .chart--dim { color: $foreground 60%; }
    }
    """

    def __init__(self, files: Mapping[str, Lanes], *, id: str | None = None) -> None:
        """Show files by title; two of them have the times of their tables one above the other."""
        super().__init__(id=id)
        is_pair = len(files) > 1
        self.sides = [
            LanesSide(title, DrawnLanes(lanes), lanes.window[0] if is_pair else lanes.low)
            for title, lanes in files.items()
        ]
        self.rows = [*_rows(self.sides, is_pair=is_pair)]
        self._lanes = [place for place, row in enumerate(self.rows) if row.lane]
        self._chosen = next(
            (number for number, place in enumerate(self._lanes) if self._is_work(place)), 0
        )
        spans = [_shifted(side, side.drawn.lanes.low, side.drawn.lanes.high) for side in self.sides]
        tables = [_shifted(side, *side.drawn.lanes.window) for side in self.sides]
        self.whole = Extent(min(low for low, _ in spans), max(max(high for _, high in spans), 1))
        low = max(min(low for low, _ in tables), self.whole.low)
        high = min(max(high for _, high in tables), self.whole.high)
        self.view = Extent(low, high) if high > low else self.whole
        self.time = self.view.low
        self._first_row = self._margin = self._room = 0
        self._height = 1
        self._is_plain = False
        """Whether letters stand for categories, as colours or textures cannot be seen."""
        self._places: list[int] = []
        self._cells: dict[int, list[list[Span]]] = {}
        self._counts: dict[int, Counter[int]] = {}
        """Cells of each category, by row, as drawn last."""
        self._cells_of: tuple[Extent, int] = self.view, 0

    def _is_work(self, place: int) -> bool:
        lane = self.rows[place].lane
        return lane is not None and lane.lane.kind == "work"

    def draw(self, width: int, height: int) -> list[list[Span]]:
        if not self._lanes or width < MIN_WIDTH or height < MIN_HEIGHT:
            return [[("no timeline in so small a window" if self._lanes else "no lanes", "axis")]]
        labels = max(len(row.label) for row in self.rows if row.lane) + 3
        self._margin = min(labels, max(width // 3, MIN_MARGIN))
        self._is_plain = self.app.no_color or ascii_only()
        self._room = width - self._margin
        if self._cells_of != (self.view, self._room):
            self._cells_of = self.view, self._room
            self._cells.clear()
        status = self._status_rows(width)[: STATUS_ROWS if height >= ROOMY_HEIGHT else 1]
        legend_rows = 0 if height < ROOMY_HEIGHT else 1 if height < 2 * ROOMY_HEIGHT else 2
        tall = height - HEAD_ROWS - legend_rows - len(status)
        self._place_rows(tall)
        lanes = [row for place in dict.fromkeys(self._places) for row in self._lane_rows(place)]
        legend = self._legend(width, legend_rows) if legend_rows else []
        return [self._head(width), self._axis(), *lanes, *status, *legend]

    def _place_rows(self, tall: int) -> None:
        """Choose the rows in view; lanes of work and idle time are higher where there is space."""
        chosen = self._lanes[self._chosen]
        self._first_row = min(max(self._first_row, chosen - tall + 1), chosen)
        self._first_row = max(min(self._first_row, len(self.rows) - tall), 0)
        visible = range(self._first_row, min(self._first_row + tall, len(self.rows)))
        growing = sum(self._can_grow(place) for place in visible)
        extra = (tall - len(visible)) // growing if growing and not self._is_plain else 0
        height = min(1 + extra, MAX_LANE_HEIGHT)
        if height != self._height:
            self._height = height
            self._cells.clear()
        self._places = [
            place for place in visible for _ in range(height if self._can_grow(place) else 1)
        ]

    def _can_grow(self, place: int) -> bool:
        lane = self.rows[place].lane
        return lane is not None and lane.lane.kind in ("work", "idle")

    @property
    def row(self) -> LaneRow:
        return self.rows[self._lanes[self._chosen]]

    @property
    def _column(self) -> int:
        place = (self.time - self.view.low) * self._room // max(self.view.span, 1)
        return min(max(place, 0), self._room - 1)

    def _cell(self) -> tuple[int, int]:
        """The cursor's time and the end of its cell, in nanoseconds."""
        edges = cell_edges(self.view.low, self.view.high, self._room)
        return self.time, max(int(edges[self._column + 1]), self.time + 1)

    def _head(self, width: int) -> list[Span]:
        view, whole = self.view, self.whole
        step = tick_step(view.span, self._room)
        begin, end = (format_instant(time, step) for time in (view.low, view.high))
        cell = max(view.span // self._room, 1)
        spans = [format_duration(ns) for ns in (view.span, whole.span, cell)]
        text = f"{begin} to {end}: {spans[0]} of {spans[1]}, {spans[2]} a cell"
        lanes = [number for number, place in enumerate(self._lanes, 1) if place in self._places]
        if len(lanes) < len(self._lanes):
            text += f" · lanes {lanes[0]} to {lanes[-1]} of {len(self._lanes)}"
        text = truncate(text, width)
        rest = width - cell_len(text) - cell_len(KEY_HINT)
        return [(text, ""), *([(" " * rest + KEY_HINT, "dim")] if rest > 2 else [])]

    def _axis(self) -> list[Span]:
        low, high, room = self.view.low, self.view.high, self._room
        step = tick_step(self.view.span, max(room // TICK_CELLS, 1))
        cells = ["─"] * room
        free = 0
        for time in range(-(-low // step) * step, high, step):
            place, text = (time - low) * room // (high - low), f"┬{format_instant(time, step)}"
            if place >= free and place + len(text) <= room:
                cells[place : place + len(text)] = text
                free = place + len(text) + 1
        spans: list[Span] = [(char, "axis") for char in cells]
        spans[self._column] = ("▼", "cursor")
        return [(" " * self._margin, ""), *join_spans(spans)]

    def _lane_rows(self, place: int) -> list[list[Span]]:
        row = self.rows[place]
        if row.lane is None:
            return [[(truncate(row.label, self._margin + self._room), "text")]]
        label = row.label
        if place == self._places[0] and not label.startswith(row.lane.lane.group):
            label = f"{row.lane.lane.group} {label}"
        is_chosen = place == self._lanes[self._chosen]
        if place not in self._cells:
            height = self._height if self._can_grow(place) else 1
            low, high = self.view.low + row.side.origin, self.view.high + row.side.origin
            drawn = row.lane.cells(low, high, self._room)
            self._counts[place] = Counter(
                number for number in drawn.category.tolist() if number >= 0
            )
            self._cells[place] = self._lane_cells(row.side, row.lane, drawn, height)
        result = []
        for number, line in enumerate(self._cells[place], 1 - len(self._cells[place])):
            cells = list(line)
            char, kind = cells[self._column]
            if is_chosen:
                is_reversed = kind.startswith(REVERSED)
                cells[self._column] = (char, kind[1:] if is_reversed else REVERSED + kind)
            elif char == " " and not kind:
                cells[self._column] = ("│", "cursor")
            text = "" if number else ("▸ " if is_chosen else "  ") + label
            head = set_cell_size(truncate(text, self._margin - 1), self._margin)
            result.append([(head, "point" if is_chosen else "axis"), *join_spans(cells)])
        return result

    def _lane_cells(
        self, side: LanesSide, lane: DrawnLane, drawn: Cells, height: int
    ) -> list[list[Span]]:
        used = [number for number in np.unique(drawn.category).tolist() if number >= 0]
        looks = {number: self._look(side.drawn.text(number)) for number in used}
        columns = [
            [BLANK] * height if number < 0 else self._column_of(looks[number], share, height)
            for number, share in zip(drawn.category.tolist(), drawn.share.tolist(), strict=True)
        ]
        rows = [list(row) for row in zip(*columns, strict=True)]
        first, end = lane.between(self.view.low + side.origin, self.view.high + side.origin)
        if end - first <= self._room:
            for event in range(first, end):
                self._write_event_name(rows, side, lane, event)
        return rows

    def _look(self, category: str) -> Swatch:
        look = swatch_of(category)
        return Swatch(letter_of(category), look.colour) if self._is_plain else look

    def _column_of(self, look: Swatch, share: float, height: int) -> list[Span]:
        """A cell of a lane, top row first: the covered share of it is filled."""
        if self._is_plain:
            glyph = look.glyph if share >= 0.5 else look.glyph.lower()
            return [(glyph, look.colour)]
        eighths = max(1, round(share * 8 * height))
        filled = (min(max(eighths - 8 * row, 0), 8) for row in reversed(range(height)))
        return [
            BLANK if not part else (look.glyph if part == 8 else EIGHTHS[part], look.colour)
            for part in filled
        ]

    def _write_event_name(
        self, rows: list[list[Span]], side: LanesSide, lane: DrawnLane, event: int
    ) -> None:
        low, span, room = self.view.low + side.origin, self.view.span, self._room
        start, stop = int(lane.events.start[event]), int(lane.events.end[event])
        begin = max(-(-(start - low) * room // span), 0)
        end = min((stop - low) * room // span, room)
        if end - begin < NAMED_CELLS:
            return
        name = plain_name(self._event_name(side, lane, event))
        look = swatch_of(side.drawn.text(int(lane.events.category[event])))
        if lane.lane.kind == "idle":
            text = f" {truncate(name, end - begin - 3)} "
            rows[-1][begin : begin + len(text)] = [(char, look.colour) for char in text]
            return
        edge = "▏" if start >= low else ""
        for number, row in enumerate(rows, 1 - len(rows)):
            text = edge if number else edge + name
            text = set_cell_size(truncate(text, end - begin), end - begin)
            if len(text) == end - begin:  # no character of two cells
                row[begin:end] = [(char, REVERSED + look.colour) for char in text]

    def _event_name(self, side: LanesSide, lane: DrawnLane, event: int) -> str:
        name = literal(side.drawn.text(int(lane.events.label[event])))
        return idle_label(name) if lane.lane.kind == "idle" else name

    def _legend(self, width: int, rows: int) -> list[list[Span]]:
        counts: Counter[str] = Counter()
        for place in dict.fromkeys(self._places):
            side, lane, _ = self.rows[place]
            if lane is None or lane.lane.kind not in ("work", "idle", "calls"):
                continue
            for number, count in self._counts[place].items():
                counts[side.drawn.text(number)] += count
        looks = ((self._look(name), idle_label(name)) for name, _ in counts.most_common())
        entries = [
            [(look.glyph, look.colour), (f" {name}", "")]
            for look, name in looks
            if look.glyph != " "
        ]
        return flow_entries(entries, width, rows)

    def _status_rows(self, width: int) -> list[list[Span]]:
        row, (low, high) = self.row, self._cell()
        side, lane = row.side, row.lane
        assert lane is not None
        low, high = low + side.origin, high + side.origin
        event = lane.event_at(low, high)
        where = f"{lane.lane.group} {lane.lane.name}"
        if event < 0:
            gap = side.drawn.gap_at(lane, low)
            is_busy = lane.lane.group != HOST and lane.lane.kind == "work"
            other = f"{lane.lane.group} ran other work here" if is_busy else ""
            when = format_instant(self.time, tick_step(self.view.span, self._room))
            why = gap_text("idle {} here", gap) if gap else other
            return status_rows(f"nothing on {where} at {when}", why, "", width)
        events = lane.events
        start, end = int(events.start[event]), int(events.end[event])
        first, stop = lane.between(low, high)
        name = self._event_name(side, lane, event)
        places = (
            side.drawn.text(int(column[event]))
            for column in (events.phase, events.module, events.operator)
        )
        facts = [
            format_duration(end - start),
            f"from {format_instant(start - side.origin, tick_step(max(end - start, 1), 100))}",
            where,
            *(
                UNKNOWN_WORDS.get(place, literal(place))
                for place in places
                if place and place != name
            ),
        ]
        if stop - first > 1:
            facts.append(f"1 of {stop - first:,} in this cell")
        is_idle = lane.lane.kind == "idle"
        gap = side.drawn.gap_at(lane, start) if is_idle else side.drawn.gap_before(lane, start)
        why = gap_text("idle {} in all" if is_idle else "idle {} before it", gap) if gap else ""
        short = short_kernel_name(name) if lane.lane.group != HOST else name
        title = name if short == name else f"{short} · {name}"
        return status_rows(title, " · ".join(facts), why, width)

    def style_of(self, kind: str, own: Style) -> Style:
        if kind == "dim":
            return self.get_component_rich_style("chart--dim")
        if kind.startswith(REVERSED):
            return super().style_of(kind[1:], own) + Style(reverse=True)
        return super().style_of(kind, own)

    def _show(self, low: int, span: int) -> None:
        """Show a window of this span, moved into the whole."""
        span = min(max(span, self._room, 1), self.whole.span)
        low = min(max(low, self.whole.low), self.whole.high - span)
        self.view = Extent(low, low + span)
        self.redraw()

    def _go(self, time: int) -> None:
        """Move the cursor; move the window if the cursor would leave it."""
        self.time = min(max(time, self.whole.low), self.whole.high - 1)
        view = self.view
        if not view.low <= self.time < view.high:
            cell = max(view.span // max(self._room, 1), 1)
            is_behind = self.time >= view.high
            ahead = self.time - view.high + cell if is_behind else self.time - view.low
            is_near = abs(ahead) < view.span // 4
            self._show(view.low + ahead if is_near else self.time - view.span // 2, view.span)
        self.redraw()

    def action_move(self, by: int) -> None:
        if self._room:
            # Rounded up, so that the time lies in the cell and not in the one before it.
            self._go(self.view.low - (self._column + by) * -self.view.span // self._room)

    def action_page(self, by: int) -> None:
        half = by * self.view.span // 2
        self._show(self.view.low + half, self.view.span)
        self._go(self.time + half)

    def action_lane(self, by: int) -> None:
        self._chosen = min(max(self._chosen + by, 0), max(len(self._lanes) - 1, 0))
        self.redraw()

    def action_end(self, is_last: int) -> None:
        self._go(self.whole.high - 1 if is_last else self.whole.low)

    def action_event(self, by: int) -> None:
        """Go to the start of the next event of the lane, or of the one before."""
        row = self.row
        if row.lane is None:
            return
        start, time = row.lane.events.start, self.time + row.side.origin
        place = int(np.searchsorted(start, time, side="right" if by > 0 else "left"))
        place = place if by > 0 else place - 1
        if 0 <= place < len(start):
            self._go(int(start[place]) - row.side.origin)

    def action_zoom(self, by: int) -> None:
        """Halve the visible span, or double it; the cursor keeps its column."""
        span = self.view.span // 2 if by > 0 else self.view.span * 2
        span = min(max(span, self._room, 1), self.whole.span)
        share = (self.time - self.view.low) * span // max(self.view.span, 1)
        self._show(self.time - share, span)

    def action_fit(self) -> None:
        """Show the event at the cursor with a twentieth of its length around it."""
        row, (low, high) = self.row, self._cell()
        if row.lane is None:
            return
        event = row.lane.event_at(low + row.side.origin, high + row.side.origin)
        if event >= 0:
            events, origin = row.lane.events, row.side.origin
            start, end = int(events.start[event]) - origin, int(events.end[event]) - origin
            margin = (end - start) // 20
            self.time = start
            self._show(start - margin, end - start + 2 * margin)

    def action_whole(self) -> None:
        self._show(self.whole.low, self.whole.span)

    def on_click(self, event: Click) -> None:
        number, column = event.y - HEAD_ROWS, event.x - 1 - self._margin
        if 0 <= number < len(self._places) and self._places[number] in self._lanes:
            self._chosen = self._lanes.index(self._places[number])
        if 0 <= column < self._room:
            self.action_move(column - self._column)

    def in_full(self) -> str:
        lines = ("".join(text for text, _ in row) for row in self._status_rows(10**6))
        return "\n".join(filter(None, lines)) if self._room and self._lanes else ""


def _shifted(side: LanesSide, low: int, high: int) -> tuple[int, int]:
    return low - side.origin, high - side.origin


def _rows(sides: Sequence[LanesSide], *, is_pair: bool) -> Iterator[LaneRow]:
    for side in sides:
        if is_pair:
            yield LaneRow(side, None, side.title)
        group = ""
        for lane in side.drawn.rows:
            same, group = lane.lane.group == group, lane.lane.group
            yield LaneRow(side, lane, lane.lane.name if same else f"{group} {lane.lane.name}")
