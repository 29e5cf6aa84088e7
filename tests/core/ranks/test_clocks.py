"""Clocks from collectives: the true difference lies within the stated error."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sysbench.core.ranks.clock_alignment import align_clocks
from sysbench.core.ranks.matching import match_collectives
from sysbench.core.trace.rank_summary import RankTrace

MakeRank = Callable[..., RankTrace]
MS = 1_000_000
ARRIVALS = st.lists(st.integers(0, 30 * MS), min_size=3, max_size=3)
TRANSFERS = st.lists(st.integers(1, 2 * MS), min_size=3, max_size=3)
JOBS = st.lists(st.tuples(ARRIVALS, TRANSFERS), min_size=1, max_size=6)
SKEWS = st.lists(st.integers(-50 * MS, 50 * MS), min_size=3, max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(JOBS, SKEWS)
def test_the_true_skew_lies_within_the_stated_error(
    make_rank: MakeRank, job: list[tuple[list[int], list[int]]], skews: list[int]
) -> None:
    calls: list[list[tuple[int, int]]] = [[], [], []]
    for index, (arrivals, transfers) in enumerate(job):
        begin = 100 * MS * index
        for rank in range(3):
            end = begin + max(arrivals) + transfers[rank]
            calls[rank].append((begin + arrivals[rank], end))
    ranks = {rank: make_rank(calls[rank], ahead=skews[rank]) for rank in range(3)}
    clocks = align_clocks(list(ranks), match_collectives(ranks))
    assert clocks.conflict_ns == 0 and clocks.reference == 0
    for rank in range(3):
        clock = clocks.by_rank[rank]
        assert abs(clock.ahead_ns - (skews[rank] - skews[0])) <= clock.error_ns
        assert 0 <= clock.spread_ns <= clock.error_ns
    assert clocks.by_rank[0].error_ns == 0


def test_bounds_add_up_along_a_path_of_groups(make_rank: MakeRank) -> None:
    first, last = make_rank([(0, 1000)], group="a"), make_rank([(5010, 6010)], group="b", ahead=70)
    between = make_rank([(10, 1010)], group="a", ahead=40)
    middle = make_rank([(5000, 6000)], group="b", ahead=40)
    both = type(between)(
        **{name: getattr(between, name) for name in between.__struct_fields__}
        | {"calls": [*between.calls, *middle.calls]}
    )
    ranks = {0: first, 1: both, 2: last}
    clocks = align_clocks([0, 1, 2], match_collectives(ranks)).by_rank
    assert (clocks[1].ahead_ns, clocks[2].ahead_ns) == (50, 90)
    assert abs(clocks[2].ahead_ns - 70) <= clocks[2].error_ns <= 2100


def test_a_rank_without_a_collective_in_common_has_no_clock(make_rank: MakeRank) -> None:
    ranks = {
        0: make_rank([(0, 1000)]),
        1: make_rank([(0, 1000)]),
        2: make_rank([(0, 1000)], group="other"),
        3: make_rank([(0, 1000)], kinds=["send-receive"]),
    }
    assert set(align_clocks(list(ranks), match_collectives(ranks)).by_rank) == {0, 1}


def test_what_cannot_be_on_any_clock_is_told_and_part_of_the_error(make_rank: MakeRank) -> None:
    # Rank 1 ends the first before rank 0 has come; the second ties the clocks to 1 µs.
    ranks = {
        0: make_rank([(500_000, 600_000), (1_000_000, 1_001_000)]),
        1: make_rank([(100_000, 300_000), (1_000_000, 1_001_000)]),
    }
    clocks = align_clocks([0, 1], match_collectives(ranks))
    assert 90_000 <= clocks.conflict_ns <= 250_000
    assert clocks.by_rank[1].error_ns >= clocks.conflict_ns
    assert clocks.by_rank[0].error_ns == 0
