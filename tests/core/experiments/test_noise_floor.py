"""The noise floor: from rounds on disk to the file that comparisons read."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.experiments.experiment import (
    ExperimentDirectory,
    Side,
    create_experiment,
)
from sysbench.core.experiments.noise import (
    NoiseFloor,
    known_noise,
    noise_check,
    noise_floors,
    noise_path,
    save_noise_floor,
)
from sysbench.core.experiments.noise_doctor import NoiseMeasurement, advice, floor_of
from sysbench.core.experiments.plan import plan_of
from sysbench.core.machine.host_sampler import Neighbour
from sysbench.core.machine.read_environment import cpu_model
from sysbench.core.record.events import (
    AnyEvent,
    DeviceDescribed,
    PassEnded,
    PassStarted,
    ResultReported,
    RunEnded,
    RunStarted,
    StageEntered,
)
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import EventLog, load_record
from sysbench.core.spec.spec import RunSpec
from tests import factories

SPEC = RunSpec(device="cpu", steps=12, warmup=1, step="inference", threads=1, batch=1, context=16)
A_DAY_NS = 86_400 * 10**9


@pytest.fixture(autouse=True)
def home(sysbench_home: Path) -> Path:
    return sysbench_home


def with_rounds(medians_ms: dict[Side, list[float]]) -> ExperimentDirectory:
    """An experiment whose rounds had these medians, as its supervisors would have left it."""
    directory = create_experiment(SPEC, SPEC, seed=1, method="blocks")
    sides: tuple[Side, ...] = ("A", "B")
    for side in sides:
        run = directory.run(side)
        with EventLog(run) as log:
            spec = msgspec.to_builtins(SPEC)
            log.append(
                RunStarted(run=run.id, pid=1, identity=SPEC.identity, passes=["timing"], spec=spec)
            )
            for n, median_ms in enumerate(medians_ms[side]):
                for event in round_events(directory.id, side, n, median_ms):
                    log.append(event)
            log.append(RunEnded(status="finished"))
        load_record(run)
    return directory


def measured(directory: ExperimentDirectory) -> NoiseMeasurement:
    return NoiseMeasurement(directory, wait=True, cancel=Cancellation())


def round_events(experiment: str, side: Side, n: int, median_ms: float) -> list[AnyEvent]:
    """Round n of a side, from 0; the sides take turns."""
    start_ns = (2 * n + (side == "B")) * 10**9
    facts = {
        "cpu": {"model": cpu_model()},
        "settings": {"threads": 1},
        "torch": {"version": "2.9.0"},
    }
    step = factories.spread(median_ms, 0.99 * median_ms, 1.01 * median_ms)
    samples_ms = [1.2 * median_ms] * 3 + [median_ms] * 9
    timing = factories.timing(step, samples_ms=samples_ms)
    return [
        PassStarted(
            t_ns=start_ns,
            name="timing",
            pid=1,
            round=n + 1,
            experiment=experiment,
            block=n // 2,
            position=2 * (n % 2) + (side == "B"),
            side=side,
        ),
        DeviceDescribed(t_ns=start_ns, facts=facts),
        StageEntered(t_ns=start_ns, stage="measure"),
        ResultReported(t_ns=start_ns, block="timing", data=msgspec.to_builtins(timing)),
        PassEnded(
            t_ns=start_ns + 10**9,
            name="timing",
            outcome="finished",
            detail="finished",
            seconds=3.0,
            exit_code=0,
            round=n + 1,
            cpu_percent=60.0,
            own_cpu_percent=50.0,
        ),
    ]


def simulated(count: int, spread_a: float, spread_b: float) -> dict[Side, list[float]]:
    draw = random.Random(1)
    return {
        "A": [10 * math.exp(draw.gauss(0, spread_a)) for _ in range(count)],
        "B": [10 * math.exp(draw.gauss(0, spread_b)) for _ in range(count)],
    }


def floor_here(measured_ns: int, **changes: Any) -> NoiseFloor:
    values: dict[str, Any] = {
        "device": cpu_model(),
        "measured_ns": measured_ns,
        "subject": "tiny",
        "identity": "x",
        "rounds": 24,
        "between": 0.012,
        "drift": 0.02,
        "inside": 0.004,
        "residuals": [0.0] * 24,
        "torch": "2.9.0",
    }
    return NoiseFloor(**values | changes)


def test_rounds_become_a_floor_that_plans_and_verdicts_use() -> None:
    measurement = measured(with_rounds(simulated(12, 0.01, 0.01)))
    noise = measurement.noise()
    assert noise is not None
    assert noise.rounds == 24
    floor = floor_of(measurement, noise, SPEC, 180.0)
    assert (floor.device, floor.torch, floor.left_out) == (cpu_model(), "2.9.0", 0)
    assert floor.low is not None and floor.high is not None
    assert floor.low < floor.between < floor.high
    # Another spec on this device, without earlier processes of its own.
    other = SPEC.changed(batch=2)
    before = plan_of(other, other, 10, method="blocks")
    save_noise_floor(floor)
    assert noise_floors() == {floor.device: floor}
    plan = plan_of(other, other, 10, method="blocks")
    assert before.spread is None
    assert plan.spread == floor.between
    assert "24 processes of tiny" in plan.source
    own = plan_of(other, SPEC, 10, method="blocks")  # a spec's own processes come before the floor
    assert "24 earlier processes of B" in own.source
    assert own.smallest is not None and own.smallest > 0
    record = measurement.records["A"]
    known = known_noise(record, record)
    assert (known.floor, known.drift) == (floor.between, floor.drift)


def test_seven_rounds_are_no_floor() -> None:
    rounds = simulated(4, 0.01, 0.01)
    rounds["B"].pop()
    assert measured(with_rounds(rounds)).noise() is None


def test_a_floor_with_tried_remedies_of_an_earlier_version_reads(home: Path) -> None:
    floor = msgspec.to_builtins(floor_here(1))
    tried = {
        "name": "pin to cores 1",
        "before": 0.012,
        "after": 0.006,
        "ratio": 0.5,
        "low": 0.3,
        "high": 0.8,
        "rounds": 16,
        "decided": True,
        "detail": "the spread is smaller with it",
    }
    home.mkdir()
    noise_path().write_bytes(msgspec.json.encode([floor | {"remedies": [tried]}]))
    save_noise_floor(floor_here(2, device="GPU"))
    (remedy,) = noise_floors()[cpu_model()].remedies
    assert msgspec.to_builtins(remedy) == tried


def test_a_floor_of_another_device_is_kept_beside_it() -> None:
    save_noise_floor(floor_here(1, device="GPU"))
    save_noise_floor(floor_here(2))
    save_noise_floor(floor_here(3))
    assert {name: floor.measured_ns for name, floor in noise_floors().items()} == {
        "GPU": 1,
        cpu_model(): 3,
    }


@pytest.mark.parametrize(
    ("days", "torch", "status", "said"),
    [
        (30, "2.9.0", "ok", ""),
        (31, "2.9.0", "warning", "older than 30 days"),
        (0, "2.10.0", "warning", "with torch 2.9.0, here is 2.10.0"),
        (0, None, "ok", ""),
    ],
)
def test_doctor_says_what_the_floor_is_worth(
    days: int, torch: str | None, status: str, said: str
) -> None:
    save_noise_floor(floor_here(A_DAY_NS))
    check = noise_check(cpu_model(), torch, A_DAY_NS * (1 + days))
    assert check.status == status
    assert said in check.costs
    assert "±1.20 % between 24 processes of tiny" in check.found
    assert noise_check("another device", torch, A_DAY_NS).status == "missing"


def test_a_damaged_floor_is_a_warning_of_the_doctor(home: Path) -> None:
    home.mkdir()
    noise_path().write_text("{")
    check = noise_check(cpu_model(), None, 0)
    assert check.status == "warning"
    assert "noise.json" in check.found


def test_advice_names_the_figure_behind_it() -> None:
    measurement = measured(with_rounds(simulated(12, 0.05, 0.05)))
    noise = measurement.noise()
    assert noise is not None
    seen = [Neighbour(name="pytest", cores=100.0)]
    rows = {
        row.name: row.detail
        for row in advice(noise, measurement.observed(), seen, 0.5, "powersave")
    }
    assert "pytest 1e+02 cores" in rows["end other processes"]
    assert "used 10 %" in rows["end other processes"]
    assert "0.50 cores" in rows["another machine"]
    assert "powersave" in rows["governor performance"]
    assert "more processes, not more steps" in rows
    assert "+20.0 %" in rows["longer warm-up"]
    unseen = advice(noise, measurement.observed(), [], 0.0, None)
    assert any("not visible from here" in row.detail for row in unseen)
