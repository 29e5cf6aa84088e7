"""The memory pass on real runs, beside counts that are made in other ways."""

from __future__ import annotations

import gc
import gzip
import json
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from sysbench.core.memory.allocations import Notes
from sysbench.core.memory.snapshot_reading import read_snapshot
from sysbench.core.record.events import (
    AnyEvent,
    MemoryRead,
    ResultReported,
    StageEntered,
    StepCounted,
)
from sysbench.core.record.record import LedgerRow, Memory
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.worker.passes.memory_pass import measure
from sysbench.core.worker.workloads.make_workload import StepError, Workload

TINY = parse_spec({"model": "tiny", "device": "cpu"})
CASES = {
    "train-fp32": {"step": "train"},
    "train-bf16": {"step": "train", "precision": "bf16"},
    "forward-fp32": {"step": "forward"},
    "inference-fp32": {"step": "inference"},
    "inference-bf16": {"step": "inference", "precision": "bf16"},
    "train-sdpa-fused": {"step": "train", "attention": "sdpa", "optimizer": "adamw-fused"},
}


@dataclass(frozen=True)
class Measured:
    """One memory pass: its spec, its result and its events."""

    spec: RunSpec
    memory: Memory
    events: list[AnyEvent]
    folder: Path

    def column(self, name: str) -> dict[str, int]:
        return amounts(self.memory.columns[name])


def amounts(rows: list[LedgerRow]) -> dict[str, int]:
    return {row.name: row.bytes for row in rows if row.bytes}


def run(spec: RunSpec, folder: Path) -> Measured:
    events: list[AnyEvent] = []
    measure(Job(spec=spec, name="memory", folder=str(folder)), events.append)
    reported = events[-1]
    assert isinstance(reported, ResultReported)
    assert reported.block == "memory"
    memory = msgspec.convert(reported.data, Memory)
    return Measured(spec, memory, events, folder)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Measured]:
    """Runs each case once, when it is first asked for."""
    done: dict[str, Measured] = {}

    def measured_once(case: str) -> Measured:
        if case not in done:
            spec = msgspec.structs.replace(TINY, **CASES[case])
            done[case] = run(spec, tmp_path_factory.mktemp(case))
        return done[case]

    return measured_once


@pytest.fixture(params=CASES)
def each(request: pytest.FixtureRequest, measured: Callable[[str], Measured]) -> Measured:
    return measured(request.param)


@pytest.fixture
def train(measured: Callable[[str], Measured]) -> Measured:
    return measured("train-fp32")


def saved_bytes(spec: RunSpec) -> int:
    """Bytes of the distinct storages that a step saves for backward, residents not counted."""
    workload = Workload(spec)
    residents = [*workload.model.parameters(), *workload.model.buffers()]
    residents += workload.inputs
    known = {tensor.untyped_storage().data_ptr() for tensor in residents}
    kept: dict[int, Tensor] = {}  # holds them, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        detached = tensor.detach()
        address = detached.untyped_storage().data_ptr()
        if address not in known:
            kept[address] = detached
        return detached

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        workload.step(lambda phase: None)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def linear_weights(spec: RunSpec) -> int:
    size = spec.dimensions
    norms = size.d_model * (2 * size.layers + 1)
    return size.parameters - size.vocab * size.d_model - norms


class TestEveryCase:
    def test_ledger_sums_to_the_peak(self, each: Measured) -> None:
        assert sum(row.bytes for row in each.memory.ledger) == each.memory.peak_allocated_bytes

    def test_card_sums_to_the_resident_set(self, each: Measured) -> None:
        memory = each.memory
        assert memory.driver_used_bytes is not None
        assert sum(row.bytes for row in memory.card) == memory.driver_used_bytes
        assert memory.driver_used_bytes > memory.peak_allocated_bytes

    def test_peak_equals_the_profilers_own_sum(self, each: Measured) -> None:
        text = gzip.decompress((each.folder / "allocations.json.gz").read_bytes())
        trace = json.loads(text.decode("utf-8", "replace"), strict=False)
        notes = msgspec.json.decode((each.folder / "notes.json").read_bytes(), type=Notes)
        begin_ns, end_ns = notes.step_span(notes.steps[-1])
        events = [event for event in trace["traceEvents"] if event["name"] == "[memory]"]
        first = events[0]["args"]
        before = first["Total Allocated"] - first["Bytes"]  # of earlier tests
        totals = [
            event["args"]["Total Allocated"] - before
            for event in events
            if begin_ns <= trace["baseTimeNanoseconds"] + event["ts"] * 1000 <= end_ns
        ]
        assert max(totals) == each.memory.peak_allocated_bytes

    def test_residents_are_exact(self, each: Measured) -> None:
        built = each.column("after build")
        assert built == {
            "parameters": 4 * each.spec.dimensions.parameters,
            "buffers": sum(buffer.nbytes for buffer in Workload(each.spec).model.buffers()),
            "inputs": 2 * each.spec.tokens_per_step * 8,
        }
        assert built.items() <= each.column("peak").items()

    def test_a_step_leaves_nothing_but_state_and_loss(self, each: Measured) -> None:
        end = each.column("steady end")
        assert sum(end.values()) == each.memory.end_allocated_bytes
        assert end.pop("outputs", 0) == (4 if each.spec.has_backward else 0)
        end.pop("optimizer state", 0)
        assert end == each.column("after build")

    def test_the_card_closes_wherever_it_was_read(self, each: Measured) -> None:
        memory = each.memory
        assert memory.card == memory.card_columns["peak"]
        assert memory.card_columns.keys() == memory.columns.keys() - {"end of forward"}
        for name, card in memory.card_columns.items():
            assert card[0] == LedgerRow("allocated", sum(row.bytes for row in memory.columns[name]))
            assert all(row.bytes > 0 for row in card)

    def test_a_steady_step_begins_as_it_ends(self, each: Measured) -> None:
        before, after = each.column("after warm-up"), each.column("steady end")
        after.pop("outputs", 0)  # the loss, which the next step drops
        assert before == after

    def test_at_the_end_of_forward_the_output_is_there(self, each: Measured) -> None:
        spec, forward = each.spec, each.column("end of forward")
        width = 2 if spec.precision == "bf16" else 4
        assert forward["outputs"] == width * spec.tokens_per_step * spec.dimensions.vocab
        assert ("activations" in forward) == (spec.step != "inference")
        assert "gradients" not in forward

    def test_nothing_is_unknown(self, each: Measured) -> None:
        names = each.memory.timeline.categories.keys()
        assert not names & {"not attributed", "there before the recording", "kept between steps"}
        assert each.memory.baseline_bytes == 0
        assert each.memory.events_dropped == 0

    def test_phases_and_timeline(self, each: Measured) -> None:
        memory = each.memory
        names = [phase[0] for phase in memory.timeline.phases]
        assert names[0] == "build"
        assert len(memory.timeline.t_ms) <= 400
        assert max(memory.timeline.live_bytes) == memory.peak_allocated_bytes
        steady = memory.timeline.phases[-1][2]
        assert memory.timeline.phases[0][2] < memory.peak_ms <= steady
        assert memory.peak_phase in names


class TestTraining:
    def test_optimizer_state_is_two_copies_and_a_step_per_parameter(self, train: Measured) -> None:
        parameters = sum(1 for _ in Workload(train.spec).model.parameters())
        expected = 2 * 4 * train.spec.dimensions.parameters + 4 * parameters
        assert train.column("peak")["optimizer state"] == expected
        assert "optimizer state" not in train.column("first step")

    def test_first_step_has_no_optimizer_state_yet(self, train: Measured) -> None:
        first = train.memory.first_step_peak_bytes
        assert first == sum(train.column("first step").values())
        assert first < train.memory.peak_allocated_bytes

    def test_the_first_module_row_is_the_whole_model(self, train: Measured) -> None:
        whole = train.memory.modules[0]
        assert whole.module == "model"
        assert whole.parameter_bytes == whole.gradient_bytes == 4 * train.spec.dimensions.parameters
        assert whole.optimizer_bytes == train.column("peak")["optimizer state"]

    def test_modules_add_up(self, train: Measured) -> None:
        rows = {row.module: row for row in train.memory.modules}
        size = train.spec.dimensions
        assert rows["blocks.0"].parameter_bytes == 4 * size.block_parameters
        assert rows["blocks.0.ffn.w1"].gradient_bytes == 4 * size.d_model * size.d_ff
        blocks = [rows[f"blocks.{index}"] for index in range(size.layers)]
        assert sum(row.activation_bytes for row in blocks) == rows["blocks"].activation_bytes
        assert blocks[0].activation_bytes == blocks[1].activation_bytes

    @pytest.mark.parametrize("case", ["train-fp32", "train-bf16", "train-sdpa-fused"])
    def test_activations_equal_an_independent_count(
        self, measured: Callable[[str], Measured], case: str
    ) -> None:
        done = measured(case)
        copies = 2 * linear_weights(done.spec) if done.spec.precision == "bf16" else 0
        assert done.memory.modules[0].activation_bytes == saved_bytes(done.spec) - copies

    def test_autocast_copies_are_a_row(self, measured: Callable[[str], Measured]) -> None:
        done = measured("train-bf16")
        expected = 2 * linear_weights(done.spec)
        assert done.column("peak")["autocast weight copies"] == expected

    def test_largest_are_alive_at_the_peak_and_know_their_place(self, train: Measured) -> None:
        memory = train.memory
        sizes = [one.bytes for one in memory.largest]
        assert sizes == sorted(sizes, reverse=True)
        for one in memory.largest:
            assert one.born_ms <= memory.peak_ms
            assert one.died_ms is None or one.died_ms > memory.peak_ms
        scores = next(one for one in memory.largest if one.module == "blocks.0.attention")
        assert scores.category == "activations"
        assert scores.phase == "forward"
        assert scores.bytes == 4 * train.spec.batch * 4 * train.spec.context**2
        assert scores.stack[0].startswith("aten::")
        assert "attention.py" in scores.stack[1]
        assert not any("torch/nn" in line for one in memory.largest for line in one.stack)


class TestGradientsAtThePeak:
    def test_they_are_there_when_the_optimizer_sets_the_peak(self, tmp_path: Path) -> None:
        spec = TINY.changed(batch=1, context=8)
        done = run(spec, tmp_path)
        four = 4 * spec.dimensions.parameters
        peak = done.column("peak")
        assert done.memory.peak_phase == "optimizer"
        assert peak["gradients"] == four
        # The foreach optimizer makes one more parameter-sized temporary.
        assert peak["temporaries (optimizer)"] == pytest.approx(four, rel=0.01)
        assert "activations" not in peak
        modules = {one.category: one.module for one in done.memory.largest}
        assert modules["temporaries (optimizer)"] == "model"


def test_garbage_is_freed_before_the_recording(tmp_path: Path) -> None:
    garbage: list[object] = [torch.ones(1 << 20)]
    garbage.append(garbage)
    gc.disable()  # nobody else collects it
    try:
        recorded = weakref.ref(garbage[0])
        del garbage
        done = run(msgspec.structs.replace(TINY, step="inference"), tmp_path)
    finally:
        gc.enable()
    assert recorded() is None
    assert "there before the recording" not in done.memory.timeline.categories


def test_progress_is_reported_in_order(train: Measured) -> None:
    stages = [event.stage for event in train.events if isinstance(event, StageEntered)]
    assert stages == ["build", "warmup", "measure", "export", "analyse"]
    counts = [event for event in train.events if isinstance(event, StepCounted)]
    assert [event.done for event in counts] == list(range(1, counts[0].total + 1))


def test_bytes_are_reported_phase_by_phase_but_not_inside_the_recorded_step(
    train: Measured,
) -> None:
    steady = counts_of(train)[-2:]
    readings = [event for event in train.events if isinstance(event, MemoryRead)]
    assert (readings[0].step, readings[0].phase) == (None, "build")
    assert {one.kind for one in readings} == {"resident"}
    phases = [(one.step, one.phase) for one in readings[1:]]
    in_turn = ["forward", "loss", "backward", "optimizer", "zero-grad"]
    assert phases == [(step, phase) for step in range(2) for phase in in_turn]
    assert all((one.peak_bytes or 0) >= one.held_bytes >= 0 for one in readings)
    order = [event for event in train.events if event in readings or event in steady]
    assert order[-2:] == steady, "the timed step has no reading"


def counts_of(measured: Measured) -> list[StepCounted]:
    return [event for event in measured.events if isinstance(event, StepCounted)]


def test_compiling_is_a_stage_with_the_patience_of_one(tmp_path: Path) -> None:
    """Silence in "warmup" ends a pass after 300 s; compiling for the first time takes longer."""
    spec = TINY.changed(
        batch=1, context=8, step="forward", compile="default", compile_backend="eager"
    )
    done = run(spec, tmp_path)
    stages = [event.stage for event in done.events if isinstance(event, StageEntered)]
    assert stages == ["build", "compile", "warmup", "measure", "export", "analyse"]
    turns = [event for event in done.events if not isinstance(event, MemoryRead)]
    kinds = [type(event) for event in turns[:4]]
    assert kinds == [StageEntered, StageEntered, StageEntered, StepCounted]


def test_running_out_of_memory_propagates_with_its_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = TINY.changed(batch=1, context=8, step="forward")
    calls = 0

    def exhaust(self: Workload, enter: Callable[[str], None]) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:  # after the rehearsal and the first step
            torch.empty(2**60, dtype=torch.uint8)
        original(self, enter)

    original = Workload._step
    monkeypatch.setattr(Workload, "_step", exhaust)
    with pytest.raises(StepError) as caught:
        run(spec, tmp_path)
    assert "you tried to allocate" in str(caught.value.__cause__)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("step", ["train", "inference"])
def test_cuda_ledger_closes(tmp_path: Path, step: str, precision: str) -> None:
    # The pass is in this process: what other tests left would be older than its recording.
    torch.cuda.empty_cache()
    spec = parse_spec(
        {"model": "cs336-2025/small", "device": "cuda:0", "step": step, "precision": precision}
    )
    done = run(spec, tmp_path)
    memory, peak = done.memory, done.column("peak")
    assert sum(peak.values()) == memory.peak_allocated_bytes
    assert peak["parameters"] == 4 * spec.dimensions.parameters
    if step == "train":
        assert peak["optimizer state"] == 2 * 4 * spec.dimensions.parameters
        assert done.memory.modules[0].gradient_bytes == 4 * spec.dimensions.parameters
    assert memory.peak_reserved_bytes is not None
    assert memory.peak_reserved_bytes >= memory.peak_allocated_bytes
    assert abs(peak.get("blocks larger than asked for", 0)) < 0.02 * memory.peak_allocated_bytes
    assert memory.residual_bytes is not None
    assert 0 <= memory.residual_bytes < 0.01 * memory.peak_allocated_bytes
    assert memory.driver_used_bytes is not None
    assert sum(row.bytes for row in memory.card) == memory.driver_used_bytes
    assert memory.card_columns.keys() == memory.columns.keys() == memory.pools.keys()
    for name, card in memory.card_columns.items():
        rows, held = amounts(card), sum(pool.reserved_bytes for pool in memory.pools[name])
        slack = sum(count for row, count in rows.items() if row.startswith("slack"))
        assert rows["allocated"] + slack == held
        assert abs(rows.get("residual", 0)) < 0.01 * sum(rows.values())
    assert "kept between steps" not in peak, "workspaces are known by what cuBLAS gives back"
    assert "not attributed" not in peak
    assert memory.events_dropped == 0
    assert read_snapshot(tmp_path / "snapshot.pickle").history(0).change.any()
