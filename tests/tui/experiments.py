"""Experiments on disk, written by hand: rounds of known medians, without a process."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sysbench.core.experiments.experiment import ExperimentDirectory, Side, create_experiment
from sysbench.core.machine.read_environment import cpu_model
from sysbench.core.record.record import Record
from sysbench.core.record.timing import Round
from sysbench.core.runs.run_directory import RunDirectory, create_run
from sysbench.core.spec.spec import RunSpec
from tests import factories

SPEC = RunSpec(device="cpu", threads=1)
OTHER = SPEC.changed(attention="sdpa")
SIDES: tuple[Side, Side] = ("A", "B")
MINUTE_NS = 60 * 10**9


def begun() -> ExperimentDirectory:
    """An experiment without rounds, of naive against fused attention."""
    return create_experiment(SPEC, OTHER, seed=1, method="blocks")


def write_rounds(
    directory: ExperimentDirectory, a: Sequence[float], b: Sequence[float], **fields: object
) -> None:
    """Give both runs these rounds, two a block; one is measured a minute."""
    for side, medians in zip(SIDES, (a, b), strict=True):
        if medians:
            directory.run(side).write_record(_record(directory, side, medians, fields))


def write_pairs(directory: ExperimentDirectory, a: Sequence[float], b: Sequence[float]) -> None:
    """Give both runs a round in each pair, of three turns; the experiment must be of pairs."""
    experiment = directory.experiment()
    for side, medians in zip(SIDES, (a, b), strict=True):
        run = directory.run(side)
        rounds = [
            msgspec.structs.replace(
                row,
                block=pair,
                position=experiment.order(pair).index(side),
                side=side,
                duet=True,
                samples_ms=[ms] * 6,
                turn_steps=[1, 2, 3],
                started_ns=pair * MINUTE_NS,
            )
            for pair, (row, ms) in enumerate(
                zip(factories.rounds(medians, experiment=experiment.id), medians, strict=True)
            )
        ]
        record = factories.record_of_rounds(medians, run.header().spec, experiment=experiment.id)
        assert record.timing is not None
        timing = msgspec.structs.replace(record.timing, rounds=rounds)
        here = {"cpu": {"model": cpu_model()}}
        record = msgspec.structs.replace(record, id=run.id, timing=timing, environment=here)
        run.write_record(record)


def _record(
    directory: ExperimentDirectory, side: Side, medians: Sequence[float], fields: dict[str, object]
) -> Record:
    run, experiment = directory.run(side), directory.experiment()
    places = [
        (block, position)
        for block in range(len(medians))
        for position, name in enumerate(experiment.order(block))
        if name == side
    ]
    rounds = [
        msgspec.structs.replace(
            row,
            block=block,
            position=position,
            side=side,
            started_ns=(4 * block + position) * MINUTE_NS,
        )
        for row, (block, position) in zip(
            factories.rounds(medians, experiment=experiment.id, **fields), places, strict=False
        )
    ]
    record = factories.record_of_rounds(medians, run.header().spec, experiment=experiment.id)
    assert record.timing is not None
    timing = msgspec.structs.replace(record.timing, rounds=rounds)
    return msgspec.structs.replace(record, id=run.id, timing=timing)


def with_fixed_names(directory: ExperimentDirectory) -> ExperimentDirectory:
    """The experiment under names that do not change from one test run to the next."""
    runs = {side: directory.run(side) for side in SIDES}
    names = {side: f"20261121-12000{place}-tiny-ab0{place}" for place, side in enumerate(SIDES)}
    moved = ExperimentDirectory(directory.path.with_name("20261121-120000-ab00"))
    experiment = msgspec.structs.replace(
        directory.experiment(), id=moved.id, a=names["A"], b=names["B"]
    )
    directory.write("experiment.json", experiment)
    directory.path.rename(moved.path)
    for side, run in runs.items():
        record = run.record()
        assert record.timing is not None
        rounds = [msgspec.structs.replace(row, experiment=moved.id) for row in record.timing.rounds]
        timing = msgspec.structs.replace(record.timing, rounds=rounds)
        run.write_record(msgspec.structs.replace(record, id=names[side], timing=timing))
        run.path.rename(run.path.with_name(names[side]))
    return moved


def disturb(run: RunDirectory, index: int, why: str) -> None:
    """Mark one round of a record as not counting."""
    record = run.record()
    assert record.timing is not None
    rounds: list[Round] = [
        msgspec.structs.replace(row, disturbed=why) if row.index == index else row
        for row in record.timing.rounds
    ]
    timing = msgspec.structs.replace(record.timing, rounds=rounds)
    run.write_record(msgspec.structs.replace(record, timing=timing))


def timed_run(*medians: float, **changes: object) -> RunDirectory:
    """A run of N processes, one median each."""
    spec = SPEC.changed(**changes)
    run = create_run(spec, ["timing"])
    record = factories.record_of_rounds(medians, spec)
    here = {"cpu": {"model": cpu_model()}}
    record = msgspec.structs.replace(record, id=run.id, created_ns=run.header().created_ns)
    run.write_record(msgspec.structs.replace(record, environment=here))
    return run
