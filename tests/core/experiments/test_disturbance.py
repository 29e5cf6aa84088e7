"""A round is disturbed by what came, never by its time."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.compare.conditions import (
    DEFAULT_ROUNDS,
    MAX_REPEATS,
    accepted_rounds,
    disturbance,
)
from sysbench.core.record.timing import Round
from tests import factories

loads = st.floats(0, 100)


def seen(load: float | None, *tenants: str, n: int = 0, **fields: object) -> Round:
    """A round in which other processes used ``load`` percent of the cores."""
    (row,) = factories.rounds([10.0])
    busy = None if load is None else load + 20
    own = None if load is None else 20.0
    changes = {"cpu_percent": busy, "own_cpu_percent": own, "tenants": list(tenants)}
    return msgspec.structs.replace(row, started_ns=n, index=n + 1, **changes, **fields)


def before(*percents: float) -> list[Round]:
    return [seen(load, n=n) for n, load in enumerate(percents)]


@pytest.mark.parametrize(
    ("earlier", "load", "disturbed"),
    [
        ((10, 10, 10), 60, True),
        ((10, 10, 10), 24, False),  # less than the jump
        ((10, 60, 10), 60, False),  # a process that comes and goes is usual
        ((10, 60, 10), 61, True),
        ((60, 60, 60), 10, False),  # one that left disturbs nothing
        ((10,), 90, False),  # one round says nothing of what is usual
    ],
)
def test_others_must_take_more_than_ever_lately_and_clearly_more_than_usual(
    earlier: tuple[float, ...], load: float, disturbed: bool
) -> None:
    assert bool(disturbance(seen(load, n=99), before(*earlier))) is disturbed


def test_unknown_loads_disturb_nothing() -> None:
    assert disturbance(seen(None, n=9), before(10, 10)) == ""
    assert disturbance(seen(90, n=9), [seen(None), seen(None), seen(10)]) == ""


def test_a_new_tenant_of_the_device_is_named_and_one_that_was_there_is_not() -> None:
    earlier = [seen(None, "python (7)"), seen(None)]
    assert disturbance(seen(None, "python (7)"), earlier) == ""
    assert disturbance(seen(None, "python (7)", "java (8)"), earlier) == (
        "java (8) came to the device"
    )


def test_what_disturbed_rounds_saw_is_not_usual() -> None:
    earlier = [*before(10, 10), seen(60, "java (8)", n=3, disturbed="java (8) came")]
    assert disturbance(seen(60, n=4), earlier)
    assert disturbance(seen(None, "java (8)", n=4), earlier)


def test_what_is_usual_is_forgotten_after_some_rounds() -> None:
    assert not disturbance(seen(60, n=99), before(60, *[10] * (DEFAULT_ROUNDS - 1)))
    assert disturbance(seen(60, n=99), before(60, *[10] * DEFAULT_ROUNDS))


@given(st.lists(loads, max_size=12), loads, st.floats(0.1, 1e4), st.floats(0.1, 1e4))
def test_times_play_no_part(
    earlier: list[float], load: float, own_ms: float, others_ms: float
) -> None:
    rows = before(*earlier)
    timed = [msgspec.structs.replace(row, median_ms=others_ms) for row in rows]
    row = seen(load, n=99)
    assert disturbance(row, rows) == disturbance(
        msgspec.structs.replace(row, median_ms=own_ms), timed
    )


def test_only_a_neighbour_that_outlasts_the_repeats_is_accepted() -> None:
    place = {"block": 0, "position": 2}
    repeats = [seen(60, n=2 + n, disturbed="came", **place) for n in range(MAX_REPEATS)]
    last = seen(60, n=9, **place)
    assert accepted_rounds([*before(10, 10), *repeats, last]) == [last]
    quiet = seen(10, n=9, **place)
    assert accepted_rounds([*before(10, 10), *repeats, quiet]) == []
    assert accepted_rounds([*before(10, 10), last]) == []
