"""Experiments on disk: their order, their names, finding one by a text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.errors import DamagedFileError, NotFoundError, SpecError
from sysbench.core.experiments.experiment import (
    Experiment,
    create_experiment,
    experiment_meant,
    find_experiment,
    list_experiments,
)
from sysbench.core.experiments.plan import Plan, Promise
from sysbench.core.runs.run_directory import list_runs
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import locked

SPEC = RunSpec(device="cpu", batch=1)


@pytest.fixture(autouse=True)
def home(sysbench_home: Path) -> Path:
    return sysbench_home


@given(st.integers(0, 2**32))
def test_every_block_is_balanced_and_its_order_depends_on_the_seed_alone(seed: int) -> None:
    experiment = Experiment(id="x", created_ns=0, a="a", b="b", seed=seed)
    orders = [experiment.order(block) for block in range(64)]
    assert set(orders) == {("A", "B", "B", "A"), ("B", "A", "A", "B")}
    assert orders == [experiment.order(block) for block in range(64)]


def test_the_forecast_is_kept_with_the_decisions() -> None:
    plan = Plan(round_seconds=2.0, blocks=9, spread=0.01, promises=[Promise(0.01, 0.5)])
    directory = create_experiment(SPEC, SPEC, seed=7, gate=0.03, plan=plan)
    experiment = find_experiment("last").experiment()
    assert (experiment.seed, experiment.gate, experiment.plan) == (7, 0.03, plan)
    assert {run.id for run in list_runs()} == {experiment.a, experiment.b}
    assert directory.run("B").header().passes == ["timing"]


def test_a_spec_without_steps_leaves_no_run_behind() -> None:
    with pytest.raises(SpecError, match="timing"):
        create_experiment(SPEC, RunSpec(workload="accumulation", device="cpu"))
    assert list_runs() == [] and list_experiments() == []


def test_an_experiment_is_named_by_a_part_of_its_id_and_by_its_live_runs() -> None:
    first, second = create_experiment(SPEC, SPEC), create_experiment(SPEC, SPEC)
    create_experiment(SPEC, SPEC, purpose="noise")
    assert find_experiment("last").id == max(first.id, second.id)
    assert find_experiment(second.id[4:]).id == second.id
    with pytest.raises(NotFoundError, match="ambiguous"):
        find_experiment("20")
    with pytest.raises(NotFoundError, match="sysbench-tui ab"):
        find_experiment("nothing")
    meant = experiment_meant(first.id)
    assert meant is not None and meant.id == first.id
    run = second.experiment().a
    assert experiment_meant(run) is None
    assert experiment_meant("nothing") is None
    with locked(second.lock_path):
        meant = experiment_meant(run)
        assert meant is not None and meant.id == second.id


def test_a_damaged_plan_is_reported_with_its_path() -> None:
    directory = create_experiment(SPEC, SPEC)
    (directory.path / "experiment.json").write_bytes(b"{")
    with pytest.raises(DamagedFileError, match=r"experiment\.json"):
        directory.experiment()
