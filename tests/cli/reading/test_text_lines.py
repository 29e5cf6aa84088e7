"""Tables and prose as lines: they fit, and are truncated where it matters least."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from sysbench.core.tables.table import Table
from sysbench.tui.commands.output import UNCUT
from sysbench.tui.commands.text_lines import (
    Line,
    flowing,
    prose,
    shorten_line,
    table_lines,
)
from sysbench.tui.text import truncate_distinct

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z", "M"]), max_size=60)


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def table(*rows: tuple[str, float]) -> Table:
    return Table(
        name="t",
        title="",
        columns=("name", "total_ms", "share"),
        rows=tuple((name, value, 0.5) for name, value in rows),
    )


def test_numbers_are_flush_right_and_texts_flush_left() -> None:
    lines = [text(line) for line in table_lines(table(("ab", 10.0), ("abcd", 2.5)), 80)]
    assert lines == [
        "  name  total ms   share",
        "  ab      10.000  50.0 %",
        "  abcd     2.500  50.0 %",
    ]


def test_without_rows_there_are_only_headings() -> None:
    assert [text(line) for line in table_lines(table(), 80)] == ["  name  total ms  share"]


def test_columns_fall_away_before_names_are_cut() -> None:
    lines = [text(line) for line in table_lines(table(("a" * 20, 1.0)), 33, drop=("share",))]
    assert lines == ["  name                  total ms", f"  {'a' * 20}     1.000"]


def test_where_nothing_is_cut_a_long_name_moves_its_own_row_only() -> None:
    long = Table(
        name="t",
        title="",
        columns=("total_ms", "name", "module"),
        rows=((1.0, "k" * 900, "blocks.0"), (2.0, "short", "blocks.1")),
    )
    heads, first, second = (text(line) for line in table_lines(long, UNCUT))
    assert "k" * 900 + "  blocks.0" in first
    assert second.index("blocks.1") == heads.index("module") <= 120


@given(NAMES, st.integers(40, 120))
@example("a name of 22 letters..", 40)
def test_table_fits_its_width_whatever_the_name(name: str, width: int) -> None:
    lines = table_lines(table((name, 1.0), ("x", 20.0)), width)
    assert all(cell_len(text(line)) <= width for line in lines)


@given(NAMES, st.integers(4, 40))
def test_shortened_text_fits_and_keeps_both_ends(name: str, width: int) -> None:
    short = shorten_line(name, width)
    assert cell_len(short) <= width
    if cell_len(name) <= width:
        assert short == name
    else:
        assert "…" in short


def test_flowing_items_break_between_items_only() -> None:
    lines = [text(line) for line in flowing(["peak in backward", "end 3 MiB", "n/a"], 28)]
    assert lines == ["peak in backward · end 3 MiB", "· n/a"] or lines == [
        "peak in backward · end 3 MiB ·",
        "n/a",
    ]
    assert all("end 3 MiB" in line or "end" not in line for line in lines)


@pytest.mark.parametrize("width", [20, 80])
def test_prose_fits(width: int) -> None:
    lines = prose("word " * 50, width, hang=2)
    assert all(len(text(line)) <= width for line in lines)


def test_names_that_are_cut_stay_apart() -> None:
    both_ends = "void at::native::elementwise_kernel<128, {}, float>(at::TensorIteratorBase&, long)"
    names = [both_ends.format(word) for word in ("Add", "AddMany", "Mul", "MulMany")]
    names += [f"Cijk_{'A' * 40}_WG{number}_1_{'B' * 40}_WG16" for number in (8, 16, 64)]
    cut = truncate_distinct([*names, names[0], "short"], 28, shorten_line)
    assert len(set(cut)) == len(names) + 1 and cut[-2:] == [cut[0], "short"]
    assert max(map(len, cut)) <= 28
    assert [name[:8] for name in cut[:-1]] == [name[:8] for name in (*names, names[0])]


def test_names_that_differ_at_the_end_fill_the_width() -> None:
    names = [f"AddmmBackward0 < held by kept[] at train.py:15 < {number}" for number in range(3)]
    for name, cut in zip(names, truncate_distinct(names, 36), strict=True):
        begin, end = cut.split("…")
        assert name.startswith(begin) and name.endswith(end) and len(cut) == 36


def test_a_long_note_breaks_between_words() -> None:
    text = " ".join(["word"] * 40)
    lines = ["".join(part for part, _ in line) for line in flowing(["a b", text], 50)]
    assert " ".join(lines).split() == ["a", "b", "·", *["word"] * 40]


@given(st.lists(NAMES, max_size=6), st.integers(3, 40))
def test_what_is_cut_fits_and_what_fits_is_whole(names: list[str], width: int) -> None:
    for name, cut in zip(names, truncate_distinct(names, width), strict=True):
        assert cell_len(cut) <= width
        assert cut == name or cell_len(name) > width
