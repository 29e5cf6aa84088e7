from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.trace.intervals import nanoseconds

MICROSECONDS = st.one_of(
    st.integers(-(10**15), 4 * 10**15),
    st.decimals(-(10**15), 4 * 10**15, allow_nan=False).map(str),
    st.decimals(0, 4 * 10**15, places=3).map(str),
    st.floats(0, 1e12).map(repr),
)


@given(st.lists(MICROSECONDS))
def test_times_are_exact_to_the_nanosecond(values: list[int | str]) -> None:
    assert nanoseconds(values).tolist() == [int(Decimal(value) * 1000) for value in values]


def _alike(digits: int) -> st.SearchStrategy[list[str]]:
    """Times that a profiler printed one after the other: with as many digits."""
    whole = st.integers(10 ** (digits - 1), min(10**digits, 4 * 10**15) - 1)
    time = st.tuples(whole, st.integers(0, 999))
    return st.lists(time.map(lambda parts: f"{parts[0]}.{parts[1]:03d}"), min_size=1)


@given(st.integers(1, 16).flatmap(_alike))
def test_times_with_as_many_digits_are_exact(values: list[str]) -> None:
    assert nanoseconds(values).tolist() == [int(Decimal(value) * 1000) for value in values]


@pytest.mark.parametrize("value", ["12,.500", "12 .500", "1e2.500", "12.5,00", "é1.500"])
def test_what_only_looks_like_a_time_between_times_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="time"):
        nanoseconds(["123.500", value, "456.250"])


def test_a_time_out_of_range_among_times_alike_is_refused() -> None:
    assert nanoseconds(["3999999999999999.999"]).tolist() == [3_999_999_999_999_999_999]
    assert nanoseconds(["4000000000000000.000"]).tolist() == [4 * 10**18]
    with pytest.raises(ValueError, match="range"):
        nanoseconds(["3999999999999999.999", "4000000000000000.001"])


def test_a_time_that_a_float_would_round() -> None:
    text = "1700000000000000.123"
    assert nanoseconds([text, 5]).tolist() == [1_700_000_000_000_000_123, 5000]
    assert int(float(text) * 1000) != 1_700_000_000_000_000_123


@pytest.mark.parametrize(
    "value",
    ["1e999999999", "4000000000000001", "nan", "Infinity", "1,2", "", "--1", "é", None, True, [1]],
)
def test_what_is_no_time_or_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"time|range"):
        nanoseconds(["1.5", value])
