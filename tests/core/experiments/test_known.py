"""What the library knows of a spec's noise, and what a plan promises from it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from sysbench.core.errors import DamagedFileError
from sysbench.core.experiments import noise as known
from sysbench.core.experiments.noise import (
    NoiseFloor,
    known_noise,
    noise_path,
    noise_to_plan_with,
    runs_of,
    save_noise_floor,
)
from sysbench.core.experiments.plan import plan_of
from sysbench.core.machine.read_environment import cpu_model
from sysbench.core.record.record import PassRecord, Record
from sysbench.core.runs.library import Library
from sysbench.core.runs.run_directory import RunDirectory, create_run, load_record
from sysbench.core.spec.spec import RunSpec
from tests import factories

SPEC = RunSpec(device="cpu", batch=1)
OTHER = SPEC.changed(batch=2)
FLOOR = NoiseFloor(
    device=cpu_model(),
    measured_ns=0,
    subject="tiny",
    identity="x",
    rounds=20,
    between=0.02,
    drift=0.0,
    inside=0.001,
    residuals=[0.02 * math.sin(n) for n in range(20)],
)


@pytest.fixture(autouse=True)
def home(sysbench_home: Path) -> Path:
    return sysbench_home


def stored(
    medians_ms: Sequence[float], spec: RunSpec = SPEC, *, seconds: float = 4.0, cpu: str = ""
) -> RunDirectory:
    """A finished run with one round per median."""
    run = create_run(spec, ["timing"])
    made = factories.record_of_rounds(medians_ms, spec)
    ended = PassRecord("timing", "finished", "finished", seconds * len(medians_ms), 10.0)
    environment = {"cpu": {"model": cpu or cpu_model()}}
    run.write_record(
        msgspec.structs.replace(made, id=run.id, passes=[ended], environment=environment)
    )
    return run


def test_a_large_library_is_searched_without_decoding_records_of_other_specs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = stored([10.0], OTHER)
    for n in range(999):
        copy = shutil.copytree(first.path, home / "runs" / f"20200101-000000-tiny-{n:04x}")
        (copy / "supervisor.lock").unlink(missing_ok=True)
    Library().refresh()
    mine = [stored([10.0 + n]).id for n in range(3)]
    decoded: list[str] = []

    def counting(run: RunDirectory) -> Record:
        decoded.append(run.id)
        return load_record(run)

    Library().refresh()
    monkeypatch.setattr(known, "load_record", counting)
    assert {record.id for record in runs_of(SPEC.identity)} == set(mine)
    assert sorted(decoded) == sorted(mine)


def test_runs_of_bare_attention_are_found() -> None:
    spec = RunSpec(workload="attention", d_model=64, heads=1, device="cpu", step="inference")
    run = stored([10.0], spec)
    assert [record.id for record in runs_of(spec.identity)] == [run.id]


def test_known_noise_has_all_processes_of_the_two_specs_on_this_machine() -> None:
    a, b = stored([10.0, 10.1]), stored([20.0], OTHER)
    stored([11.0])
    stored([99.0], cpu="another machine")
    save_noise_floor(FLOOR)
    noise = known_noise(load_record(a), load_record(b))
    assert sorted(noise.a_ms) == [10.0, 10.1, 11.0]
    assert noise.b_ms == (20.0,)
    assert noise.floor == 0.02


def test_the_noise_of_rounds_is_that_within_runs() -> None:
    runs = [factories.record_of_rounds([level, 1.01 * level] * 2) for level in (10, 20, 40)]
    noise = noise_to_plan_with(runs, [], None)
    assert noise is not None
    assert noise.spread == pytest.approx(0.00577, rel=0.01)  # 0.00498 by sqrt(12 / 9)
    assert "12 earlier processes of A" in noise.source


def test_single_processes_stand_together_where_rounds_are_too_few() -> None:
    runs = [factories.record_of_rounds([ms]) for ms in (10, 10.2, 9.8, 10.1, 9.9)]
    noise = noise_to_plan_with([], runs, None)
    assert noise is not None
    assert noise.spread == pytest.approx(0.0158, rel=0.02)
    assert "5 earlier processes of B" in noise.source
    assert noise_to_plan_with(runs[:4], runs[:4], None) is None


def test_the_noisier_side_stands_for_both_and_a_floor_for_none() -> None:
    calm = [factories.record_of_rounds([10, 10.01] * 3)]
    loud = [factories.record_of_rounds([10, 10.5] * 3)]
    for sides in ((calm, loud), (loud, calm)):
        noise = noise_to_plan_with(*sides, FLOOR)
        assert noise is not None and noise.spread > 0.02
    of_floor = noise_to_plan_with([], [], FLOOR)
    assert of_floor is not None
    assert of_floor.spread == 0.02 and "noise floor" in of_floor.source


def test_a_plan_without_any_figure_says_what_is_missing_and_what_to_do() -> None:
    plan = plan_of(SPEC, OTHER, 15, method="blocks")
    assert (plan.round_seconds, plan.blocks, plan.spread, plan.smallest) == (None,) * 4
    assert set(plan.missing) == {"round_seconds", "blocks", "spread", "smallest"}
    assert "doctor --noise" in plan.missing["spread"]


def test_a_plan_has_rounds_from_both_sides_and_power_that_rises() -> None:
    stored([10.0, 10.1, 9.9, 10.05, 9.95, 10.0], seconds=2.0)
    stored([20.0], OTHER, seconds=4.0)
    plan = plan_of(SPEC, OTHER, max_minutes=2, method="blocks")
    assert plan.round_seconds == pytest.approx(3)  # two rounds of either side in a block
    assert plan.blocks == 10
    assert plan.smallest is not None and 0.002 < plan.smallest < 0.03
    powers = [promise.power for promise in plan.promises]
    assert powers == sorted(powers) and powers[-1] > 0.99
    assert plan.missing == {}


@pytest.mark.parametrize(("minutes", "smallest_is_known"), [(0.1, False), (0.6, True)])
def test_a_plan_of_too_little_time_promises_nothing(
    minutes: float, smallest_is_known: bool
) -> None:
    save_noise_floor(FLOOR)
    stored([10.0], seconds=3.0)
    plan = plan_of(SPEC, SPEC, minutes, method="blocks")
    assert (plan.smallest is not None) is smallest_is_known
    assert bool(plan.promises) is smallest_is_known
    if not smallest_is_known:
        assert "3 blocks are needed" in plan.missing["smallest"]


def test_runs_of_another_machine_are_no_plan() -> None:
    stored([10.0] * 6, cpu="another machine")
    assert plan_of(SPEC, SPEC, 15, method="blocks").round_seconds is None


def test_a_damaged_floor_is_reported(home: Path) -> None:
    home.mkdir(exist_ok=True)
    noise_path().write_bytes(b"[{")
    with pytest.raises(DamagedFileError, match="measure again"):
        plan_of(SPEC, SPEC, 15, method="blocks")
