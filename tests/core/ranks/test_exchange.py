"""Clocks of hosts read by round trips: never off by more than is said, whatever the delays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.ranks.clock_alignment import (
    ClockReading,
    RoundTrip,
    ahead_at,
    on_reference,
    reading,
)
from sysbench.core.trace.collective_kernels import (
    Collective,
    RankStep,
    last_counts,
    transfer_times,
)

DAY_NS = 86_400 * 10**9
delays = st.integers(0, 50_000_000)


def trips_of(ahead_ns: int, asked: list[tuple[int, int]], at_ns: int = 0) -> list[RoundTrip]:
    """Round trips, one after another, with the delays there and back."""
    trips = []
    for there, back in asked:
        trips.append(RoundTrip(at_ns + ahead_ns, at_ns + there, at_ns + there + back + ahead_ns))
        at_ns += there + back
    return trips


@given(
    st.integers(-1000 * DAY_NS, 1000 * DAY_NS),
    st.lists(st.tuples(delays, delays), min_size=1, max_size=20),
)
def test_the_difference_is_within_the_error_and_the_error_within_half_the_fastest_trip(
    ahead_ns: int, asked: list[tuple[int, int]]
) -> None:
    read = reading(trips_of(ahead_ns, asked))
    assert abs(read.ahead_ns - ahead_ns) <= read.error_ns
    assert read.error_ns <= min(there + back for there, back in asked) / 2 + 1


def test_slow_trips_add_nothing_and_a_delay_of_one_side_is_the_error() -> None:
    fast, slow = (0, 200), (45_000, 45_000)
    assert reading(trips_of(7, [fast])) == reading(trips_of(7, [fast, *[slow] * 9]))
    assert reading(trips_of(7, [fast])) == ClockReading(at_ns=107, ahead_ns=107, error_ns=100)


def test_bounds_from_both_sides_make_a_reading_better_than_each_trip() -> None:
    read = reading(trips_of(1_000, [(0, 300), (300, 0)]))
    assert (read.ahead_ns, read.error_ns) == (1_000, 0)


def test_bounds_that_contradict_each_other_widen_the_error() -> None:
    # The clock ran 500 further between two trips of 10.
    trips = [RoundTrip(0, 5, 10), RoundTrip(1_000, 505, 1_010)]
    read = reading(trips)
    assert (read.ahead_ns, read.error_ns) == (250, 255)


@pytest.mark.parametrize("trips", [[], [RoundTrip(10, 5, 9)]])
def test_what_is_no_round_trip_is_refused(trips: list[RoundTrip]) -> None:
    with pytest.raises(ValueError, match="round trips"):
        reading(trips)


@given(
    ahead_ns=st.integers(-DAY_NS, DAY_NS),
    drift_ppm=st.integers(-500, 500),
    seconds=st.floats(0.001, 600),
    share=st.floats(0, 1),
    first=st.lists(st.tuples(delays, delays), min_size=1, max_size=8),
    last=st.lists(st.tuples(delays, delays), min_size=1, max_size=8),
)
def test_a_clock_that_drifts_evenly_is_known_between_two_readings(
    ahead_ns: int,
    drift_ppm: int,
    seconds: float,
    share: float,
    first: list[tuple[int, int]],
    last: list[tuple[int, int]],
) -> None:
    # Each reading is one moment here: within one, a drift moves it by less than the trips take.
    passed = round(seconds * 1e9)
    then = ahead_ns + passed * drift_ppm // 10**6
    before = reading(trips_of(ahead_ns, first))
    after = reading(trips_of(then, last, at_ns=passed + sum(map(sum, first))))
    # The moment of the stamp on the clock that is read, and how far that is ahead then.
    own_ns = before.at_ns + round(share * (after.at_ns - before.at_ns))
    span = after.at_ns - before.at_ns
    truth = ahead_ns + (then - ahead_ns) * (own_ns - before.at_ns) // span
    assert abs(ahead_at(before, after, own_ns) - truth) <= max(before.error_ns, after.error_ns) + 2


def test_outside_two_readings_the_nearer_one_holds() -> None:
    before, after = ClockReading(100, 40, 1), ClockReading(200, 60, 2)
    assert [ahead_at(before, after, ns) for ns in (0, 100, 150, 200, 900)] == [40, 40, 50, 60, 60]
    assert ahead_at(before, before, 500) == 40


def step_at(arrived: int, done: int) -> RankStep:
    one = Collective("all-reduce", 8, arrived, done)
    return RankStep(100, [one], [(arrived, done)], error_ns=3)


def test_a_step_of_another_host_is_moved_as_a_whole_and_says_its_error() -> None:
    here, there = step_at(70, 90), step_at(1_040, 1_090)
    moved = on_reference(there, 1, ClockReading(0, 1_000, 4), ClockReading(2_000, 1_000, 9))
    assert moved.collectives[0] == Collective("all-reduce", 8, 40, 90)
    assert moved.blocked == [(40, 90)]
    assert (moved.step_ns, moved.error_ns) == (100, 3)
    assert (moved.host, moved.host_ahead_ns, moved.host_error_ns) == (1, 1_000, 9)
    assert last_counts([here, moved]) == [1, 0]


@pytest.mark.parametrize(("error_ns", "counts"), [(29, [1, 0]), (30, [0, 0])])
def test_nobody_is_last_by_less_than_the_error_of_the_clocks(
    error_ns: int, counts: list[int]
) -> None:
    read = ClockReading(0, 0, error_ns)
    assert last_counts([step_at(70, 90), on_reference(step_at(40, 90), 1, read, read)]) == counts


def test_ranks_of_one_host_need_no_margin_among_themselves() -> None:
    read = ClockReading(0, 0, 1_000)
    first, second = (on_reference(step_at(at, 9_000), 1, read, read) for at in (5_000, 5_001))
    assert last_counts([step_at(1, 9_000), first, second]) == [0, 0, 1]


def test_transfer_below_the_clock_error_is_timed_on_one_rank() -> None:
    late, early = step_at(2_000_000, 3_000_000), step_at(0, 3_000_000)
    for error_ns, by in ((100_000, "arrivals"), (100_001, "events")):
        read = ClockReading(0, 0, error_ns)
        assert transfer_times([[late, on_reference(early, 1, read, read)]])[1] == by
