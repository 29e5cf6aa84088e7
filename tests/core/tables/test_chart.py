"""Figures of a study: scales, gaps, SVG."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from sysbench.core.export.page_document import line_chart
from sysbench.core.tables.timing_tables import Figure, Scale, Series, with_unit

VALUES = st.lists(
    st.floats(-1e9, 1e9, allow_subnormal=False).map(lambda x: round(x, 3)), min_size=1, max_size=20
)


@given(VALUES, st.booleans(), st.booleans(), st.integers(2, 9))
@example(values=[-1.0, -400_400_402.0], with_zero=False, is_binary=False, most=2)
def test_a_scale_holds_its_values_and_its_ticks(
    values: list[float], with_zero: bool, is_binary: bool, most: int
) -> None:
    scale = Scale.of(values, with_zero=with_zero, is_binary=is_binary)
    assert all(-1e-9 <= scale.part(value) <= 1 + 1e-9 for value in values)
    ticks = scale.ticks(most)
    assert 1 <= len(ticks) <= most
    assert ticks == sorted(ticks)
    assert all(-1e-6 <= scale.part(tick) <= 1 + 1e-6 for tick in ticks)


def figure(*series: Series, unit: str = "ms") -> Figure:
    return Figure(name="step, ms", title="step, ms over context", axis="context", unit=unit,
                  series=series)  # fmt: skip


def test_a_line_is_not_drawn_across_a_cell_without_value() -> None:
    broken = Series("large", ((128, 1.0), (256, 2.0), (512, None), (1024, 8.0)))
    assert [len(piece) for piece in broken.pieces] == [2, 1]
    chart = line_chart(figure(broken))
    assert chart.count("<polyline") == 2
    assert chart.count("<circle") == 3
    assert "context 512: large \\u2013" in chart


def test_one_line_for_each_series_told_apart_without_colour() -> None:
    lines = [Series(name, ((1, 1.0), (2, n + 2.0))) for n, name in enumerate("abc")]
    chart = line_chart(figure(*lines))
    assert len(set(re.findall(r'stroke-dasharray="([^"]*)"', chart))) == 3


def test_without_any_value_there_is_no_chart() -> None:
    assert line_chart(figure(Series("a", ((1, None),)))) == ""


def test_foreign_names_stay_text() -> None:
    chart = line_chart(figure(Series("<script>alert(1)</script>", ((1, 1.0), (2, 2.0)))))
    assert "<script" not in chart


def test_numbers_have_four_digits_and_bytes_their_unit() -> None:
    assert with_unit(1234.5678, "ms") == "1,235 ms"
    assert with_unit(0.012345, "ms") == "0.01235 ms"
    assert with_unit(3 * 2**30, "B") == "3.00 GiB"
    assert with_unit(0, "") == "0.000"
