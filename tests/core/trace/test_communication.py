"""Waiting and transfer, on steps written by hand and generated ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.record.distributed import Kind
from sysbench.core.trace.collective_kernels import (
    Collective,
    RankStep,
    disorder_ns,
    last_counts,
    split_step,
    transfer_times,
)


def collective(arrived: int, done: int, kind: Kind = "all-reduce") -> Collective:
    return Collective(kind, 8, arrived, done)


def blocking(step_ns: int, *collectives: Collective) -> RankStep:
    """A rank that waits in all of its collectives."""
    blocked = [(one.arrived_ns, one.done_ns) for one in collectives]
    return RankStep(step_ns, list(collectives), blocked)


def test_the_early_rank_waits_until_the_late_one_comes() -> None:
    early, late = blocking(100, collective(40, 90)), blocking(100, collective(70, 90))
    first, second = split_step([early, late])
    assert (first.compute_ns, first.waiting_ns, first.transfer_ns) == (50, 30, 20)
    assert (second.compute_ns, second.waiting_ns, second.transfer_ns) == (80, 0, 20)
    assert (first.exposed_ns, second.exposed_ns) == (50, 20)
    assert last_counts([early, late]) == [0, 1]


def test_what_moves_behind_computing_is_communication_and_not_exposed() -> None:
    # Sent at 10 by both, done at 60; the rank computes until 50 and then waits for it.
    rank = RankStep(80, [collective(10, 60)], [(50, 60)])
    (split, _) = split_step([rank, rank])
    assert split.communication_ns == 50
    assert (split.compute_ns, split.waiting_ns, split.transfer_ns) == (70, 0, 10)


def test_collectives_at_the_same_time_count_once() -> None:
    rank = blocking(100, collective(0, 40), collective(20, 60))
    (split,) = split_step([rank])
    assert (split.communication_ns, split.transfer_ns, split.compute_ns) == (60, 60, 40)


def test_the_root_of_a_broadcast_may_be_done_before_the_others_come() -> None:
    root = blocking(50, collective(0, 10, "broadcast"))
    other = blocking(50, collective(30, 40, "broadcast"))
    split, _ = split_step([root, other])
    assert (split.communication_ns, split.waiting_ns, split.transfer_ns) == (0, 10, 0)
    assert disorder_ns([root, other]) == 0


def test_an_all_reduce_that_ends_before_its_last_rank_came_betrays_the_clocks() -> None:
    assert disorder_ns([blocking(50, collective(0, 10)), blocking(50, collective(17, 40))]) == 7


def test_where_standing_still_cannot_be_seen_the_parts_are_unknown() -> None:
    rank = RankStep(100, [collective(10, 60)], None)
    split, _ = split_step([rank, rank])
    assert (split.compute_ns, split.waiting_ns, split.transfer_ns) == (None, None, None)
    assert (split.exposed_ns, split.communication_ns) == (None, 50)


def test_a_step_without_collectives_is_all_compute() -> None:
    (split,) = split_step([RankStep(100, [], [])])
    assert (split.compute_ns, split.exposed_ns, split.communication_ns) == (100, 0, 0)


def test_ranks_that_did_different_things_are_refused() -> None:
    other = RankStep(9, [Collective("all-gather", 8, 1, 2)], [])
    with pytest.raises(ValueError, match="do not agree"):
        split_step([blocking(9, collective(1, 2)), other])


times = st.integers(0, 1000)


@st.composite
def steps(draw: st.DrawFn) -> list[RankStep]:
    """Some ranks whose collectives end after all have come, as they do."""
    count, ranks = draw(st.integers(0, 5)), draw(st.integers(1, 4))
    arrived = [[draw(times) for _ in range(count)] for _ in range(ranks)]
    last = [max(column) for column in zip(*arrived, strict=True)]
    made = []
    for row in arrived:
        collectives = [
            collective(start, latest + draw(times)) for start, latest in zip(row, last, strict=True)
        ]
        blocked = draw(st.lists(st.tuples(times, times), max_size=4))
        made.append(RankStep(2000, collectives, blocked))
    return made


@given(steps())
def test_the_parts_add_up_to_the_step(ranks: list[RankStep]) -> None:
    assert disorder_ns(ranks) == 0
    assert sum(last_counts(ranks)) == len(ranks[0].collectives)
    for split in split_step(ranks):
        assert split.compute_ns is not None
        assert split.waiting_ns is not None
        assert split.transfer_ns is not None
        assert split.compute_ns + split.waiting_ns + split.transfer_ns == split.step_ns
        assert min(split.compute_ns, split.waiting_ns, split.transfer_ns) >= 0
        assert split.transfer_ns <= split.communication_ns


def all_reduce(step_ns: int, arrived: int, done: int, error_ns: int) -> RankStep:
    return RankStep(step_ns, [collective(arrived, done)], [(arrived, done)], error_ns)


def test_a_short_all_reduce_between_devices_is_the_step_of_the_last_rank() -> None:
    # 30 µs on the device; the two clocks are off by 15 µs, so arrivals give 15.
    early = all_reduce(80_000, 0, 80_000, 15_000)
    late = all_reduce(30_000, 65_000, 80_000, 15_000)
    assert transfer_times([[early, late]]) == ([0.03], "events")


@pytest.mark.parametrize(("scale", "error_ns"), [(1, 0), (50, 15_000)])
def test_a_long_one_and_one_on_an_exact_clock_are_taken_from_arrivals(
    scale: int, error_ns: int
) -> None:
    early = all_reduce(80_000 * scale, 0, 80_000 * scale, error_ns)
    late = all_reduce(30_000 * scale, 65_000 * scale, 80_000 * scale, error_ns)
    assert transfer_times([[early, late]]) == ([0.015 * scale], "arrivals")
