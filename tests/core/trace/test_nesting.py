from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sysbench.core.trace import trace_events as nesting
from sysbench.core.trace.intervals import Cover
from sysbench.core.trace.trace_events import HostEvents, by_thread, nearest, parents, self_times
from sysbench.core.trace.trace_reader import read_trace

# A thread's calls: what runs before, inside and after each.
CALLS = st.recursive(
    st.integers(0, 5),
    lambda inside: st.lists(inside, min_size=1, max_size=4),
    max_leaves=20,
)


def test_parents_are_found_per_thread(writer: Any) -> None:
    writer.op("outer", 0, 100)
    writer.op("other thread", 5, 10, tid=9)
    writer.op("inner", 10, 50)
    writer.op("innermost", 10, 20)
    writer.op("next", 30, 10)
    writer.op("after", 100, 5)
    trace = read_trace(writer.write())
    events = by_thread(trace.host)
    names = [trace.names[name] for name in events.name]
    parent = parents(events)
    around = {names[index]: names[above] for index, above in enumerate(parent) if above >= 0}
    assert around == {"inner": "outer", "innermost": "inner", "next": "inner"}
    is_outer = events.name == trace.names.index("outer")
    under = {names[index] for index, above in enumerate(nearest(is_outer, parent)) if above >= 0}
    assert under == {"outer", "inner", "innermost", "next"}


def _write(writer: Any, call: Any, now: int) -> int:
    """Write a call and what is inside it; returns when it ends."""
    if isinstance(call, int):
        writer.op("leaf", now, call)
        return now + call
    end = now + 1
    for inside in call:
        end = _write(writer, inside, end) + 1
    writer.op("call", now, end - now)
    return end


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CALLS)
def test_self_times_are_disjoint_and_sum_to_the_whole(writer: Any, calls: Any) -> None:
    writer.events.clear()
    length = _write(writer, calls, 0)
    events = _read(writer.write())
    owner, start, end = self_times(events, parents(events))
    assert (end > start).all()
    assert int((end - start).sum()) == Cover(start, end).total == length
    assert ((start >= events.start[owner]) & (end <= events.end[owner])).all()


EVENTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 30), st.sampled_from([1, 2])), max_size=30
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS, rounds=st.sampled_from([0, 1, 2, 100]))
def test_the_parent_is_the_last_before_that_has_not_ended(
    writer: Any, events: list[tuple[int, int, int]], rounds: int
) -> None:
    """By these words, one event after the other; also where events overlap without nesting."""
    writer.events.clear()
    for start, duration, thread in events:
        writer.op("call", start, duration, tid=thread)
    host = _read(writer.write())
    columns = [column.tolist() for column in (host.thread, host.start, host.end)]
    rows = list(zip(*columns, strict=True))
    expected = []
    for index, (thread, start, _) in enumerate(rows):
        before = [above for above in range(index) if rows[above][0] == thread]
        expected.append(max((above for above in before if rows[above][2] > start), default=-1))
    with patch.object(nesting, "ROUNDS", rounds):
        assert parents(host).tolist() == expected


def test_endless_nesting_takes_no_endless_time(writer: Any) -> None:
    """Ten thousand levels, then as many events after them: each finds its way to the top."""
    depth = 10_000
    for level in range(depth):
        writer.op("level", level, 4 * depth - 2 * level)
    for late in range(depth):
        writer.op("late", 4 * depth + late, 1)
    parent = parents(_read(writer.write()))
    assert parent.tolist() == [*range(-1, depth - 1), *[-1] * depth]


def _read(path: Path) -> HostEvents:
    return by_thread(read_trace(path).host)
