"""The verdict of a comparison follows the intervals; factors are counted honestly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.analysis.compare import compare
from sysbench.core.analysis.verdict import SAME_WITHIN
from sysbench.core.record.record import Record, Spread
from sysbench.core.spec.spec import RunSpec

from ... import factories


def spread(low: float, median: float, high: float) -> Spread:
    return factories.spread(median, low, high)


def record(step: Spread | None, spec: RunSpec | None = None, **environment: object) -> Record:
    timing = None if step is None else factories.timing(step)
    return factories.record(spec, environment=dict(environment), timing=timing)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ((9.9, 10.0, 10.1), (7.9, 8.0, 8.1), "FASTER"),
        ((9.9, 10.0, 10.1), (11.9, 12.0, 12.1), "SLOWER"),
        ((9.95, 10.0, 10.05), (9.96, 10.01, 10.06), "SAME"),
        ((8.0, 10.0, 12.0), (7.0, 9.0, 11.0), "AMBIGUOUS"),
    ],
)
def test_verdict_follows_the_intervals(
    a: tuple[float, float, float], b: tuple[float, float, float], verdict: str
) -> None:
    assert compare(record(spread(*a)), record(spread(*b))).verdict == verdict


OPPOSITE = {"FASTER": "SLOWER", "SLOWER": "FASTER", "AMBIGUOUS": "AMBIGUOUS"}
three = st.lists(st.floats(0.1, 1e4), min_size=3, max_size=3).map(sorted)


@given(three, three)
def test_verdict_turns_round_when_the_runs_are_swapped(a: list[float], b: list[float]) -> None:
    there = compare(record(spread(*a)), record(spread(*b)))
    back = compare(record(spread(*b)), record(spread(*a)))
    if "SAME" in (there.verdict, back.verdict):
        # The bound on "same" is a quotient, so near it one direction may be just outside.
        assert {there.verdict, back.verdict} <= {"SAME", "AMBIGUOUS"}
    else:
        assert back.verdict == OPPOSITE[there.verdict]
    assert there.change is not None and there.change_low is not None
    assert there.change_high is not None
    assert there.change_low <= there.change <= there.change_high
    if there.verdict == "SAME":
        assert abs(there.change) <= SAME_WITHIN


def test_run_without_timing_is_ambiguous_and_named() -> None:
    comparison = compare(record(spread(1, 1, 1)), record(None))
    assert (comparison.verdict, comparison.change) == ("AMBIGUOUS", None)
    assert comparison.why == "no timing in run"
    assert [(one.name, one.b_ms) for one in comparison.phases] == [
        ("step", None),
        ("forward", None),
    ]


def factors(a: RunSpec, b: RunSpec) -> list[str]:
    return [one.name for one in compare(record(None, a), record(None, b)).factors]


def test_another_model_is_one_factor() -> None:
    tiny = RunSpec(model="tiny", device="cpu")
    assert factors(tiny, tiny.changed(model="cs336-2025/small")) == ["model"]
    custom = RunSpec(vocab=64, d_model=32, d_ff=64, layers=1, heads=2, device="cpu")
    assert factors(custom, custom.changed(layers=2)) == ["layers"]


def test_settings_that_neither_run_used_are_no_factors() -> None:
    forward = RunSpec(step="forward", device="cpu")
    assert factors(forward, forward.changed(optimizer="sgd", compile_fullgraph=True)) == []
    train = RunSpec(step="train", device="cpu")
    assert factors(train, train.changed(optimizer="sgd", batch=8)) == ["batch", "optimizer"]


def test_how_long_was_measured_is_no_factor() -> None:
    short = RunSpec(device="cpu", steps=10)
    comparison = compare(record(None, short), record(None, short.changed(steps=20)))
    assert comparison.factors == []
    assert [(one.name, one.a, one.b) for one in comparison.procedure] == [("steps", 10, 20)]


def test_another_machine_is_a_factor() -> None:
    a = record(None, cpu={"model": "one"}, torch={"version": "2.13.0"})
    b = record(None, cpu={"model": "two"}, torch={"version": "2.14.0"})
    assert [one.name for one in compare(a, b).factors] == ["device_name", "torch"]
