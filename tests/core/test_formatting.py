"""Text to quantities and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.formatting import (
    BINARY_UNITS,
    format_bytes,
    format_count,
    format_duration,
    milliseconds,
    parse_bytes,
    parse_ratio,
    parse_size,
    percent,
    percent_of,
    short_path,
    shortened,
    signed_percent,
    significant,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("512", 512),
        (" 512 B ", 512),
        ("24GiB", 24 * 2**30),
        ("24 gib", 24 * 2**30),
        ("1.5MiB", 3 * 2**19),
        ("2TiB", 2**41),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_bytes_are_read_in_binary_units(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("80GB", 80 * 10**9),
        ("80 GB", 80 * 10**9),
        (" 1.5 tb", 1_500_000_000_000),
        ("500mb", 500_000_000),
        ("24GiB", 24 * 2**30),
        ("512", 512),
    ],
)
def test_sizes_are_read_in_the_units_of_data_sheets_too(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GB", "24G", "-1GB", "8e1GB", "80 G B"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="24GiB, 512MiB or 80GB"):
        parse_size(text)


@pytest.mark.parametrize(
    "text", ["", "GiB", "24GB", "24G", "-1", "1e9", "1_000", "0x10", "nan", "1.GiB", "1 2", "١GiB"]
)
def test_bytes_that_are_not_plain_binary_units_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="binary units"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (1000 * 2**20, "1000 MiB"),
        (9.996 * 2**20, "10.0 MiB"),
        (round(1.92 * 2**30), "1.92 GiB"),
        (-35.5 * 2**20, "-35.5 MiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_bytes_are_written_with_three_digits(count: float, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(min_value=0, max_value=2**60))
def test_written_bytes_read_back_within_their_three_digits(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.0051, abs=0.5)


@given(st.floats(min_value=0, max_value=2**49), st.sampled_from([*BINARY_UNITS]))
def test_written_bytes_never_need_a_larger_unit(count: float, unit: str) -> None:
    number, written = format_bytes(count * BINARY_UNITS[unit] / 2**40).split()
    assert written == "TiB" or float(number) < 1024


@pytest.mark.parametrize(
    ("text", "ratio"), [("0.005", 0.005), ("0.5%", 0.005), (" 50 % ", 0.5), ("1", 1.0)]
)
def test_ratios_are_read_with_and_without_a_percent_sign(text: str, ratio: float) -> None:
    assert parse_ratio(text) == pytest.approx(ratio)


@pytest.mark.parametrize("text", ["", "%", "half", "5%%"])
def test_what_is_no_ratio_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"float|number"):
        parse_ratio(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 "),
        (999, "999 "),
        (999_999, "1 M"),
        (969_411_840, "969 M"),
        (4.11e12, "4.11 T"),
        (-1500, "-1.5 k"),
    ],
)
def test_counts_are_written_with_a_metric_suffix(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000 ms"),
        (0.01234, "0.012 ms"),
        (53.0249, "53.02 ms"),
        (-1071.23, "-1,071 ms"),
        (123_456.0, "123,456 ms"),
    ],
)
def test_milliseconds_have_four_significant_digits(value: float, text: str) -> None:
    assert milliseconds(value) == text


def test_fewer_significant_digits_can_be_asked_for() -> None:
    assert significant(12.345, 3) == "12.3"


def test_a_part_of_nothing_is_nothing() -> None:
    assert percent_of(1, 4) == "25.0 %"
    assert percent_of(0, 0) == "0.0 %"


@given(st.text(), st.integers(3, 80))
def test_a_shortened_name_keeps_both_ends(name: str, most: int) -> None:
    short = shortened(name, most)
    assert len(short) <= most
    assert short == name or (name.startswith(short.split("…")[0]) and "…" in short)
    assert short[-(most // 3) :] == name[-(most // 3) :]


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/home/anna/work/train.py", "work/train.py"),
        ("/home/anna/train.py", "train.py"),
        ("/Users/anna/train.py", "train.py"),
        ("C:\\Users\\anna\\work\\train.py", "work/train.py"),
        ("C:\\Users\\anna\\train.py", "train.py"),
        ("c:/users/anna/train.py", "train.py"),
        ("C:\\train.py", "C:/train.py"),
        ("\\\\host\\Users\\anna\\train.py", "train.py"),
        ("/srv/odd\\name.py", "srv/odd\\name.py"),
        ("train.py", "train.py"),
        ("/train.py", "train.py"),
        ("", ""),
    ],
)
def test_a_short_path_contains_no_home(path: str, short: str) -> None:
    assert short_path(path) == short


def test_unknown_numbers_are_not_zero() -> None:
    assert milliseconds(None) == percent(None) == signed_percent(None) == "n/a"


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 µs"),
        (8_855_000, "8.86 ms"),
        (999_600_000, "1.00 s"),
        (256_545_000_000, "4 min 17 s"),
    ],
)
def test_durations_have_three_digits_and_a_unit(ns: float, text: str) -> None:
    assert format_duration(ns) == text
