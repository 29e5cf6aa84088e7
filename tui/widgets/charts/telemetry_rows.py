"""Telemetry as sparklines over one time axis, the stages of the run marked below."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from ....core.machine.telemetry.sample import Sample
from ...live.sensors import Reading, readings
from .plot import mark_row
from .traces import block_rows, fitted

NAME_WIDTH = 9
TEXT_WIDTH = 10
TALLEST = 6


def telemetry_lines(
    samples: Sequence[Sample],
    marks: Sequence[tuple[int, str]],
    device: str,
    width: int,
    height: int,
) -> Content:
    """The most informative series that fit into ``height`` lines, and the line of marks.

    Args:
        samples: In order of time, over the whole width.
        marks: ``t_ns`` and label of each stage that began.
        device: The run's device: its series come first.
        width: Cells of a line.
        height: Lines to fill; a series is one to six lines tall.
    """
    room = width - NAME_WIDTH - TEXT_WIDTH - 1
    if not samples or room < 4:
        return Content.styled("no sample yet", "$foreground 60%")
    table = [readings(sample, device) for sample in samples]
    shown = table[-1][: max(height - 1, 1)]
    tall = min(max((height - 1) // len(shown) - 1, 1), TALLEST)
    gap = tall > 1
    lines: list[Content] = []
    for number, newest in enumerate(shown):
        series = [row[number] if number < len(row) else None for row in table]
        values = [reading.value if reading else None for reading in series]
        lines += _series_lines(newest, fitted(values, room), tall)
        if gap:
            lines.append(Content(""))
    places = [(_column(samples, t_ns, room), label) for t_ns, label in marks]
    row = " " * NAME_WIDTH + mark_row(places, room)
    return Content("\n").join([*lines, Content.styled(row, "$foreground 50%")])


def _series_lines(newest: Reading, values: Sequence[float | None], tall: int) -> list[Content]:
    """The lines of one series, with its name and newest value on the last."""
    high = newest.full or max((v for v in values if v is not None), default=1.0) or 1.0
    rows = block_rows(values, tall, 0.0, high)
    lines = [Content.assemble(" " * NAME_WIDTH, (row, "$accent")) for row in rows[:-1]]
    foot = Content.assemble(
        (f"{newest.name:<{NAME_WIDTH}}", "$foreground 75%"),
        (rows[-1], "$accent"),
        f" {newest.text:>{TEXT_WIDTH}}",
    )
    return [*lines, foot]


def _column(samples: Sequence[Sample], t_ns: int, room: int) -> int:
    """The column of an instant."""
    before = sum(sample.t_ns < t_ns for sample in samples)
    return min(before * room // len(samples), room - 1)
