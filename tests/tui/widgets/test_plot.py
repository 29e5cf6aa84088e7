"""The level and the cursor of a plot, and telemetry with its cursor and with many GPUs."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from sysbench.core.machine.sample import DeviceSample, HostSample, Sample
from sysbench.tui.widgets.plot import Plot
from sysbench.tui.widgets.telemetry_rows import gpu_lines, place_at, telemetry_lines

HOST = HostSample(cores=8, cpu=None, memory_used_bytes=2**30, memory_total_bytes=2**34)


def sample(second: int, busy: float, gpus: int) -> Sample:
    devices = [
        DeviceSample(index=index, name="NVIDIA H100", utilization=busy * index / 8)
        for index in range(gpus)
    ]
    host = msgspec.structs.replace(HOST, cpu=busy if second else None)
    return Sample(t_ns=second * 10**9, devices=devices, host=host)


def series(gpus: int) -> list[Sample]:
    return [sample(second, second / 10, gpus) for second in range(10)]


class Panel(App[None]):
    def compose(self) -> ComposeResult:
        yield Plot(axis=lambda value: f"{value:.0f}")


async def test_the_level_is_within_the_axis_and_the_cursor_under_its_value() -> None:
    app = Panel()
    async with app.run_test(size=(40, 10)) as pilot:
        plot = app.query_one(Plot)
        plot.show([1.0, 2.0, 3.0], floor=0.0, level=(30.0, "predicted"), cursor=1)
        await pilot.pause()
        rows = [strip.text for strip in plot.render_lines(plot.size.region)]
        (level,) = (number for number, row in enumerate(rows) if "predicted" in row)
        assert level <= 1
        assert max(float(row.split("┤")[0]) for row in rows if "┤" in row) > 30
        foot = rows[-1]
        margin = foot.index("╰") + 1
        assert foot.index("▲") == margin + round((plot.room - 1) / 2)
        assert any(row[foot.index("▲")] == "│" for row in rows[:-1])


@given(st.integers(0, 12), st.integers(10, 160), st.integers(1, 40), st.none() | st.integers(0, 9))
def test_telemetry_keeps_to_its_room(
    gpus: int, width: int, height: int, second: int | None
) -> None:
    cursor_ns = None if second is None else second * 10**9
    drawn = telemetry_lines(series(gpus), [], "auto", width, height, cursor_ns=cursor_ns)
    lines = str(drawn).split("\n")
    assert len(lines) <= max(height, 2)
    assert all(len(line) <= max(width, len("no samples yet")) for line in lines)


def test_values_are_those_at_the_cursor() -> None:
    samples = series(0)
    assert [place_at(samples, t_ns) for t_ns in (-1, 0, 3 * 10**9 + 1, 99 * 10**9)] == [0, 0, 3, 9]
    drawn = str(telemetry_lines(samples, [], "cpu", 60, 12, cursor_ns=4 * 10**9))
    assert "40 %" in drawn and "90 %" not in drawn
    assert "▲" in drawn.split("\n")[-1]


def test_eight_gpus_have_a_line_each_or_one_for_all() -> None:
    devices = series(8)[5].devices
    lines = [str(line) for line in gpu_lines(devices, 2, 80, 8)]
    assert [line[1] for line in lines] == [str(index) for index in range(8)]
    assert [line[0] for line in lines] == [" ", " ", "▸", *" " * 5]
    (one,) = (str(line) for line in gpu_lines(devices, 2, 80, 7))
    assert "▸2" in one and one.count("%") == 8
    assert gpu_lines(devices, 2, 80, 0) == []


def test_a_series_that_begins_later_is_not_mixed_with_another() -> None:
    full = series(1)
    first, *others = (one.devices[0] for one in full)
    known = [first, *(msgspec.structs.replace(one, sm_active=0.5) for one in others)]
    samples = [
        msgspec.structs.replace(one, devices=[gpu]) for one, gpu in zip(full, known, strict=True)
    ]
    drawn = str(telemetry_lines(samples, [], "cuda", 60, 9)).split("\n")
    sm, busy = (next(line for line in drawn if line.startswith(name)) for name in ("SM", "GPU"))
    assert "·" in sm and "·" not in busy
