"""Bare attention and recomputed segments through the passes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from sysbench.core import run
from sysbench.core.memory.predicted import reconcile
from sysbench.core.predict.closed_form import predict
from sysbench.core.record.events import AnyEvent, ResultReported
from sysbench.core.record.record import Memory, Record
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.storage import HOME_VARIABLE
from sysbench.core.worker.passes.memory_pass import measure
from sysbench.core.worker.workloads.make_workload import AttentionWorkload

BARE = parse_spec(
    {"workload": "attention", "batch": 2, "context": 96, "d_model": 32, "device": "cpu"}
)
DEEP = parse_spec(
    {"vocab": 32, "d_model": 32, "d_ff": 48, "layers": 5, "heads": 2}
    | {"batch": 2, "context": 48, "device": "cpu"}
)
SCALARS = 64
"""Bytes of numbers of no dimension, such as a step's count, that no closed form counts."""


def memory_of(spec: RunSpec, folder: Path) -> Memory:
    events: list[AnyEvent] = []
    measure(Job(spec=spec, name="memory", folder=str(folder)), events.append)
    reported = events[-1]
    assert isinstance(reported, ResultReported)
    return reconcile(msgspec.convert(reported.data, Memory), spec, predict(spec))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mask": "causal", "heads": 2},
        {"precision": "bf16"},
        {"precision": "bf16-pure", "step": "forward"},
        {"precision": "bf16", "step": "inference"},
    ],
    ids=str,
)
def test_the_peak_is_the_predicted_one_to_the_byte(
    changes: dict[str, object], tmp_path: Path
) -> None:
    spec = BARE.changed(**changes)
    memory = memory_of(spec, tmp_path)
    assert memory.predicted_peak_bytes is not None
    assert 0 <= memory.tensor_peak_bytes - memory.predicted_peak_bytes <= SCALARS
    assert sum(row.bytes for row in memory.ledger) == memory.peak_allocated_bytes


def test_memory_before_backward_is_a_column(tmp_path: Path) -> None:
    memory = memory_of(BARE, tmp_path)
    scores, tensor = 4 * 2 * 96 * 96, 4 * 2 * 96 * 32
    before = {row.name: row.bytes for row in memory.columns["end of forward"]}
    assert before["activations"] == 2 * scores + 4 * 2 * 96
    assert before["inputs"] == 4 * tensor
    assert before["outputs"] == tensor
    assert memory.end_allocated_bytes == 4 * tensor


def test_recomputed_segments_have_the_predicted_peak(tmp_path: Path) -> None:
    spec = DEEP.changed(checkpoint=2, precision="bf16", step="forward+backward")
    memory = memory_of(spec, tmp_path)
    assert memory.predicted_peak_bytes is not None
    assert 0 <= memory.tensor_peak_bytes - memory.predicted_peak_bytes <= SCALARS
    assert memory.peak_allocated_bytes < predict(spec.changed(checkpoint=0)).peak_bytes
    kept = {row.name: row.bytes for row in memory.columns["end of forward"]}["activations"]
    whole = memory.columns["peak"]
    assert kept < sum(row.bytes for row in whole if row.name == "temporaries (backward)")


def test_each_backward_has_a_graph_of_its_own_and_leaves_no_gradient() -> None:
    workload = AttentionWorkload(BARE)
    phases: list[str] = []
    gradients: list[torch.Tensor] = []

    def enter(phase: str) -> None:
        phases.append(phase)
        if phase == "zero-grad":
            assert workload.q.grad is not None
            gradients.append(workload.q.grad.clone())

    workload.step(enter)
    workload.step(enter)
    assert phases == ["forward", "backward", "zero-grad", ""] * 2
    assert torch.equal(*gradients)
    assert workload.q.grad is workload.k.grad is workload.v.grad is None
    assert not list(workload.model.parameters())


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A real run; the memory pass is measured above."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(tmp_path_factory.mktemp("home")))
        return run(BARE.changed(steps=6, warmup=2, threads=1), ["timing", "trace"]).record


def test_it_is_timed_and_traced(record: Record) -> None:
    assert [(one.name, one.outcome) for one in record.passes] == [
        ("timing", "finished"),
        ("trace", "finished"),
    ]
    assert record.parameters == 0
    assert record.timing is not None
    assert list(record.timing.phases) == ["forward", "backward", "zero-grad"]
    assert record.timing.model_flops == 3 * 4 * 2 * 96 * 96 * 32
    assert record.kernels is not None
    assert record.kernels.counted_flops is not None
    assert record.kernels.counted_flops["forward"] == 4 * 2 * 96 * 96 * 32
    assert record.prediction is not None
    assert not [finding for finding in record.findings if finding.severity == "problem"]


def test_a_cell_that_does_not_fit_says_how_many_bytes_it_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    spec = BARE.changed(context=4096, memory_limit="128MiB", steps=1, threads=1)
    (timing,) = run(spec, ["timing"]).record.passes
    assert timing.outcome == "oom"
    assert timing.oom is not None
    assert timing.oom.phase == "forward"
    assert timing.oom.requested_bytes == 4 * 2 * 4096 * 4096
