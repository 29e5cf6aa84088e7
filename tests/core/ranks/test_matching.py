"""The same collective found in several files."""

from __future__ import annotations

from collections.abc import Callable

from sysbench.core.ranks.matching import match_collectives
from sysbench.core.trace.rank_summary import RankTrace

MakeRank = Callable[..., RankTrace]
FOUR = [(0, 10), (100, 110), (200, 210), (300, 310)]


def pairs(ranks: dict[int, RankTrace]) -> list[tuple[int, int]]:
    """By match the places of both calls in their files."""
    return [
        (ranks[0].calls.index(match.calls[0]), ranks[1].calls.index(match.calls[1]))
        for match in match_collectives(ranks)
    ]


def test_the_number_of_the_group_counts_where_a_file_begins_later(make_rank: MakeRank) -> None:
    ranks = {
        0: make_rank(FOUR, positions=[7, 8, 9, 10]),
        1: make_rank(FOUR[:3], positions=[8, 9, 10]),
    }
    assert pairs(ranks) == [(1, 0), (2, 1), (3, 2)]


def test_without_numbers_the_steps_count(make_rank: MakeRank) -> None:
    ranks = {
        0: make_rank(FOUR, steps=[1, 1, 2, 2]),
        1: make_rank(FOUR[:3], steps=[1, 2, 2]),
    }
    # Which of the first step's two calls rank 1 has is not known.
    assert pairs(ranks) == [(2, 1), (3, 2)]


def test_what_lies_outside_of_the_steps_is_not_matched_by_order(make_rank: MakeRank) -> None:
    parts = [(1, 100, 210)]
    ranks = {
        0: make_rank(FOUR[:3], steps=[-1, 1, 1], parts=parts),
        1: make_rank(FOUR[1:], steps=[1, 1, -1], parts=parts),
    }
    assert pairs(ranks) == [(1, 0), (2, 1)]


def test_without_either_the_order_counts_if_all_have_as_many(make_rank: MakeRank) -> None:
    assert pairs({0: make_rank(FOUR), 1: make_rank(FOUR)}) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert pairs({0: make_rank(FOUR), 1: make_rank(FOUR[1:])}) == []


def test_kind_size_and_group_are_part_of_a_collective(make_rank: MakeRank) -> None:
    one = make_rank(FOUR[:1])
    assert len(match_collectives({0: one, 1: make_rank(FOUR[:1])})) == 1
    assert match_collectives({0: one, 1: make_rank(FOUR[:1], kinds=["all-gather"])}) == []
    assert match_collectives({0: one, 1: make_rank(FOUR[:1], size=8)}) == []
    assert match_collectives({0: one, 1: make_rank(FOUR[:1], group="tp")}) == []
    uneven = [make_rank(FOUR[:1], kinds=["all-to-all"], size=size) for size in (8, 16)]
    assert len(match_collectives(dict(enumerate(uneven)))) == 1
