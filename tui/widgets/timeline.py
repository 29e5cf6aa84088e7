"""Live bytes over time as a stacked area with a cursor."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from sysbench.core.colours import known_look
from sysbench.core.record.record import Timeline
from sysbench.tui.text import amount
from sysbench.tui.theme import Swatch, swatch, swatch_of
from sysbench.tui.widgets.plot import Chart, axis_spans
from sysbench.tui.widgets.traces import BLANK, EIGHTHS, Span, add_axes, join_spans, mark_row

Window = tuple[float, float]
"""Start and end of the visible part in milliseconds."""

SOLID = EIGHTHS[-1]
BUILD = "build"
"""The phase before the first step."""
MAX_ZOOM = 14
"""Number of times that the timeline can be halved."""


def stacking_order(timeline: Timeline) -> list[str]:
    """Categories from the bottom up: always live ones first, then the largest."""
    amounts = {name: values for name, values in timeline.categories.items() if any(values)}
    return sorted(amounts, key=lambda name: (-min(amounts[name]), -max(amounts[name])))


def steps_window(timeline: Timeline) -> Window:
    """The time from the end of the build on; everything if nothing follows it."""
    first, last = timeline.t_ms[0], timeline.t_ms[-1]
    begins = [begin for name, begin, _ in timeline.phases if name != BUILD]
    begin = min(begins, default=first)
    return (begin, last) if first < begin < last else (first, last)


def place_in_steps(timeline: Timeline, t_ms: float) -> str:
    """Phase and step at a time: ``backward of step 2 of 3``; empty outside the known phases."""
    named = [name for name, begin, end in timeline.phases if begin <= t_ms <= end]
    if not named or named[-1] == BUILD:
        return named[-1] if named else ""
    phase = named[-1]
    first = next(name for name, _, _ in timeline.phases if name != BUILD)
    begins = [begin for name, begin, _ in timeline.phases if name == first]
    step = sum(begin <= t_ms for begin in begins)
    return f"{phase} of step {step} of {len(begins)}" if len(begins) > 1 and step else phase


def category_swatches(timeline: Timeline) -> dict[str, Swatch]:
    """Swatches of categories by name; frames of an imported snapshot differ by their place."""
    names = stacking_order(timeline)
    frames = sorted(name for name in names if known_look(name) is None)
    return {
        name: swatch(frames.index(name)) if name in frames else swatch_of(name) for name in names
    }


def column_samples(timeline: Timeline, width: int, window: Window) -> list[int]:
    """For each column the index of its sample with the most live bytes.

    A column without a sample repeats the previous one.
    """
    t_ms = timeline.t_ms
    begin, end = window
    chosen, first = [], bisect_left(t_ms, begin)
    for column in range(width):
        # Half-open range of samples; the last column takes the rest, despite rounding.
        is_last = column == width - 1
        last = bisect_right(t_ms, end if is_last else begin + (end - begin) * (column + 1) / width)
        if last > first:
            chosen.append(max(range(first, last), key=timeline.live_bytes.__getitem__))
            first = last
        else:
            chosen.append(max(first - 1, 0))
    return chosen


def stacked_column(
    layers: Sequence[tuple[int, Swatch]], height: int, bytes_per_row: float
) -> list[Span]:
    """One column, bottom row first; each cell shows the layer that fills most of it.

    The top cell has no texture. Of a textured layer it is dim: another of its hue may be solid.
    """
    cells: list[Span] = []
    total = sum(count for count, _ in layers)
    for row in range(height):
        low, high = row * bytes_per_row, (row + 1) * bytes_per_row
        if low >= total:
            cells.append(BLANK)
            continue
        best, best_bytes, bottom = layers[-1][1], 0.0, 0.0
        for count, look in layers:
            inside = min(bottom + count, high) - max(bottom, low)
            if inside > best_bytes:
                best, best_bytes = look, inside
            bottom += count
        if high > total:
            eighths = max(1, round((total - low) / bytes_per_row * 8))
            part = (EIGHTHS[eighths], best.colour + (" dim" if best.glyph != SOLID else ""))
            cells.append(part if eighths < 8 else (best.glyph, best.colour))
        else:
            cells.append((best.glyph, best.colour))
    return cells


class TimelineView(Chart, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Left", show=False),
        Binding("right", "move(1)", "Right", show=False),
        Binding("shift+left,ctrl+left", "move(-10)", "10 left", show=False),
        Binding("shift+right,ctrl+right", "move(10)", "10 right", show=False),
        Binding("home", "move(-9999)", "Start", show=False),
        Binding("end", "move(9999)", "End", show=False),
        Binding("plus,equals_sign", "zoom(1)", "Zoom in", show=False, id="memory.zoom-in"),
        Binding("minus", "zoom(-1)", "Zoom out", show=False, id="memory.zoom-out"),
        Binding("k", "peak", "To the peak", show=False, id="memory.peak"),
    ]
    DEFAULT_CSS = "TimelineView { min-height: 5; }"

    @dataclass
    class Moved(Message):
        """The cursor is on this sample."""

        sample: int

    def __init__(self, timeline: Timeline, peak_ms: float) -> None:
        """Start with the cursor on the sample nearest to ``peak_ms``."""
        super().__init__()
        self.timeline = timeline
        self.order = stacking_order(timeline)
        self.looks = category_swatches(timeline)
        times = timeline.t_ms
        self.peak = min(range(len(times)), key=lambda index: abs(times[index] - peak_ms))
        self.sample = self.peak
        self._all: Window = (times[0], times[-1])
        self._whole = steps_window(timeline)
        is_in_steps = self._whole[0] <= times[self.peak]
        self._least_zoom = 0 if self._whole == self._all else -1
        self._zoom = 0 if is_in_steps else -1
        self.window = self._whole if is_in_steps else self._all
        self._samples: list[int] = []
        self._margin = 0

    def on_resize(self) -> None:
        self.post_message(self.Moved(self.sample))

    def draw(self, width: int, height: int) -> list[list[Span]]:
        self._samples, tall = [], height - 1
        if width < 20 or tall < 2:
            return []
        high = max(self.timeline.live_bytes) or 1
        ticks = {0: amount(high), tall - 1 - (tall - 1) // 2: amount(high / 2), tall - 1: "0"}
        self._margin = max(map(len, ticks.values()))
        self._samples = column_samples(self.timeline, width - self._margin - 1, self.window)
        columns = []
        for sample in self._samples:
            layers = [
                (self.timeline.categories[name][sample], self.looks[name]) for name in self.order
            ]
            columns.append(stacked_column(layers, tall, high / tall))
        rows = [list(row) for row in zip(*columns, strict=True)][::-1]
        cursor = self.cursor
        for row in rows:
            if not row[cursor][1]:
                row[cursor] = ("│", "cursor")
        foot = axis_spans(self._phase_marks(len(columns)), cursor)
        return add_axes([join_spans(row) for row in rows], ticks, foot, "axis")

    def _phase_marks(self, room: int) -> str:
        first, last = self.window
        span = (last - first) or 1.0
        marks = [
            (min(max(int((begin - first) / span * room), 0), room - 1), name)
            for name, begin, end in self.timeline.phases
            if begin <= last and end >= first
        ]
        return mark_row(marks, room)

    @property
    def cursor(self) -> int:
        return min(
            range(len(self._samples)),
            key=lambda column: abs(self._samples[column] - self.sample),
            default=0,
        )

    def action_move(self, by: int) -> None:
        if not self._samples:
            return
        column, room = self.cursor + by, len(self._samples)
        t_ms, (begin, end) = self.timeline.t_ms, self.window
        if 0 <= column < room or self._zoom <= 0:
            sample = self._samples[min(max(column, 0), room - 1)]
        else:
            sample = bisect_right(t_ms, t_ms[self.sample] + by * (end - begin) / room) - 1
        # A column shows its highest sample, which may be at or before the cursor's.
        sample = max(sample, self.sample + 1) if by > 0 else min(sample, self.sample - 1)
        self._go(min(max(sample, 0), len(t_ms) - 1))

    def action_zoom(self, by: int) -> None:
        """Halve the visible span ``by`` times, or double it; the cursor keeps its position.

        One step below the steps as a whole the build is shown too.
        """
        (first, last), (begin, end) = self._whole, self.window
        self._zoom = min(max(self._zoom + by, self._least_zoom), MAX_ZOOM)
        cursor_ms = self.timeline.t_ms[self.sample]
        if not self._zoom and cursor_ms < first:  # the steps as a whole are without the cursor
            self._zoom = 1 if by > 0 else -1
        span = (last - first) / 2 ** max(self._zoom, 0)
        share = (cursor_ms - begin) / (end - begin) if end > begin else 0.0
        self._show(cursor_ms - share * span, span)

    def _show(self, begin: float, span: float) -> None:
        first, last = self._all
        begin = min(max(begin, first), last - span)
        if self._zoom > 0:
            self.window = (begin, begin + span)
        else:
            self.window = self._all if self._zoom else self._whole
        self.redraw()

    def action_peak(self) -> None:
        self._go(self.peak)

    def _go(self, sample: int) -> None:
        self.sample = sample
        begin, end = self.window
        cursor_ms = self.timeline.t_ms[sample]
        if not begin <= cursor_ms <= end:
            self._zoom = self._zoom or self._least_zoom  # left of the steps is the build
            self._show(cursor_ms - (end - begin) / 2, end - begin)
        self.redraw()
        self.post_message(self.Moved(sample))

    def on_click(self, event: object) -> None:
        x = getattr(event, "x", 0) - self._margin - 1
        if 0 <= x < len(self._samples):
            self._go(self._samples[x])
