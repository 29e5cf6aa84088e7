"""Telemetry over one time axis with the stages of the run below; a list of several GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from sysbench.core.machine.sample import DeviceSample, Sample
from sysbench.tui.live.sensors import SensorReading, device_of, of_gib, of_limit, readings, units
from sysbench.tui.text import percent
from sysbench.tui.widgets.traces import EIGHTHS, block_rows, gauge, line_rows, mark_row, resample

NAME_WIDTH = 9
TEXT_WIDTH = 10
TALL = 3
"""Height from which a series is drawn as a line instead of blocks."""
MAX_LINES = 20
"""Maximum height of a series: two fill the panel of 200x50."""
MIN_SERIES = 2
"""Series that are shown before the list of all GPUs."""


def telemetry_lines(
    samples: Sequence[Sample],
    marks: Sequence[tuple[int, str]],
    device: str,
    width: int,
    height: int,
    *,
    cursor_ns: int | None = None,
) -> Content:
    """The most informative series that fit into ``height`` lines, and the line of marks.

    The series of ``device`` come first; the values are those of the last sample before the cursor.
    """
    room = width - NAME_WIDTH - TEXT_WIDTH - 1
    if not samples or room < 4:
        return Content.styled("no samples yet", "$foreground 60%")
    index = len(samples) - 1 if cursor_ns is None else place_at(samples, cursor_ns)
    # By name: a device may report more sensors from its second sample on.
    table = [{sensor.name: sensor for sensor in readings(sample, device)} for sample in samples]
    gpus = _gpus(samples[index], device, width, height - 1 - MIN_SERIES)
    left = height - 1 - len(gpus)
    shown = [*table[-1].values()][: max(left, 1)]
    rooms = _rooms(len(shown), left)
    column = None if cursor_ns is None else _column_of(index, len(samples), room)
    lines: list[Content] = []
    for newest, rows in zip(shown, rooms, strict=True):
        series = [row.get(newest.name) for row in table]
        values = [reading.value if reading else None for reading in series]
        shown_reading = series[index] or newest._replace(value=None)
        tall = min(rows - 1, MAX_LINES) if rows > TALL else 1
        lines += _series_lines(shown_reading, values, tall, room, column)
        if tall > 1:
            lines.append(Content(""))
    places = [(_column(samples, t_ns, room), label) for t_ns, label in marks]
    row = mark_row(places, room)
    if column is not None:
        row = f"{row[:column]}▲{row[column + 1 :]}"
    foot = Content.styled(" " * NAME_WIDTH + row, "$foreground 50%")
    return Content("\n").join([*gpus, *lines, foot])


def _rooms(count: int, height: int) -> list[int]:
    """Lines of each series: equal if all can be tall, else the first ones are tall."""
    if height // count > TALL:
        return [height // count] * count
    tall_ones = max(height - count, 0) // TALL
    return [TALL + 1] * tall_ones + [1] * (count - tall_ones)


def place_at(samples: Sequence[Sample], t_ns: int) -> int:
    """Index of the last sample at or before ``t_ns``; 0 if all are later."""
    return max(sum(sample.t_ns <= t_ns for sample in samples) - 1, 0)


def _gpus(sample: Sample, device: str, width: int, height: int) -> list[Content]:
    if len(sample.devices) < 2:
        return []
    measured = device_of(sample, device)
    return gpu_lines(sample.devices, measured.index if measured else None, width, height)


def _series_lines(
    reading: SensorReading, values: Sequence[float | None], tall: int, room: int, column: int | None
) -> list[Content]:
    known = [value for value in values if value is not None]
    high = reading.full or max(known, default=1.0) or 1.0
    before = next((n for n, value in enumerate(values) if value is not None), len(values))
    is_line = tall >= TALL and before + len(known) == len(values) and len(known) > 0
    if is_line:
        # The first sample has no CPU share yet.
        unknown = before * room // len(values)
        drawn = line_rows(known, room - unknown, tall, 0.0, high)
        rows = [" " * unknown + row for row in drawn]
    else:
        rows = block_rows(resample(values, room), tall, 0.0, high)
    if column is not None:
        rows = [_pointed(row, column) for row in rows]
    edge = "│" if is_line else " "
    label = NAME_WIDTH - 1
    names = [" " * label] * (tall - 1) + [f"{reading.name:<{label}}"]
    if is_line:
        names[0] = f"{reading.full_text:>{label}}"[:label]
    lines = [
        Content.assemble((name + edge, "$foreground 75%"), (row, "$accent"))
        for name, row in zip(names, rows, strict=True)
    ]
    lines[-1] += Content(f" {reading.text:>{TEXT_WIDTH}}")
    return lines


def _pointed(row: str, column: int) -> str:
    """The row with the cursor's line, unless the series is there."""
    return row if row[column : column + 1] != " " else f"{row[:column]}│{row[column + 1 :]}"


def _column(samples: Sequence[Sample], t_ns: int, room: int) -> int:
    return _column_of(sum(sample.t_ns < t_ns for sample in samples), len(samples), room)


def _column_of(index: int, count: int, room: int) -> int:
    return min(index * room // count, room - 1)


BAR = 8


def gpu_lines(
    devices: Sequence[DeviceSample], measured: int | None, width: int, height: int
) -> list[Content]:
    """A line for each GPU if ``height`` allows, else one line with the load of each; ``▸`` marks
    the measured one."""
    if height < 1 or not devices:
        return []
    if height < len(devices):
        return [_all_on_one_line(devices, measured, width)]
    return [_line(gpu, gpu.index == measured, width) for gpu in devices]


def _line(gpu: DeviceSample, is_measured: bool, width: int) -> Content:
    """``▸0 ███░░░░░ 41 %  31.2/79.2 GiB  612/700 W  1755 MHz  61 °C  power cap``"""
    mark = ("▸" if is_measured else " ", "bold $accent")
    if gpu.lost:
        return Content.assemble(mark, f"{gpu.index} ", ("stopped answering (lost)", "$error"))
    parts = [
        f"{percent(gpu.utilization, 0):>5}",
        of_gib(gpu.memory_used_bytes, gpu.memory_total_bytes),
        of_limit(gpu.power_watts, gpu.power_limit_watts),
        units(gpu.sm_clock_mhz, "MHz"),
        units(gpu.temperature_celsius, "°C"),
        " ".join(gpu.clock_reasons or ()),
    ]
    line = Content.assemble(
        mark, f"{gpu.index} ", (gauge(gpu.utilization or 0.0, BAR), "$accent"), f" {parts[0]}"
    )
    for part in parts[1:]:
        if part and len(line) + 2 + len(part) <= width:
            line += Content.styled(f"  {part}", "" if is_measured else "$foreground 70%")
    return line


def _all_on_one_line(devices: Sequence[DeviceSample], measured: int | None, width: int) -> Content:
    """``GPUs ▸0▇97% 1▁0% 2?``; ``?`` is a GPU that cannot be read."""
    pieces = []
    for gpu in devices:
        mark = "▸" if gpu.index == measured else ""
        busy = gpu.utilization
        text = "?" if busy is None else f"{EIGHTHS[min(max(round(busy * 8), 1), 8)]}{busy:.0%}"
        pieces.append(f"{mark}{gpu.index}{text}")
    return Content.assemble(("GPUs ", "$foreground 75%"), " ".join(pieces)[: max(width - 5, 0)])
