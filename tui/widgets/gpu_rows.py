"""All GPUs of a sample: one line each, or where there is no room one line for all."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from sysbench.core.formatting import UNKNOWN
from sysbench.core.machine.sample import DeviceSample
from sysbench.tui.text import percent
from sysbench.tui.widgets.traces import EIGHTHS, gauge

GIB = 2**30
BAR = 8


def gpu_lines(
    devices: Sequence[DeviceSample], measured: int | None, width: int, height: int
) -> list[Content]:
    """A line for each GPU if ``height`` allows, else how busy each is, on one line.

    Args:
        devices: In the order of their numbers.
        measured: Number of the GPU that is measured, which ``▸`` marks.
        width: Cells of a line.
        height: Lines there are.
    """
    if height < 1 or not devices:
        return []
    if height < len(devices):
        return [_all_on_one_line(devices, measured, width)]
    return [_line(gpu, gpu.index == measured, width) for gpu in devices]


def _line(gpu: DeviceSample, is_measured: bool, width: int) -> Content:
    """``▸0 ███░░░░░ 41 %  31.2/79.2 GiB  612/700 W  1755 MHz  61 °C  power cap``, cut from the
    right where the line is short."""
    mark = ("▸" if is_measured else " ", "bold $accent")
    if gpu.lost:
        return Content.assemble(mark, f"{gpu.index} ", ("stopped answering (lost)", "$error"))
    parts = [
        f"{percent(gpu.utilization, 0):>5}",
        f"{_pair(gpu.memory_used_bytes, gpu.memory_total_bytes, GIB, 1)} GiB",
        f"{_pair(gpu.power_watts, gpu.power_limit_watts, 1, 0)} W",
        f"{_number(gpu.sm_clock_mhz, 1, 0)} MHz",
        f"{_number(gpu.temperature_celsius, 1, 0)} °C",
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
    """``busy ▸0▇97% 1▁0% …``; a GPU that cannot be read has ``?``."""
    pieces = []
    for gpu in devices:
        mark = "▸" if gpu.index == measured else ""
        busy = gpu.utilization
        text = "?" if busy is None else f"{EIGHTHS[min(max(round(busy * 8), 1), 8)]}{busy:.0%}"
        pieces.append(f"{mark}{gpu.index}{text}")
    return Content.assemble(("GPUs ", "$foreground 75%"), " ".join(pieces)[: max(width - 5, 0)])


def _number(value: float | None, unit: float, digits: int) -> str:
    return UNKNOWN if value is None else f"{value / unit:.{digits}f}"


def _pair(value: float | None, most: float | None, unit: float, digits: int) -> str:
    """``612/700``, the second only where it is known."""
    known = _number(value, unit, digits)
    return known if most is None or value is None else f"{known}/{_number(most, unit, digits)}"
