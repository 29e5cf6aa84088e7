"""Which run a compiled one is held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.record.record import Record
from sysbench.core.record.timing import Round
from sysbench.core.runs.related import compile_break_even, eager_counterpart, eager_spec
from sysbench.core.runs.run_directory import RunDirectory, create_run
from sysbench.core.spec.spec import RunSpec
from tests import factories

BLOCK = factories.compiled(
    scope="block", first_step_ms=1e4, compile_seconds=10.0, cold_seconds=10.0, warm_seconds=1.0
)


def written(like: RunDirectory, scale: float, **changes: Any) -> Record:
    """A run like the given one, its spec changed and its steps as much longer."""
    record = like.record()
    assert record.timing is not None
    spec = msgspec.convert(record.spec, RunSpec).changed(**changes)
    step = record.timing.step
    scaled = msgspec.structs.replace(
        step,
        median_ms=step.median_ms * scale,
        ci_low_ms=step.ci_low_ms * scale,
        ci_high_ms=step.ci_high_ms * scale,
    )
    run = create_run(spec, ["timing"])
    record = msgspec.structs.replace(
        record,
        id=run.id,
        created_ns=run.header().created_ns,
        identity=spec.identity,
        spec=msgspec.to_builtins(spec),
        timing=msgspec.structs.replace(record.timing, step=scaled),
        compile=BLOCK if spec.compile != "off" else None,
    )
    run.write_record(record)
    return record


def test_the_twin_differs_in_compile_alone(gpu_run: RunDirectory, sysbench_home: Path) -> None:
    compiled = written(gpu_run, 1.0, compile="default", compile_scope="block")
    written(gpu_run, 9.0, batch=2)
    assert eager_counterpart(compiled) is not None  # the run that all are like
    twin = written(gpu_run, 2.0)
    assert eager_spec(compiled).identity == twin.identity
    found = compile_break_even(compiled)
    assert found is not None
    assert found.speed_up == 2.0
    assert found.eager_run == twin.id
    assert found.steps_cold == 1000  # 10 s over the 10 ms that a step saves


def test_another_torch_is_not_the_twin(gpu_run: RunDirectory, sysbench_home: Path) -> None:
    compiled = written(gpu_run, 1.0, compile="default")
    other = msgspec.structs.replace(compiled, environment={"torch": {"version": "2.9.0"}})
    assert eager_counterpart(other) is None
    found = compile_break_even(other)
    assert found is not None
    assert "sysbench-tui run" in found.missing["eager_ms"]
    assert "compile" not in found.missing["eager_ms"]


def test_an_eager_run_has_nothing_to_weigh(gpu_run: RunDirectory) -> None:
    assert compile_break_even(gpu_run.record()) is None


def test_an_eager_run_whose_timing_does_not_count_is_no_twin(
    gpu_run: RunDirectory, sysbench_home: Path
) -> None:
    compiled = written(gpu_run, 1.0, compile="default", compile_scope="block", batch=3)
    twin = written(gpu_run, 2.0, batch=3)
    assert eager_counterpart(compiled) is not None
    assert twin.timing is not None
    stopped = Round(index=1, started_ns=1, outcome="cancelled", median_ms=1.0)
    timing = msgspec.structs.replace(twin.timing, rounds=[stopped])
    RunDirectory(sysbench_home / "runs" / twin.id).write_record(
        msgspec.structs.replace(twin, timing=timing)
    )
    assert eager_counterpart(compiled) is None
