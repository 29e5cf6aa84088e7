"""Marks of a process, divided into steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import fsum

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.record.job import JobRank, JobStep, step_phases
from sysbench.core.watch.job_block import job_block
from sysbench.core.watch.job_steps import StepFold, StepMark, pattern


class Clock:
    """Marks one after another, each of some nanoseconds, with gaps."""

    def __init__(self) -> None:
        self.now = 1_000

    def mark(self, kind: str, *facts: object, lasts: int = 10, gap: int = 1) -> StepMark:
        start = self.now + gap
        self.now = start + lasts
        return StepMark(kind, start, self.now, None, facts)

    def optimizer(self, number: int, inside: bool = False) -> StepMark:
        return self.mark("o", number, inside, None, None, None)

    def forward(self, gradients: bool = True) -> StepMark:
        return self.mark("f", gradients, 8, 2)


def folded(marks: Sequence[StepMark]) -> list[JobStep]:
    fold = StepFold(rank=3, epoch_ns=0)
    for mark in marks:
        fold.take(mark)
    fold.finish()
    return fold.steps


def steps_of_pattern(optimizers: Sequence[int], steps: int, micro: int = 1) -> Iterator[StepMark]:
    clock = Clock()
    for _ in range(steps):
        for number in optimizers:
            for _ in range(micro):
                yield clock.mark("i", "train.py:3", 0)
                yield clock.forward()
                yield clock.mark("b")
            yield clock.optimizer(number)


def test_traced_steps_are_not_in_the_median_of_a_rank() -> None:
    steps = [
        msgspec.structs.replace(step, wall_ms=900 if index % 3 else 10, traced=index % 3 > 0)
        for index, step in enumerate(folded([*steps_of_pattern([0], 30)]))
    ]
    (rank,) = job_block([], 0, 0, 1e3, [JobRank(rank=3, host="", pid=1)], {3: steps}).ranks
    assert rank.median_ms == 10.0 and rank.steps == len(steps)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=6).filter(
        lambda numbers: pattern([*numbers, *numbers, *numbers]) == len(numbers)
    ),
    st.integers(2, 40),
    st.integers(1, 3),
)
def test_a_step_is_one_repetition(optimizers: list[int], steps: int, micro: int) -> None:
    marks = [*steps_of_pattern(optimizers, steps, micro)]
    found = folded(marks)
    assert len(found) == steps
    assert {step.micro_batches for step in found} == {micro * len(optimizers)}
    assert {step.tokens for step in found} == {8 * micro * len(optimizers)}
    assert fsum(step.wall_ms for step in found) == pytest.approx(
        (marks[-1].end_ns - marks[0].start_ns) / 1e6
    )
    for step in found:
        assert fsum(step_phases(step).values()) == pytest.approx(step.wall_ms)
        assert step.rank == 3


@given(st.integers(1, 200), st.sets(st.integers(0, 199)))
def test_a_scaler_counts_the_steps_that_it_skips(steps: int, skipped: set[int]) -> None:
    clock, marks = Clock(), []
    for number in range(steps):
        marks += [clock.forward(), clock.mark("b")]
        marks += [] if number in skipped else [clock.optimizer(0)]
        marks += [clock.mark("u", lasts=0)]
    found = folded(marks)
    assert [step.step for step in found if step.skipped] == sorted(
        number for number in skipped if number < steps
    )
    assert len(found) == steps


@given(st.integers(1, 100), st.integers(1, 5))
def test_optimizers_inside_the_backward_are_one_step(steps: int, parameters: int) -> None:
    clock, marks = Clock(), []
    for _ in range(steps):
        marks.append(clock.forward())
        start = clock.now
        marks += [clock.optimizer(number, inside=True) for number in range(parameters)]
        marks.append(StepMark("b", start, clock.now, None, ()))
    found = folded(marks)
    assert len(found) == steps
    for step in found:
        assert step.backward_ms + step.optimizer_ms <= step.wall_ms * (1 + 1e-9)
        assert step.optimizer_ms == pytest.approx(parameters * 1e-5)


def test_evaluation_is_apart_from_training() -> None:
    clock = Clock()
    marks = []
    for _ in range(3):
        marks += [clock.forward(gradients=False), clock.forward(), clock.mark("b")]
        marks.append(clock.optimizer(0))
    for step in folded(marks):
        assert step.evaluation_ms == step.forward_ms == pytest.approx(1e-5)
        assert step.tokens == 8


def test_a_second_optimizer_that_comes_late_changes_the_pattern() -> None:
    """Twenty steps of one network, then one of the other, as some adversarial trainings have."""
    marks = [*steps_of_pattern([*[0] * 20, 1], steps=3)]
    assert len(folded(marks)) == 3


def test_an_unfinished_step_is_no_step() -> None:
    marks = [*steps_of_pattern([0], steps=3)]
    clock = Clock()
    clock.now = marks[-1].end_ns
    assert len(folded([*marks, clock.forward(), clock.mark("b")])) == 3


def test_device_times_replace_those_of_the_host() -> None:
    clock = Clock()
    marks = []
    for _ in range(2):
        marks += [clock.forward()._replace(device_ns=3), clock.mark("b")._replace(device_ns=5)]
        marks.append(clock.optimizer(0)._replace(device_ns=7))
    for step in folded(marks):
        times = (step.forward_ms, step.backward_ms, step.optimizer_ms)
        assert times == pytest.approx((3e-6, 5e-6, 7e-6))


def test_a_closure_has_its_parts_inside_of_the_optimizer() -> None:
    """The forward and the backward count once, and a wait in the backward is communication."""
    marks = []
    for start in (0, 100):
        for kind, first, last, facts in (
            ("f", 10, 30, (True, None, 2)),
            ("c", 50, 60, ()),
            ("b", 30, 60, ()),
            ("o", 0, 90, (0, False, None, None, None)),
        ):
            marks.append(StepMark(kind, start + first, start + last, None, facts))
    for step in folded(marks):
        times = (step.forward_ms, step.backward_ms, step.communication_ms, step.optimizer_ms)
        assert times == pytest.approx((20e-6, 20e-6, 10e-6, 40e-6))
        assert fsum(step_phases(step).values()) == pytest.approx(step.wall_ms)


def test_communication_is_unknown_without_a_wait() -> None:
    assert {step.communication_ms for step in folded([*steps_of_pattern([0], steps=3)])} == {None}
