"""Every round has its letter, in the order of measuring, the longest times on top."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sysbench.tui.screens.compare_verdict import PlacedRound, round_rows

rounds = st.lists(
    st.builds(PlacedRound, st.floats(0.01, 1e5), st.sampled_from("ABab")), min_size=1, max_size=40
)


@given(rounds, st.integers(60, 200), st.integers(3, 40))
def test_letters_stand_in_their_order(placed: list[PlacedRound], width: int, height: int) -> None:
    rows = round_rows(placed, width, height)
    assert len(rows) == height
    assert all(len(axis) + len(cells) == width for axis, cells in rows)
    found = {
        column: (level, letter)
        for level, (_, cells) in enumerate(rows)
        for column, letter in enumerate(cells)
        if letter != " "
    }
    assert [found[column][1] for column in sorted(found)] == [row.letter for row in placed]
    levels = [found[column][0] for column in sorted(found)]
    longest = max(range(len(placed)), key=lambda place: placed[place].ms)
    assert levels[longest] == min(levels)


def test_no_room_is_no_plot() -> None:
    assert not round_rows([], 80, 8)
    assert not round_rows([PlacedRound(1.0, "A")], 5, 8)
