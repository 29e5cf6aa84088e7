"""Two processes that take turns, as threads with real pipes and as workers with real steps."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from sysbench.core.compare.compared_records import duet_pairs
from sysbench.core.experiments.experiment import create_experiment
from sysbench.core.experiments.experiment_runner import run_experiment
from sysbench.core.record.events import StepsTimed, WarmupStepTimed
from sysbench.core.runs.run_directory import load_record
from sysbench.core.runs.worker_process import FIRST_TURN
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.passes.timing_pass import PAIR_TURNS, Turns, time_steps
from sysbench.core.worker.step_clock import HostClock
from sysbench.core.worker.workloads.stepped_workload import EnterPhase

PATIENCE_SECONDS = 30


def pair() -> tuple[tuple[int, int], tuple[int, int]]:
    """The ends of both sides; the first one has the turn."""
    to_first, to_second = os.pipe(), os.pipe()
    os.write(to_first[1], FIRST_TURN)
    return (to_first[0], to_second[1]), (to_second[0], to_first[1])


def run_both(counts: tuple[int, int]) -> list[str]:
    """What each side does in its turns, in order, when they take these numbers of turns."""
    log: list[str] = []

    def work(name: str, ends: tuple[int, int], count: int) -> None:
        turns = Turns(ends)
        turns.take()
        for n in range(count):
            log.append(f"{name} begins")
            log.append(f"{name} ends")
            if n + 1 < count:
                turns.give_way()
        turns.finish()
        log.append(f"{name} left")

    threads = [
        threading.Thread(target=work, args=(name, ends, count), daemon=True)
        for name, ends, count in zip("AB", pair(), counts, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    return log


def test_only_one_side_works_at_a_time_and_both_leave_together() -> None:
    log = run_both((3, 3))
    turn = ["A begins", "A ends", "B begins", "B ends"]
    assert log[:12] == turn * 3
    assert set(log[12:]) == {"A left", "B left"}


@pytest.mark.parametrize("counts", [(1, 4), (4, 1)])
def test_a_side_with_fewer_turns_stays_until_the_other_has_finished(
    counts: tuple[int, int],
) -> None:
    log = run_both(counts)
    assert len(log) == 12
    assert set(log[10:]) == {"A left", "B left"}


def test_a_dead_partner_leaves_the_other_side_alone() -> None:
    first, second = pair()
    for end in second:
        os.close(end)
    turns = Turns(first)
    turns.take()
    turns.give_way()
    turns.give_way()
    turns.finish()


def test_without_a_partner_nothing_waits() -> None:
    turns = Turns()
    assert not turns.is_pair
    turns.take()
    turns.give_way()
    turns.finish()


class Sleeper:
    """A workload that counts its steps."""

    def __init__(self, seconds: float) -> None:
        self.spec = RunSpec(device="cpu", warmup=2)
        self.steps = 0
        self._seconds = seconds

    def step(self, enter: EnterPhase) -> None:
        enter("forward")
        time.sleep(self._seconds)
        self.steps += 1
        enter("")

    def loss_value(self) -> float | None:
        return None


@pytest.mark.parametrize(("seconds", "uncounted"), [(0.002, PAIR_TURNS), (0.25, 0)])
def test_the_first_step_of_a_turn_is_not_counted_unless_it_fills_the_turn(
    seconds: float, uncounted: int
) -> None:
    first, second = pair()
    for end in second:
        os.close(end)  # the partner takes no turn
    workload = Sleeper(seconds)
    timing = time_steps(workload, HostClock(), lambda event: None, Turns(first))
    assert len(timing.batch_steps) == PAIR_TURNS
    assert workload.steps == 2 + sum(timing.batch_steps) + uncounted


def test_two_workers_take_turns_and_the_pair_counts(sysbench_home: Path) -> None:
    spec = RunSpec(device="cpu", threads=1, batch=1, context=32, step="inference", warmup=2)
    directory = create_experiment(spec, spec, max_minutes=1e-6, seed=1, method="duet")
    list(run_experiment(directory))
    records = [load_record(directory.run(side)) for side in ("A", "B")]
    timings = [record.timing for record in records]
    assert timings[0] is not None and timings[1] is not None
    ((a, b),) = duet_pairs(timings[0].rounds, timings[1].rounds)
    for row, timing in ((a, timings[0]), (b, timings[1])):
        assert len(row.turn_steps) == PAIR_TURNS and row.turn_steps == timing.batch_steps
        assert sum(row.turn_steps) == len(row.samples_ms) <= spec.max_steps
        assert timing.stop_reason == f"the {PAIR_TURNS} turns of its pair are done"
    events = sorted(
        (event.t_ns, side, type(event))
        for side in ("A", "B")
        for event in directory.run(side).tail().read()
        if isinstance(event, StepsTimed | WarmupStepTimed)
    )
    order = directory.experiment().order(0)
    warmups = [side for _, side, kind in events if kind is WarmupStepTimed]
    assert warmups == [order[0]] * 2 + [order[1]] * 2
    assert [side for _, side, kind in events if kind is StepsTimed] == list(order) * PAIR_TURNS
