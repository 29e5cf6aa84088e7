"""The verdict view of Compare: interval on a number line, rounds in order, conditions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import msgspec
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from sysbench.core.compare.bounds import FIRST_LOOK, FIRST_PAIR_LOOK
from sysbench.core.compare.gate_rule import gate_line
from sysbench.core.compare.nodes import Difference
from sysbench.core.formatting import counted
from sysbench.core.record.environment import is_simulated
from sysbench.core.tables.cells import known_columns, literal
from sysbench.core.tables.comparison_passages import CHANGE_TIMES, doubtful_sentences, verdict_text
from sysbench.core.tables.tree_rows import TREES, Cut, change_tables
from sysbench.tui.commands.comparison_report import DROPPED
from sysbench.tui.commands.text_lines import table_lines
from sysbench.tui.live.pair_watch import Reading
from sysbench.tui.screens.compare_rows import READING
from sysbench.tui.screens.compare_text import (
    QUIET,
    STYLES,
    condition_lines,
    rounds_words,
    spread_words,
    verdict_contents,
)
from sysbench.tui.screens.work_screen import UNFOLDED
from sysbench.tui.text import signed_percent, significant, time_of_day
from sysbench.tui.widgets.drawing import hanging
from sysbench.tui.widgets.traces import centre, extent, place_labels

MAX_GAP = 4
"""Maximum cells between two rounds."""


class PlacedRound(NamedTuple):
    ms: float
    letter: str


def round_rows(rounds: Sequence[PlacedRound], width: int, height: int) -> list[tuple[str, str]]:
    """Axis and cells of ``height`` rows, slowest rounds on top; later rounds hide earlier ones."""
    if not rounds or height < 2:
        return []
    low, high = extent([row.ms for row in rounds])
    digits = _digits(low, high)
    ticks = {
        row: significant(high - (high - low) * row / (height - 1), digits)
        for row in {0, (height - 1) // 2, height - 1}
    }
    margin = max(map(len, ticks.values()))
    room = width - margin - 2
    if room < 2:
        return []
    apart = min(MAX_GAP, (room - 1) / max(len(rounds) - 1, 1))
    cells = [[" "] * room for _ in range(height)]
    for place, row in enumerate(rounds):
        level = round((high - row.ms) / (high - low) * (height - 1))
        cells[level][round(place * apart)] = row.letter
    return [
        (f"{ticks.get(level, ''):>{margin}}{'┤' if level in ticks else '│'} ", "".join(line))
        for level, line in enumerate(cells)
    ]


def _digits(low: float, high: float) -> int:
    """Significant digits with which the ends of the axis differ."""
    digits = 3
    while digits < 7 and significant(low, digits) == significant(high, digits):
        digits += 1
    return digits


ZERO, BAND, REACH, ACROSS, LOW_END, HIGH_END = "│", "░", "━", "┼", "├", "┤"
ESTIMATE, UNTESTED, DOT = "●", "◇", "○"
BEFORE, BEYOND = "◂", "▸"
MANY = "+"
"""Mark above a full column of dots."""
_ROOM = 0.05
_DOTS_REACH = 1.0
"""Maximum extension of the line for dots, as a multiple of its length."""
_LABEL_CELLS = 12


class MarkLook(NamedTuple):
    change: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class NumberLine:
    """Changes from ``low`` to ``high``, as shares, on ``width`` cells."""

    low: float
    high: float
    width: int

    def column(self, value: float) -> int:
        """Cell of a value; -1 or ``width`` outside the line."""
        if value < self.low:
            return -1
        if value > self.high:
            return self.width
        return round((value - self.low) / (self.high - self.low) * (self.width - 1))


def line_over(look: MarkLook, smallest: float, dots: Sequence[float], width: int) -> NumberLine:
    """A line that contains the interval, zero and the smallest difference that matters.

    Dots extend it up to a limit, so that the interval stays visible.
    """
    ends = [end for end in (look.low, look.high) if end is not None]
    values = [0.0, -1.3 * smallest, 1.3 * smallest, look.change, *ends]
    low, high = min(values), max(values)
    reach = _DOTS_REACH * (high - low)
    if dots:
        low, high = max(min(low, *dots), low - reach), min(max(high, *dots), high + reach)
    room = _ROOM * (high - low)
    return NumberLine(low - room, high + room, width)


def base_row(line: NumberLine, smallest: float) -> list[str]:
    zero = line.column(0.0)
    reach = max(1, line.column(smallest) - zero)
    cells = [BAND if abs(cell - zero) <= reach else " " for cell in range(line.width)]
    cells[zero] = ZERO
    return cells


def look_row(line: NumberLine, look: MarkLook, smallest: float) -> str:
    """The estimate and its interval; arrows mark what is outside the line."""
    cells = base_row(line, smallest)
    if look.low is not None and look.high is not None:
        first, last = line.column(look.low), line.column(look.high)
        for cell in range(max(first, 0), min(last, line.width - 1) + 1):
            cells[cell] = ACROSS if cells[cell] == ZERO else REACH
        if first < line.width:
            cells[max(first, 0)] = LOW_END if first >= 0 else BEFORE
        if last >= 0:
            cells[min(last, line.width - 1)] = HIGH_END if last < line.width else BEYOND
    place = line.column(look.change)
    if place < 0 or place >= line.width:
        cells[0 if place < 0 else -1] = BEFORE if place < 0 else BEYOND
    else:
        cells[place] = UNTESTED if look.low is None else ESTIMATE
    return "".join(cells)


def dot_rows(line: NumberLine, dots: Sequence[float], height: int) -> list[str]:
    """Dots stacked above their values; those outside the line are at its ends."""
    counts = Counter(min(max(line.column(dot), 0), line.width - 1) for dot in dots)
    tall = min(height, max(counts.values(), default=0))
    rows = []
    for level in range(tall, 0, -1):
        cells = [" "] * line.width
        for column, count in counts.items():
            if count >= level:
                cells[column] = MANY if level == height and count > height else DOT
        rows.append("".join(cells))
    return rows


def axis_rows(line: NumberLine) -> tuple[str, str]:
    step = _tick_step(line)
    digits = max(0, -math.floor(math.log10(100 * step) + 1e-9))
    cells, labels = ["─"] * line.width, []
    for number in range(math.ceil(line.low / step), math.floor(line.high / step) + 1):
        column = line.column(number * step)
        cells[column] = "┴" if number else "┼"
        text = f"{100 * number * step:+.{digits}f} %" if number else "0"
        labels.append((centre(column, text, line.width), text))
    return "".join(cells), place_labels(labels, line.width, " ")


def _tick_step(line: NumberLine) -> float:
    """The smallest of 1, 2 and 5 times a power of ten whose labels fit."""
    least = (line.high - line.low) * _LABEL_CELLS / line.width
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def evenly_spaced(count: int, most: int) -> list[int]:
    """At most ``most`` evenly spaced indices below ``count``, including the last."""
    if count <= most or most < 2:
        return list(range(max(0, count - max(most, 0)), count))
    return [round(row * (count - 1) / (most - 1)) for row in range(most)]


FAINT = "$foreground 40%"
MARGIN = 5
"""Cells left of the number line, for the block number."""
NUMBERS_FROM = 70
"""From this width on a row of the number line also has its numbers."""
DOTS_HIGH = 3
ADVICE = "b: run an A/B test"
"""Next step if no experiment measured both."""
CHANGE = "Change of the step time, B vs A"
MIN_CHANGE = 0.02
"""Share of all changes below which rows are summed."""
FOLDED_ROUNDS = 5
"""Rows of the rounds' plot on a short screen, so that it fits below the change."""


class Painted(Static):
    def __init__(self, title: str, *, id: str) -> None:
        super().__init__(id=id, classes="panel", markup=False)
        self.border_title = title
        self.reading: Reading | None = None

    def show(self, reading: Reading) -> None:
        self.reading = reading
        self.paint()

    def on_resize(self) -> None:
        self.paint()

    def paint(self) -> None:
        width = self.content_size.width
        if self.reading is not None and width > 0:
            self.update(Content("\n").join(self.lines(self.reading, width)))

    def lines(self, reading: Reading, width: int) -> list[Content]:
        raise NotImplementedError


class Words(Painted):
    def lines(self, reading: Reading, width: int) -> list[Content]:
        verdict, report = reading.verdict, reading.report
        if reading.comparison.of_files:
            texts = [verdict_text(reading.comparison).headline]
            texts += map(literal, doubtful_sentences(reading.a, reading.b))
            return [line for text in texts for line in hanging(Content(""), text, width, "bold")]
        can_measure = not any(is_simulated(run.environment) for run in (reading.a, reading.b))
        if report is None and verdict.verdict == "not decidable" and can_measure:
            verdict = msgspec.structs.replace(verdict, next=ADVICE)
        lines = verdict_contents(verdict, width)
        if report is not None and report.gate is not None:
            lines += hanging(Content("  "), literal(gate_line(report.gate)), width)
        first = FIRST_PAIR_LOOK if _what(reading) == "pair" else FIRST_LOOK
        if report is not None and len(reading.looks) < first and not verdict.differs:
            text = f"  the first look is after {counted(first, _what(reading))}"
            lines.append(Content.styled(text, QUIET))
        return lines


class ChangePanel(Painted):
    """The change with its interval on a number line, after each block."""

    def lines(self, reading: Reading, width: int) -> list[Content]:
        verdict = reading.verdict
        if verdict.change is None:
            return [Content.styled(f"No change to show: {verdict.why}", QUIET)]
        intervals = [row.interval for row in reading.looks]
        looks = [MarkLook(row.change, row.low, row.high) for row in intervals]
        what = _what(reading)
        final = MarkLook(verdict.change, verdict.low, verdict.high)
        figures = [f"  {_figures(look)}" for look in looks if width >= NUMBERS_FROM]
        room = width - MARGIN - max(map(len, figures), default=0)
        if room < 20:
            return []
        dots = [row.alone for row in reading.looks]
        height = DOTS_HIGH if is_side_by_side(self) else DOTS_HIGH - 1
        line = line_over(final, verdict.smallest, dots, room)
        style = STYLES[verdict.verdict]
        lines = [Content(" " * MARGIN + row) for row in dot_rows(line, dots, height)]
        lines.append(" " * MARGIN + _drawn(look_row(line, final, verdict.smallest), style))
        for row in axis_rows(line):
            lines.append(Content.styled(" " * MARGIN + row, QUIET))
        mark = f"{UNTESTED} change, not tested"
        if final.low is not None:
            mark = f"├{ESTIMATE}┤ change, 95 %"
        band = f"{BAND} within ±{100 * verdict.smallest:g} %"
        self.border_subtitle = "  ".join([*([f"{DOT} a {what}"] if looks else []), mark, band])
        is_wall = reading.a.timing is not None and reading.a.timing.of_command
        title = CHANGE.replace("step time", "wall time") if is_wall else CHANGE
        self.border_title = title
        if len(looks) < 2:
            return lines
        if is_folded(self):
            self.border_title = f"{title} · L: after each {what}"
            return lines
        lines.append(Content.styled(f"after N {what}s", QUIET))
        for place in evenly_spaced(len(looks), self._rows()):
            row = look_row(line, looks[place], verdict.smallest)
            lines.append(
                Content.styled(f"{place + 1:>{MARGIN - 1}} ", QUIET)
                + _drawn(row, style if place == len(looks) - 1 else "")
                + Content.styled(figures[place] if figures else "", QUIET)
            )
        return lines

    def _rows(self) -> int:
        return max(6, self.screen.size.height - (18 if is_side_by_side(self) else 26))


class RoundsPanel(Painted):
    def lines(self, reading: Reading, width: int) -> list[Content]:
        rounds = sorted(
            [*(("A", row) for row in reading.rounds_a), *(("B", row) for row in reading.rounds_b)],
            key=lambda pair: pair[1].started_ns,
        )
        timed = [(side, row) for side, row in rounds if row.median_ms]
        counting = sum(row.counts for _, row in timed)
        self.border_title = (
            f"Rounds in order, ms · {rounds_words(counting, len(rounds) - counting)}"
        )
        if len(timed) < 2:
            return [Content.styled("No rounds yet.", QUIET)]
        placed = [
            PlacedRound(row.median_ms or 0.0, side if row.counts else side.lower())
            for side, row in timed
        ]
        height = max(7, self.screen.size.height - 28) if is_side_by_side(self) else 7
        if is_folded(self):
            height = FOLDED_ROUNDS
        lines = [
            Content.styled(axis, QUIET) + _letters(text)
            for axis, text in round_rows(placed, width, height)
        ]
        first, last = (time_of_day(timed[at][1].started_ns) for at in (0, -1))
        words = [f"{first} to {last}"]
        words += [text for text in [spread_words(reading.verdict)] if text]
        if any(not row.counts for _, row in timed):
            words.append("a b excluded")
        return [*lines, Content.styled(" · ".join(words), QUIET)]


class ChangesPanel(Painted):
    difference: Difference | None = None
    is_perturbed = False

    def show_difference(self, difference: Difference | None, *, perturbed: bool) -> None:
        self.difference, self.is_perturbed = difference, perturbed
        self.display = difference is None or bool(difference.summary)
        self.paint()

    def lines(self, reading: Reading, width: int) -> list[Content]:
        rows = self.difference
        if rows is None:
            return [Content.styled(READING, QUIET)]
        lines = []
        for text in rows.summary:
            lines += hanging(Content(""), literal(text), width)
        # Rows that explain nothing stay in their own tab.
        shown = msgspec.structs.replace(rows, time=None if rows.unexplained else rows.time)
        for table in change_tables(shown, Cut(depth=1, least=MIN_CHANGE)):
            lines += [Content(""), Content.styled(table.title, "bold")]
            marked = CHANGE_TIMES if self.is_perturbed and table.name == TREES[0] else ()
            cells = table_lines(
                table, width, columns=known_columns(table), drop=DROPPED, perturbed=marked
            )
            lines += [Content.assemble(*line) for line in cells]
        return lines


class ConditionsPanel(Painted):
    def lines(self, reading: Reading, width: int) -> list[Content]:
        if len([*reading.rounds_a, *reading.rounds_b]) < 2:
            return [Content.styled("No rounds yet.", QUIET)]
        return list(condition_lines(reading.conditions, width))


class VerdictView(VerticalScroll, can_focus=True):
    def compose(self) -> ComposeResult:
        words = Words("", id="words")
        yield words.remove_class("panel")
        with Horizontal(id="evidence"):
            with Vertical(id="left"):
                yield ChangePanel(CHANGE, id="change")
                yield ChangesPanel("What changed · one traced process each", id="changes")
            with Vertical(id="right"):
                yield RoundsPanel("Rounds", id="rounds")
                yield ConditionsPanel("Conditions", id="conditions")

    def show(self, reading: Reading) -> None:
        for panel in self.query(Painted):
            panel.show(reading)
        of_files = reading.comparison.of_files
        self.set_class(of_files, "-files")
        for name in ("#change", "#right"):
            self.query_one(name).display = not of_files

    def show_difference(self, difference: Difference | None, *, perturbed: bool = False) -> None:
        self.query_one(ChangesPanel).show_difference(difference, perturbed=perturbed)

    def paint(self) -> None:
        for panel in self.query(Painted):
            panel.paint()


def is_folded(panel: Widget) -> bool:
    """Whether a short screen hides the earlier looks, to leave space for the rounds."""
    screen = panel.screen
    return screen.has_class("-short") and not screen.has_class(UNFOLDED)


def is_side_by_side(panel: Widget) -> bool:
    return not panel.screen.has_class("-narrow")


def _what(reading: Reading) -> str:
    """What the experiment judges after: ``pair`` or ``block``."""
    return "pair" if reading.report is not None and reading.report.method == "duet" else "block"


def _figures(look: MarkLook) -> str:
    change = signed_percent(look.change)
    if look.low is None or look.high is None:
        return f"{change}, no interval yet"
    return f"{change} ({signed_percent(look.low)} to {signed_percent(look.high)})"


def _drawn(row: str, style: str) -> Content:
    return Content("").join(
        Content.styled("".join(part), FAINT if faint else style)
        for faint, part in groupby(row, key=lambda cell: cell in f" {BAND}│")
    )


def _letters(text: str) -> Content:
    styles = {"A": "", "B": "bold $accent", "a": FAINT, "b": FAINT}
    return Content("").join(
        Content.styled("".join(part), styles.get(letter, "")) for letter, part in groupby(text)
    )
