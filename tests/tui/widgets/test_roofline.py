"""The roofline picture: every point is in it, nothing leaves its room."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from sysbench.core.record.environment import Roof
from sysbench.core.trace.roofline import RoofPoint
from sysbench.tui.glyphs import to_ascii
from sysbench.tui.widgets.roofline_plot import LogCanvas, Range, RooflinePlot, roofline_rows

ROOF = Roof(precision="bf16", peak_flops=989.4e12, peak_source="table", bandwidth=3.35e12)


def point(label: str, intensity: float, rate: float, of_roof: float | None = 0.5) -> RoofPoint:
    """A group that reached a number of FLOP/s in a millisecond."""
    flops = rate * 1e-3
    return RoofPoint(
        label=label,
        phase="",
        ns=1e6,
        share=0.1,
        known=1.0,
        flops=flops,
        moved_bytes=flops / intensity,
        at_roof_ns=None if of_roof is None else of_roof * 1e6,
        bound=None if of_roof is None else "memory",
    )


POINTS = [
    point("gemm", 600, 620e12),
    point("attention", 280, 180e12),
    point("elementwise", 0.13, 0.25e12),
    point("softmax", 0.6, 0.4e12),
]


def texts(
    points: list[RoofPoint], roof: Roof | None, width: int, height: int, note: str = "a note"
) -> list[str]:
    rows = roofline_rows(points, roof, note, width, height)
    return ["".join(text for text, _ in row) for row in rows]


@pytest.mark.parametrize(("width", "height"), [(60, 12), (80, 24), (110, 20), (200, 50)])
def test_every_point_the_roof_and_the_scales_are_in_the_picture(width: int, height: int) -> None:
    rows = texts(POINTS, ROOF, width, height)
    assert len(rows) <= height
    assert all(len(row) <= width for row in rows)
    picture = "\n".join(rows)
    for letter, one in zip("abcd", POINTS, strict=True):
        assert f"{letter} {one.label}" in picture
    drawn = [row.partition("│")[2] + row.partition("┤")[2] for row in rows]
    plotted = "".join(row[: width - 52] if width >= 110 else row for row in drawn)
    assert all(letter in plotted for letter in "abcd")
    assert "989 TFLOP/s bf16" in picture
    assert "3.35 TB/s" in picture
    assert "FLOP/s│" in picture
    assert "FLOP/B" in picture
    assert "100" in picture


def test_faster_work_stands_higher_and_denser_work_to_the_right() -> None:
    rows = texts(POINTS, ROOF, 80, 24)
    plot = [row for row in rows if "│" in row or "┤" in row]
    place = {
        letter: (column, row)
        for row, text in enumerate(plot)
        for column, letter in enumerate(text)
        if letter in "abcd" and column > 8 and text[column - 1] in " " + _BRAILLE
    }
    assert place["a"][1] < place["b"][1] < place["c"][1]
    assert place["a"][0] > place["b"][0] > place["d"][0] > place["c"][0]


_BRAILLE = "".join(chr(0x2800 + dots) for dots in range(256))


def test_without_a_roof_the_points_stand_alone_with_their_rates() -> None:
    rows = texts([point("gemm", 40, 60e9, None)], None, 60, 12, "no roof: a CPU")
    picture = "\n".join(rows)
    assert rows[0] == "no roof: a CPU"
    assert "a gemm 60 GFLOP/s" in picture
    assert not set(picture) & set(_BRAILLE)


def test_nothing_to_draw_is_said() -> None:
    assert texts([], ROOF, 60, 12)[-1] == "no work with known FLOPs and bytes"
    assert "no work" in texts([point("copy", 1.0, 0.0)], ROOF, 60, 12)[-1]


def test_a_bandwidth_that_is_not_known_leaves_the_peak() -> None:
    flat = Roof(precision="fp32", peak_flops=1e12, peak_source="given")
    picture = "\n".join(texts(POINTS[2:], flat, 60, 12))
    assert "1 TFLOP/s fp32" in picture
    assert "TB/s" not in picture


positive = st.floats(1e-6, 1e6)


@given(
    st.lists(st.tuples(positive, st.floats(1.0, 1e16)), max_size=30),
    st.integers(1, 130),
    st.integers(1, 40),
)
def test_any_points_fit_any_room(
    places: list[tuple[float, float]], width: int, height: int
) -> None:
    points = [point(f"group {index}", *place) for index, place in enumerate(places)]
    rows = texts(points, ROOF, width, height)
    assert len(rows) <= height
    assert all(to_ascii(row).isascii() and len(to_ascii(row)) == len(row) for row in rows)
    if width >= 60:
        assert all(len(row) <= width for row in rows)


@given(positive, st.floats(2, 1e6), st.floats(0, 1))
def test_a_place_on_an_axis_and_back(low: float, factor: float, part: float) -> None:
    axis = Range(low, low * factor)
    assert axis.part(axis.value(part)) == pytest.approx(part, abs=1e-9)
    assert all(low * 0.999 <= value <= low * factor * 1.001 for value in axis.decades)
    assert len(axis.decades) >= math.floor(math.log10(factor))


@given(st.integers(2, 60), st.integers(2, 30), st.floats(-3, 3))
def test_a_curve_has_no_gap(width: int, height: int, power: float) -> None:
    canvas = LogCanvas(width, height, Range(1, 10), Range(0.01, 100))
    canvas.curve(lambda x: (x / 3) ** power, "roof")
    rows = ["".join(text for text, _ in row) for row in canvas.rows()]
    touched = [row for row in range(height) if rows[row].strip()]
    assert touched == list(range(touched[0], touched[-1] + 1))


class Shown(App[None]):
    def compose(self) -> ComposeResult:
        yield RooflinePlot()


async def test_the_widget_draws_what_it_is_shown_and_again_when_resized() -> None:
    app = Shown()
    async with app.run_test(size=(60, 12)) as pilot:
        plot = app.query_one(RooflinePlot)
        plot.show(POINTS, ROOF, "the note")
        await pilot.pause()
        assert plot.render_line(0).text.startswith("the note")
        small = [plot.render_line(y).text for y in range(12)]
        assert any("a gemm 50 %" in line for line in small)
        await pilot.resize_terminal(120, 30)
        await pilot.pause()
        large = [plot.render_line(y).text for y in range(30)]
        assert any("a gemm 620 TFLOP/s, 50 % of memory" in line for line in large)
        plot.show(POINTS, None)
        await pilot.pause()
        assert "989" not in "".join(plot.render_line(y).text for y in range(30))


def test_a_legend_with_room_has_the_figures_of_each_point() -> None:
    full = "\n".join(texts(POINTS, ROOF, 160, 40))
    assert "600 FLOP/B · 10.0 % of the step" in full
    assert full.count("1 ms a step, 0.5 ms at the roofline") == len(POINTS)
    brief = "\n".join(texts(POINTS, ROOF, 160, 4 * len(POINTS) - 2))
    assert "a gemm" in brief and "FLOP/B · " not in brief
