from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from sysbench.core.predict.closed_form import predict
from sysbench.core.record.events import (
    AnyEvent,
    Noticed,
    ResultReported,
    StageEntered,
    StepCounted,
)
from sysbench.core.record.record import KernelRow, Kernels
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.spec import RunSpec
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace
from sysbench.core.worker.passes.trace_pass import measure, report_table
from tests.core.worker.unplaced import GRADIENT_OF_LOSS


class TracePass:
    """A pass that was run: its folder, its events, its block."""

    def __init__(self, folder: Path, spec: RunSpec) -> None:
        self.folder = folder
        self.events: list[AnyEvent] = []
        measure(Job(spec=spec, name="trace", folder=str(folder)), self.events.append)
        result = self.events[-1]
        assert isinstance(result, ResultReported)
        assert result.block == "kernels"
        self.kernels = msgspec.convert(result.data, Kernels)

    def rows(self, phase: str) -> list[KernelRow]:
        return [row for row in self.kernels.rows if row.phase == phase]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> TracePass:
    return TracePass(tmp_path_factory.mktemp("train"), RunSpec(model="tiny", device="cpu"))


def test_rows_idle_and_unattributed_add_up_to_the_step(train: TracePass) -> None:
    kernels = train.kernels
    step_ns = kernels.step_ms * 1e6
    assert sum(row.exclusive_ns for row in kernels.rows) == pytest.approx(kernels.busy_ns)
    idle = sum(row.ns for row in kernels.idle)
    assert kernels.busy_ns + idle + kernels.unattributed_ns == pytest.approx(step_ns)
    shares = sum(row.share for row in kernels.rows) + sum(row.share for row in kernels.idle)
    assert shares == pytest.approx(1)


def test_phases_add_up_to_the_step(train: TracePass) -> None:
    phases = train.kernels.phases_ns
    assert list(phases) == ["forward", "loss", "backward", "optimizer", "zero-grad", "other"]
    assert sum(phases.values()) == pytest.approx(train.kernels.step_ms * 1e6)
    assert phases["other"] < 0.05 * train.kernels.step_ms * 1e6


def test_every_operator_but_the_first_of_backward_has_a_module(train: TracePass) -> None:
    of_model = [row for phase in ("forward", "loss", "backward") for row in train.rows(phase)]
    outside = [row for row in of_model if not row.module]
    assert {row.name.removeprefix("aten::") for row in outside} <= GRADIENT_OF_LOSS
    assert {row.phase for row in outside} <= {"backward"}
    placed = sum(row.exclusive_ns for row in of_model if row.module)
    share = placed / sum(row.exclusive_ns for row in of_model)
    assert train.kernels.coverage.with_module == pytest.approx(share)


def test_products_of_the_model_are_counted_where_they_are(train: TracePass) -> None:
    """A forward has 7 products a layer and the head's; each has two in backward."""
    layers = RunSpec(model="tiny", device="cpu").dimensions.layers
    products = {
        phase: sum(row.calls for row in train.rows(phase) if row.name == "aten::mm")
        for phase in ("forward", "backward")
    }
    assert products == {"forward": 7 * layers + 1, "backward": 2 * (7 * layers + 1)}
    scores = [row for row in train.rows("forward") if row.name == "aten::bmm"]
    assert {row.module for row in scores} == {"blocks.*.attention"}
    assert sum(row.calls for row in scores) == 2 * layers


def without_shapes(kernels: Kernels) -> Kernels:
    rows = [msgspec.structs.replace(row, flops=None, moved_bytes=None) for row in kernels.rows]
    return msgspec.structs.replace(kernels, rows=rows, counted_flops=None)


def test_counted_flops_are_the_closed_forms(train: TracePass) -> None:
    prediction = predict(RunSpec(model="tiny", device="cpu"))
    assert train.kernels.counted_flops == {
        "forward": prediction.forward_flops,
        "backward": prediction.backward_flops,
    }
    for phase, flops in train.kernels.counted_flops.items():
        products = [row for row in train.rows(phase) if row.category == "gemm"]
        assert sum(row.flops or 0 for row in products) == pytest.approx(flops)
    assert not {"flops", "counted_flops"} & train.kernels.missing.keys()


def test_nearly_all_operator_time_has_its_bytes(train: TracePass) -> None:
    rows = train.kernels.rows
    known = sum(row.exclusive_ns for row in rows if row.moved_bytes is not None)
    assert known > 0.75 * sum(row.exclusive_ns for row in rows)


def test_fused_attention_counts_in_full_and_its_scores_again_in_backward(tmp_path: Path) -> None:
    spec = RunSpec(
        model="tiny", device="cpu", step="forward+backward", attention="sdpa", warmup=1, context=64
    )
    counted = TracePass(tmp_path, spec).kernels.counted_flops
    prediction, size = predict(spec), spec.dimensions
    again = 2 * spec.batch * spec.context**2 * size.d_model * size.layers
    assert counted == {
        "forward": prediction.forward_flops,
        "backward": prediction.backward_flops + again,
    }


def test_the_artifacts_hold_the_trace_and_every_layer(train: TracePass) -> None:
    names = sorted(path.name for path in train.folder.iterdir())
    assert names == ["kernels.json", "lanes.msgpack", "trace.json.gz"]
    detailed = msgspec.json.decode((train.folder / "kernels.json").read_bytes(), type=Kernels)
    assert any(row.module == "blocks.0.ffn.w1" for row in detailed.rows)
    assert len(detailed.rows) > len(train.kernels.rows)
    # The exported trace says the same as the pass did; the shapes were noted in another step.
    ledger = time_ledger(read_trace(train.folder / "trace.json.gz"))
    assert kernel_rows(ledger) == without_shapes(train.kernels)
    opened = json.loads(gzip.decompress((train.folder / "trace.json.gz").read_bytes()))
    assert len(opened["traceEvents"]) > 1000


HOST_OF_A_STEP = """{"traceEvents": [
{"ph": "X", "cat": "user_annotation", "name": "sysbench:steps:1", "ts": 0, "dur": 200, "tid": 1},
{"ph": "X", "cat": "cpu_op", "name": "phase:forward", "ts": 10, "dur": 150, "tid": 1},
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 40, "dur": 45, "tid": 1}
]}"""


@pytest.mark.parametrize(("device", "is_told"), [("cuda:0", True), ("cpu", False)])
def test_a_gpu_run_without_a_kernel_says_so(tmp_path: Path, device: str, is_told: bool) -> None:
    """What the profiler leaves where CUPTI refuses it: the host, and a warning in the log."""
    raw, shaped = tmp_path / "trace.json", tmp_path / "shapes.json"
    for path in (raw, shaped):
        path.write_text(HOST_OF_A_STEP)
    events: list[AnyEvent] = []
    spec = RunSpec(model="tiny", device=device)
    job = Job(spec=spec, name="trace", folder=str(tmp_path))
    report_table(job, raw, shaped, [], events.append)
    result = events[-1]
    assert isinstance(result, ResultReported)
    folded = msgspec.convert(result.data, Kernels)
    detailed = msgspec.json.decode((tmp_path / "kernels.json").read_bytes(), type=Kernels)
    for kernels in (folded, detailed):
        assert kernels.lacks_kernels == is_told
        assert kernels.coverage.explained == (0 if is_told else 1)
    notices = [event.message for event in events if isinstance(event, Noticed)]
    assert notices == ([folded.missing["kernels"]] if is_told else [])


def test_stages_and_steps_are_told(train: TracePass) -> None:
    stages = [event.stage for event in train.events if isinstance(event, StageEntered)]
    assert stages == ["build", "warmup", "measure", "export", "analyse"]
    steps = [event for event in train.events if isinstance(event, StepCounted)]
    assert [event.done for event in steps] == list(range(1, train.kernels.steps + 1))


def test_compiling_is_a_stage_with_the_patience_of_one(tmp_path: Path) -> None:
    spec = RunSpec(
        model="tiny", device="cpu", batch=1, context=8, step="forward", warmup=1, compile="default"
    ).changed(compile_backend="eager")
    traced = TracePass(tmp_path, spec)
    stages = [event.stage for event in traced.events if isinstance(event, StageEntered)]
    assert stages == ["build", "compile", "measure", "export", "analyse"]


def test_inference_is_forward_alone(tmp_path: Path) -> None:
    spec = RunSpec(model="tiny", device="cpu", step="inference", attention="sdpa", warmup=1)
    traced = TracePass(tmp_path, spec)
    assert {row.phase for row in traced.kernels.rows} == {"forward"}
    assert traced.kernels.counted_flops == {"forward": predict(spec).forward_flops}
    assert any(row.category == "attention" for row in traced.kernels.rows)
