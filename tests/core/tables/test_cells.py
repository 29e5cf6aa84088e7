"""Cells as text: units, digits, and nothing a terminal would obey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.formatting import signed_percent
from sysbench.core.tables.cells import (
    Contents,
    cells_as_text,
    decimal_cell,
    heading,
    is_numeric,
    literal,
    one_figure,
    series_words,
)
from sysbench.core.tables.table import Cell, Table, facts, is_number


def test_series_have_words_and_their_unit() -> None:
    assert series_words("host.cpu_percent") == "host CPU busy, %"
    assert series_words("device1.memory_used_bytes") == "GPU 1 memory used"
    assert series_words("device0.other") == "device0.other"
    row = cells_as_text(facts("telemetry", "", {"host.cpu_percent": 3}))[0]
    assert row[0] == "host CPU busy, %"


def test_a_category_is_not_called_as_the_phase_is() -> None:
    rows: tuple[tuple[Cell, ...], ...] = (("optimizer", 1.0), ("gemm", 2.0))
    table = Table(name="categories", title="", columns=("category", "share"), rows=rows)
    assert [row[0] for row in cells_as_text(table)] == ["fused optimizer", "gemm"]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("peak_bytes", 3 * 2**30, "3.00 GiB"),
        ("share", 0.1234, "12.3 %"),
        ("total_ns", 1_234_567.0, "1.235"),
        ("mean_ns", 1500.0, "1.500"),
        ("over_bare", 0.05, "+5.0 %"),
        ("median_ms", 1071.2345, "1,071.23"),
        ("calls", 4016.0, "4,016"),
        ("mfu", None, "n/a"),
        ("settled", False, "no"),
        ("stop_reason", "a\tb", "a\\tb"),
    ],
)
def test_one_figure_shows_its_unit(key: str, value: str | float | None, text: str) -> None:
    assert one_figure(key, value) == text


def test_numbers_of_one_unit_share_their_decimals() -> None:
    table = Table(name="t", title="", columns=("a_ms", "b_ms"), rows=((1200.5, 0.25), (None, 2.0)))
    assert cells_as_text(table) == [["1,200.50", "0.25"], ["–", "2.00"]]
    assert is_numeric(table, "a_ms")


@given(st.lists(st.one_of(st.none(), st.booleans(), st.text(), st.integers(), st.floats())))
def test_contents_find_the_numbers_and_their_ends(cells: list[Cell]) -> None:
    contents = Contents(cells)
    assert contents.holds_numbers == (
        any(is_number(cell) for cell in cells)
        and all(cell is None or is_number(cell) for cell in cells)
    )
    assert list(map(repr, contents.numbers)) == [repr(cell) for cell in cells if is_number(cell)]
    known = [number for number in contents.numbers if number == number]
    assert contents.ends == ((min(known), max(known)) if known else ())


def test_a_number_that_is_none_moves_no_decimals() -> None:
    table = Table(name="t", title="", columns=("a_ms",), rows=((float("nan"),), (1200.5,)))
    assert cells_as_text(table) == [["nan"], ["1,200.50"]]


def test_rows_of_quantities_have_each_their_own_unit() -> None:
    table = facts("t", "", {"peak_bytes": 1024, "mfu": None, "n": 3}, {"mfu": "no peak"})
    assert cells_as_text(table) == [
        ["peak", "1.00 KiB", ""],
        ["MFU", "n/a", "no peak"],
        ["n", "3", ""],
    ]


def test_quantities_of_a_spec_keep_their_keys() -> None:
    assert cells_as_text(facts("t", "", {"cache_hits": 3}))[0][0] == "cache hits"
    assert cells_as_text(facts("spec", "", {"compile_cache": "warm"}))[0][0] == "compile_cache"
    assert cells_as_text(facts("t", "", {"host.cpu_percent": 3}))[0][0] == "host.cpu_percent"


def test_a_change_that_rounds_to_nothing_has_one_sign() -> None:
    assert signed_percent(-0.0001) == signed_percent(0.0001) == "+0.0 %"
    assert signed_percent(-0.12) == "-12.0 %"


def test_headings_say_the_unit_once() -> None:
    assert heading("median_ms") == "median ms"
    assert heading("forward_ns") == "forward ms"
    assert heading("steady_end_bytes") == "steady end"


@given(st.floats(1e-12, 1e9), st.integers(0, 5))
def test_what_is_not_zero_is_never_written_as_zero(value: float, decimals: int) -> None:
    assert decimal_cell(value, decimals).strip("0.,") != ""


@given(st.text())
def test_literal_text_is_printable_and_keeps_printable_text(text: str) -> None:
    assert literal(text).isprintable()
    if text.isprintable():
        assert literal(text) == text
