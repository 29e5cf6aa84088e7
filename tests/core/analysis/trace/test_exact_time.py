from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.analysis.trace.numbers import nanoseconds

MICROSECONDS = st.one_of(
    st.integers(-(10**15), 4 * 10**15),
    st.decimals(-(10**15), 4 * 10**15, allow_nan=False).map(str),
    st.decimals(0, 4 * 10**15, places=3).map(str),
    st.floats(0, 1e12).map(repr),
)


@given(st.lists(MICROSECONDS))
def test_times_are_exact_to_the_nanosecond(values: list[int | str]) -> None:
    assert nanoseconds(values).tolist() == [int(Decimal(value) * 1000) for value in values]


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
