"""What steps of users keep: in the dry run, in the memory pass, and what is said of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from sysbench.core.errors import ModelError, SpecError
from sysbench.core.findings import memory_rules as rules
from sysbench.core.memory.predicted import reconcile
from sysbench.core.predict.closed_form import predict
from sysbench.core.predict.dry_run_client import ExactPrediction, canonical_spec
from sysbench.core.record.events import AnyEvent, ResultReported
from sysbench.core.record.record import Memory, Record
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.worker.dry_run.exact import exact_prediction
from sysbench.core.worker.passes import memory_pass
from sysbench.core.worker.workloads.make_workload import make_workload
from tests.core.worker.workloads.own_steps import CODE


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunSpec]]:
    path, folder = sys.path.copy(), tmp_path_factory.mktemp("steps")
    (folder / "steps.py").write_text(CODE)

    def spec(factory: str, **settings: Any) -> RunSpec:
        small = {"batch": 24, "context": 0, "device": "cpu", "threads": 1, "optimizer": "custom"}
        return resolve(
            parse_spec({"model": f"{folder / 'steps.py'}:{factory}", **small, **settings})
        )

    yield spec
    sys.path[:] = path


def measured(spec: RunSpec, folder: Path) -> Memory:
    events = list[AnyEvent]()
    memory_pass.measure(Job(spec=spec, name="memory", folder=str(folder)), events.append)
    (*_, data) = (event.data for event in events if isinstance(event, ResultReported))
    return reconcile(msgspec.convert(data, Memory), spec, predict(spec))


def predicted(spec: RunSpec) -> tuple[ExactPrediction, dict[str, int]]:
    exact = exact_prediction(canonical_spec(spec))
    return exact, {row.name: row.bytes for row in exact.ledger}


def findings(spec: RunSpec, memory: Memory) -> dict[str, str]:
    record = Record(
        id="",
        identity="",
        status="finished",
        created_ns=0,
        spec=msgspec.to_builtins(spec),
        parameters=0,
        environment={},
        memory=memory,
    )
    found = (rule(record) for rule in rules.RULES)
    return {finding.rule: finding.verdict for finding in found if finding is not None}


WEIGHTS = 4 * (48 * 48 + 48 + 48 * 7 + 7)


@pytest.mark.parametrize(
    ("factory", "settings", "rows"),
    [
        (
            "averaged",
            {},
            {
                "optimizer state": 2 * WEIGHTS + 4 * 4,
                "other weights": WEIGHTS,
                "inputs": 4 * 3 * 24 * 48 + 8 * 24,
                "parameters": WEIGHTS,
                "gradients": WEIGHTS,
            },
        ),
        ("closed", {}, {"inputs": 4 * 24 * 48 + 8 * 24, "parameters": WEIGHTS}),
        ("closed", {"model.late": True}, {"inputs": 4 * 24 * 48 + 8 * 24}),
        ("adversarial", {}, {"other weights": 4 * (48 * 48 + 48 + 48 + 1)}),
        ("two", {}, {"optimizer state": 4 * (48 * 48 + 48 * 7) + 8 * (48 + 7) + 8}),
    ],
)
def test_what_a_step_keeps_is_predicted_and_measured_alike(
    own: Callable[..., RunSpec],
    tmp_path: Path,
    factory: str,
    settings: dict[str, Any],
    rows: dict[str, int],
) -> None:
    spec = own(factory, **settings)
    exact, ledger = predicted(spec)
    memory = measured(spec, tmp_path)
    assert ledger.items() >= rows.items()
    assert {row.name: row.bytes for row in memory.peak_as_predicted}.items() >= rows.items()
    # Numbers that an optimizer computes with on the host are not followed.
    assert abs(exact.peak_bytes - memory.tensor_peak_bytes) <= 64
    assert exact.method.startswith("exact:") and not exact.limits
    assert findings(spec, memory) == {}
    assert not memory.steps


def test_a_step_on_cuda_is_replayed_from_its_steady_state(own: Callable[..., RunSpec]) -> None:
    exact = exact_prediction(canonical_spec(own("averaged").changed(device="cuda:0")))
    assert exact.held is not None
    blocks = max(phase.block_bytes or 0 for phase in exact.phases)
    workspaces = {row.name: row.bytes for row in exact.ledger}["workspaces"]
    assert blocks <= exact.held.allocated_bytes <= blocks + workspaces
    assert exact.held.allocated_bytes <= exact.held.reserved_bytes


def test_losses_that_are_kept_grow_by_their_graphs(
    own: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec = own("kept")
    memory = measured(spec, tmp_path)
    ends = [step.end_bytes for step in memory.steps]
    growth = ends[-1] - ends[-2]
    assert growth == 4 * 24 * (48 + 48 + 7) + 4  # inner activations, the output, and the loss
    found = findings(spec, memory)
    assert found.keys() == {"memory-grows"}
    assert found["memory-grows"].startswith("Memory grows by 9.66 KiB a step, since step 2: ")
    assert {row.phase for row in memory.growth} == {"forward"}
    exact, _ = predicted(spec)
    assert exact.peak_bytes == memory.tensor_peak_bytes
    assert exact.method.startswith("not exact:")
    assert exact.limits[0].startswith("each step leaves 9.66 KiB more than the one before")


def test_a_buffer_that_grows_is_named_with_the_line_that_makes_it(
    own: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec = own("bank", optimizer="sgd")
    memory = measured(spec, tmp_path)
    (row,) = memory.growth
    assert (row.bytes, row.since_step, row.category) == (4 * 24 * 7, 2, "buffers")
    found = findings(spec, memory)
    assert found.keys() == {"memory-grows"}
    assert "forward (aten::cat)" in found["memory-grows"]
    exact, _ = predicted(spec)
    assert exact.limits == ["each step leaves 672 B more than the one before"]


def test_the_peak_is_that_of_the_longest_step_and_the_period_is_named(
    own: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec = own("lengths")
    memory = measured(spec, tmp_path)
    assert memory.peak_allocated_bytes == max(step.peak_bytes for step in memory.steps)
    found = findings(spec, memory)
    assert found.keys() == {"memory-differs-by-step"}
    assert "the same every 5 steps" in found["memory-differs-by-step"]
    highest = max(memory.steps, key=lambda step: step.peak_bytes)
    assert (highest.step % 5, highest.inputs) == (0, "int64 (24, 96)")
    exact, _ = predicted(spec)
    assert exact.peak_bytes == pytest.approx(memory.tensor_peak_bytes, abs=64)
    assert "which repeat every 5 steps" in exact.limits[0]


@pytest.mark.parametrize("count", [1, 3])
def test_gradients_of_micro_batches_add_up(
    own: Callable[..., RunSpec], tmp_path: Path, count: int
) -> None:
    """One step of several micro-batches computes as many times, and holds gradients."""
    spec = own("registers", optimizer="sgd", accumulation=count, **{"model.tokens": 4})
    exact, _ = predicted(spec)
    once, _ = predicted(spec.changed(accumulation=1))
    assert exact.step_flops == count * once.step_flops
    memory = measured(spec, tmp_path)
    assert memory.predicted_peak_bytes == exact.peak_bytes
    assert abs(exact.peak_bytes - memory.tensor_peak_bytes) <= 64
    workload, phases = make_workload(spec), list[str]()
    before = [parameter.detach().clone() for parameter in workload.model.parameters()]
    workload.step(phases.append)
    assert phases == ["forward", "loss", "backward"] * count + ["optimizer", "zero-grad", ""]
    single = make_workload(spec.changed(accumulation=1))
    single.step(phases.append)
    # Of equal micro-batches the mean gradient is that of one.
    for start, one, other in zip(
        before, workload.model.parameters(), single.model.parameters(), strict=True
    ):
        torch.testing.assert_close(one - start, other - start, rtol=1e-3, atol=1e-7)
    assert workload.loss_value() == pytest.approx(single.loss_value())


def test_micro_batches_of_a_preset_are_dry_run(tmp_path: Path) -> None:
    spec = resolve(parse_spec({"model": "tiny", "device": "cpu", "context": 32, "accumulation": 2}))
    memory = measured(spec, tmp_path)
    assert memory.predicted_peak_bytes is not None
    assert abs(memory.predicted_peak_bytes - memory.tensor_peak_bytes) <= 64
    graph = {row.name: row.bytes for row in memory.columns["end of forward"]}["activations"]
    sizes = {form.name: form.bytes for form in memory.closed_forms}
    assert graph <= sizes["P + A"] - sizes["P"] < 1.5 * graph  # of one micro-batch, not of both
    assert predict(spec).step_flops == 2 * predict(spec.changed(accumulation=1)).step_flops


@pytest.mark.parametrize(
    "settings", [{"step": "forward"}, {"ranks": 2, "parallel": "ddp"}, {"accumulation": 0}]
)
def test_micro_batches_need_a_backward_on_one_device(settings: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({"model": "tiny", "accumulation": 2} | settings)
    assert caught.value.field == "accumulation"


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_parameter_without_elements_is_predicted(
    own: Callable[..., RunSpec], device: str
) -> None:
    def prediction(factory: str) -> ExactPrediction:
        spec = own(factory, optimizer="adamw-foreach").changed(device=device)
        return exact_prediction(canonical_spec(spec))

    empty = prediction("registers")
    assert empty.parameters * 4 == WEIGHTS
    assert {"parameters", "optimizer state"} <= {row.name for row in empty.ledger}


def test_several_optimizers_are_given_in_a_list(own: Callable[..., RunSpec]) -> None:
    names = [type(one).__name__ for one in make_workload(own("two")).optimizers]
    assert names == ["Muon", "AdamW"]
    with pytest.raises(ModelError, match=r"optimizers\(\) returned a SGD, not a list"):
        make_workload(own("one"))


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_fused_kernel_that_keeps_other_tensors_is_no_exact_prediction(
    own: Callable[..., RunSpec], device: str, kind: str
) -> None:
    spec = own("recurrent", optimizer="sgd", **{"model.kind": kind}).changed(device=device)
    exact, _ = predicted(spec)
    name = {"RNN": "rnn_tanh"}.get(kind, kind.lower())
    assert exact.limits[0].startswith(f"{name}: the kernel on ")
    assert exact.method.startswith("not exact:")


@pytest.mark.parametrize(
    ("device", "temporary"),
    [("cpu", 2 * 4 * 48 * 48), ("cuda:0", WEIGHTS)],
)
def test_an_optimizer_chooses_its_kernels_as_on_the_device(
    own: Callable[..., RunSpec], device: str, temporary: int
) -> None:
    """By default AdamW takes lists of tensors on CUDA, and one tensor at a time on the CPU."""
    exact, _ = predicted(own("averaged", batch=1).changed(device=device))
    (optimizer,) = (phase for phase in exact.phases if phase.phase == "optimizer")
    rows = {row.name: row.bytes for row in optimizer.ledger}
    assert rows["temporaries"] == pytest.approx(temporary, abs=16)
