"""The same collective found in several files."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

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


def unnumbered(trace: RankTrace) -> RankTrace:
    return replace(trace, has_step_numbers=False)


def test_the_number_of_the_group_counts_where_a_file_begins_later(make_rank: MakeRank) -> None:
    ranks = {
        0: make_rank(FOUR, positions=[7, 8, 9, 10]),
        1: make_rank(FOUR[:3], positions=[8, 9, 10]),
    }
    assert pairs(ranks) == [(1, 0), (2, 1), (3, 2)]


def test_calls_are_matched_from_the_end_of_what_the_files_share(make_rank: MakeRank) -> None:
    assert pairs({0: make_rank(FOUR), 1: make_rank(FOUR[1:])}) == [(1, 0), (2, 1), (3, 2)]
    ranks = {
        0: make_rank(FOUR, steps=[1, 1, 2, 2]),
        1: make_rank(FOUR[:3], steps=[1, 2, 2]),
    }
    assert pairs(ranks) == [(1, 0), (2, 1), (3, 2)]


def test_steps_say_where_what_the_files_share_ends(make_rank: MakeRank) -> None:
    eight = [(100 * place, 100 * place + 10) for place in range(8)]
    whole = make_rank(eight, steps=[1, 1, 2, 2, 3, 3, 4, 4])
    early = make_rank(eight[:5], steps=[1, 1, 2, 2, 3])
    assert pairs({0: whole, 1: early}) == [(place, place) for place in range(5)]
    # A border of a step that lies elsewhere on one rank moves nothing.
    moved = make_rank(eight, steps=[1, 1, 1, 2, 3, 3, 4, 4])
    assert pairs({0: whole, 1: moved}) == [(place, place) for place in range(8)]
    # Served steps have no numbers: the first that a file marks is not the first of the job.
    parts = [(1, 0, 10)]
    late = unnumbered(make_rank(eight[2:], steps=[1, 1, 2, 2, 3, 3], parts=[*parts, (3, 0, 1)]))
    served = unnumbered(make_rank(eight, steps=[1, 1, 2, 2, 3, 3, 4, 4], parts=[*parts, (4, 0, 1)]))
    assert pairs({0: served, 1: late}) == [(place + 2, place) for place in range(6)]


def test_a_lost_call_costs_its_own_step_only(make_rank: MakeRank) -> None:
    steps = [step for step in range(6) for _ in range(3)]
    times = [(100 * place, 100 * place + 10) for place in range(18)]
    lost = 7  # of step 2
    ranks = {
        0: make_rank(times, steps=steps),
        1: make_rank(times[:lost] + times[lost + 1 :], steps=steps[:lost] + steps[lost + 1 :]),
    }
    found = dict(pairs(ranks))
    assert all(found[place] == place for place in range(6))
    assert all(found[place] == place - 1 for place in range(8, 18))


def test_on_one_clock_calls_of_one_collective_overlap(make_rank: MakeRank) -> None:
    ranks = {0: make_rank(FOUR), 1: make_rank(FOUR[:3])}
    found = match_collectives(ranks, one_clock=True)
    assert [match.calls[0].start_ns - match.calls[1].start_ns for match in found] == [0, 0, 0]


def test_collectives_outside_of_the_steps_are_matched(make_rank: MakeRank) -> None:
    parts = [(1, 100, 210)]
    steps = [-1, 1, 1, -1]
    ranks = {rank: make_rank(FOUR, steps=steps, parts=parts) for rank in range(2)}
    assert pairs(ranks) == [(0, 0), (1, 1), (2, 2), (3, 3)]


def pipeline(make_rank: MakeRank, sends: list[int], receives: list[int]) -> dict[int, RankTrace]:
    """Rank 0 sends to rank 1; both also transfer with others."""
    ranks = {}
    for rank, starts in enumerate((sends, receives)):
        times = [(start, start + 5) for start in starts]
        trace = make_rank(times, kinds=["send-receive"] * len(times), size=8 + rank)
        calls = [replace(call, source=0, target=1, sends=rank == 0) for call in trace.calls]
        others = [replace(call, source=1, target=2, sends=rank == 1) for call in trace.calls]
        ranks[rank] = replace(trace, calls=[*calls, *(others if rank else [])])
    return ranks


def test_the_nth_send_meets_the_nth_receive(make_rank: MakeRank) -> None:
    found = match_collectives(pipeline(make_rank, [0, 10, 20], [10, 20]))
    assert [match.sender for match in found] == [0, 0]
    assert [match.calls[0].start_ns - match.calls[1].start_ns for match in found] == [0, 0]
    assert all(match.is_synchronising and match.bytes == 8 for match in found)


def test_what_lies_outside_of_the_steps_is_not_matched_by_order(make_rank: MakeRank) -> None:
    parts = [(1, 100, 210)]
    ranks = {
        0: make_rank(FOUR[:3], steps=[-1, 1, 1], parts=parts),
        1: make_rank(FOUR[1:], steps=[1, 1, -1], parts=parts),
    }
    assert pairs(ranks) == [(1, 0), (2, 1)]


def test_kind_size_and_group_are_part_of_a_collective(make_rank: MakeRank) -> None:
    one = make_rank(FOUR[:1])
    assert len(match_collectives({0: one, 1: make_rank(FOUR[:1])})) == 1
    assert match_collectives({0: one, 1: make_rank(FOUR[:1], kinds=["all-gather"])}) == []
    assert match_collectives({0: one, 1: make_rank(FOUR[:1], size=8)}) == []
    assert match_collectives({0: one, 1: make_rank(FOUR[:1], group="tp")}) == []
    uneven = [make_rank(FOUR[:1], kinds=["all-to-all"], size=size) for size in (8, 16)]
    assert len(match_collectives(dict(enumerate(uneven)))) == 1
