from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sysbench.core.analysis.chrome_trace import read_trace
from sysbench.core.analysis.intervals import Cover
from sysbench.core.analysis.nesting import by_thread, nearest, parents, self_times
from sysbench.core.analysis.trace_events import HostEvents

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


def _read(path: Path) -> HostEvents:
    return by_thread(read_trace(path).host)
