"""The verdict of a comparison follows the intervals; factors are counted honestly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.compare.comparison import compare
from sysbench.core.compare.verdict import MIN_EFFECT
from sysbench.core.record.record import Record, Spread
from sysbench.core.spec.spec import RunSpec
from tests import factories


def spread(low: float, median: float, high: float) -> Spread:
    return factories.spread(median, low, high)


def record(step: Spread | None, spec: RunSpec | None = None, **environment: object) -> Record:
    timing = None if step is None else factories.timing(step)
    return factories.record(spec, environment=dict(environment), timing=timing)


@pytest.mark.parametrize("b_ms", [50.0, 99.0, 100.0, 200.0])
def test_one_process_a_side_is_never_a_difference(b_ms: float) -> None:
    comparison = compare(record(spread(99.9, 100, 100.1)), record(spread(b_ms, b_ms, b_ms)))
    assert comparison.verdict == "not decidable"
    assert comparison.change == pytest.approx(b_ms / 100 - 1)
    assert comparison.change_low is None and comparison.change_high is None
    assert "sysbench-tui ab" in comparison.step.next


OPPOSITE = {"faster": "slower", "slower": "faster", "not decidable": "not decidable"}
rounds = st.lists(st.floats(0.1, 1e4), min_size=4, max_size=10)


@given(rounds, rounds)
def test_verdict_turns_round_when_the_runs_are_swapped(a: list[float], b: list[float]) -> None:
    first, second = (factories.record_of_rounds(side) for side in (a, b))
    there, back = compare(first, second), compare(second, first)
    assert there.change is not None and there.change_low is not None
    assert there.change_high is not None
    assert there.change_low <= there.change <= there.change_high
    if "same" in (there.verdict, back.verdict):
        # The bound on "same" is a quotient, so near it one direction may be just outside.
        assert max(abs(there.change), abs(back.change or 0)) <= 1.01 * MIN_EFFECT
    else:
        assert back.verdict == OPPOSITE[there.verdict]


def test_run_without_timing_is_not_decidable_and_named() -> None:
    comparison = compare(record(spread(1, 1, 1)), record(None))
    assert (comparison.verdict, comparison.change) == ("not decidable", None)
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


def test_another_node_of_a_cluster_is_a_factor_whatever_its_hardware() -> None:
    a, b = (
        record(None, cpu={"model": "one"}, cluster={"node": node}) for node in ("a1b2c3", "d4e5f6")
    )
    (factor,) = compare(a, b).factors
    assert (factor.name, factor.a, factor.b) == ("node", "a1b2c3", "d4e5f6")
    outside = record(None, cpu={"model": "one"})
    assert [one.name for one in compare(a, outside).factors] == ["node"]
