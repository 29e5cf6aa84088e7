"""A rank's parts against its span painted instant by instant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sysbench.core.ranks.straggler import SpanSplit
from sysbench.core.trace.rank_summary import RankTrace

MakeRank = Callable[..., RankTrace]
CALLS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 25), st.none() | st.integers(-5, 30)),
    min_size=1,
    max_size=6,
)
WORK = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=5)
HIGH = 90


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(CALLS, WORK)
def test_every_instant_is_what_the_rank_did_then(
    make_rank: MakeRank, calls: list[tuple[int, int, int | None]], work: list[tuple[int, int]]
) -> None:
    calls.sort(key=lambda call: call[:2])
    busy = sorted({instant for start, length in work for instant in range(start, start + length)})
    trace = make_rank(
        [(start, start + length) for start, length, _ in calls],
        [(instant, instant + 1) for instant in busy],
        high=HIGH,
    )
    last = {
        id(call): call.start_ns + after
        for call, (_, _, after) in zip(trace.calls, calls, strict=True)
        if after is not None
    }
    painted: Counter[str] = Counter()
    for instant in range(HIGH):
        running = [
            None if after is None else instant >= start + after
            for start, length, after in calls
            if start <= instant < start + length
        ]
        if instant in busy:
            painted["compute"] += 1
        elif True in running:
            painted["transfer"] += 1
        elif False in running:
            painted["waiting"] += 1
        else:
            painted["undivided" if running else "idle"] += 1
    parts = SpanSplit(trace, last).whole()
    assert painted == Counter(
        compute=parts.compute_ns,
        waiting=parts.waiting_ns,
        transfer=parts.transfer_ns,
        undivided=parts.undivided_ns,
        idle=parts.idle_ns,
    )
