from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.trace.intervals import Cover, Times, exclusive

Intervals = list[tuple[int, int, int]]

# Start, length and rank; short enough to be painted instant by instant.
INTERVALS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 2)), max_size=25
)
LONG_INTERVALS = st.lists(
    st.tuples(st.integers(0, 2**60), st.integers(0, 2**60), st.integers(0, 2)), max_size=25
)


def _columns(intervals: Intervals) -> tuple[Times, Times, Times]:
    table = np.array(intervals, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 0] + table[:, 1], table[:, 2]


def _painted(intervals: Intervals) -> list[int]:
    """The owner of each instant by the rule's own words, one instant after the other."""
    lengths = [0] * len(intervals)
    for instant in range(100):
        running = [
            (rank, start, index)
            for index, (start, length, rank) in enumerate(intervals)
            if start <= instant < start + length
        ]
        if running:
            lengths[min(running)[2]] += 1
    return lengths


@given(INTERVALS)
def test_every_instant_belongs_to_the_first_of_the_lowest_rank(intervals: Intervals) -> None:
    assert exclusive(*_columns(intervals)).tolist() == _painted(intervals)


@given(LONG_INTERVALS)
def test_parts_sum_to_the_union_and_none_is_negative_or_longer_than_its_interval(
    intervals: Intervals,
) -> None:
    start, end, rank = _columns(intervals)
    parts = exclusive(start, end, rank)
    assert sum(parts.tolist()) == Cover(start, end).total
    assert (parts >= 0).all()
    assert (parts <= end - start).all()


@given(LONG_INTERVALS, st.integers(0, 2**60), st.integers(0, 2**60))
def test_cover_and_gaps_sum_to_the_window(intervals: Intervals, low: int, length: int) -> None:
    high = low + length
    start, end, _ = _columns(intervals)
    start, end = np.clip(start, low, high), np.clip(end, low, high)
    cover = Cover(start, end)
    gap_start, gap_end = cover.gaps(low, high)
    assert (gap_end > gap_start).all()
    assert cover.total + int((gap_end - gap_start).sum()) == length
    assert not cover.within(gap_start, gap_end).any()


@given(INTERVALS, st.lists(st.tuples(st.integers(0, 80), st.integers(0, 30)), min_size=1))
def test_covered_length_within_any_interval(
    intervals: Intervals, asked: list[tuple[int, int]]
) -> None:
    start, end, _ = _columns(intervals)
    painted = {instant for one in intervals for instant in range(one[0], one[0] + one[1])}
    low = np.array([begin for begin, _ in asked])
    high = np.array([begin + length for begin, length in asked])
    assert Cover(start, end).within(low, high).tolist() == [
        len(painted & set(range(begin, begin + length))) for begin, length in asked
    ]


@given(INTERVALS, INTERVALS)
def test_what_two_covers_share_and_what_one_has_alone_make_up_the_one(
    mine: Intervals, others: Intervals
) -> None:
    (start, end, _), (begin, finish, _) = _columns(mine), _columns(others)
    cover, other = Cover(start, end), Cover(begin, finish)

    def painted(intervals: Cover) -> set[int]:
        pairs = zip(intervals.start.tolist(), intervals.end.tolist(), strict=True)
        return {instant for low, high in pairs for instant in range(low, high)}

    assert painted(cover.shared(other)) == painted(cover) & painted(other)
    assert painted(cover.without(other)) == painted(cover) - painted(other)
    assert cover.shared(other).total + cover.without(other).total == cover.total
