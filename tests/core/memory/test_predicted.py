"""Prediction against measurement, row by row, and runs without a prediction."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from sysbench.core.memory.allocations import Notes, PhaseMark, Tag, replay_allocations
from sysbench.core.memory.block import Recording, describe_memory
from sysbench.core.memory.history import History
from sysbench.core.memory.predicted import reconcile, rows_as_predicted
from sysbench.core.predict.closed_form import predict, why_not_predicted
from sysbench.core.record.memory import ReconciledRow
from sysbench.core.record.record import LedgerRow, Memory, Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import RunSpec

SPEC = RunSpec(model="tiny", device="cpu")


@pytest.fixture
def record(tiny_run: RunDirectory) -> Record:
    return tiny_run.record()


@pytest.fixture
def memory(record: Record) -> Memory:
    assert record.memory is not None
    return record.memory


def test_a_real_run_is_reconciled_row_by_row(record: Record, memory: Memory) -> None:
    assert record.prediction is not None
    *rows, peak = memory.reconciliation
    predicted = {row["name"]: row["bytes"] for row in record.prediction["ledger"]}
    assert {row.name: row.predicted_bytes for row in rows if row.predicted_bytes} == predicted
    assert {row.name: row.measured_bytes for row in rows if row.measured_bytes} == {
        row.name: row.bytes for row in memory.peak_as_predicted
    }
    assert (peak.name, peak.predicted_bytes) == ("peak", memory.predicted_peak_bytes)
    assert peak.measured_bytes == memory.peak_allocated_bytes


def test_the_errors_are_predicted_over_measured(memory: Memory) -> None:
    for row in memory.reconciliation:
        if row.predicted_bytes and row.measured_bytes:
            assert row.error == pytest.approx(row.predicted_bytes / row.measured_bytes - 1)
        else:
            assert row.error is None


def test_a_real_training_peak_has_its_name(memory: Memory) -> None:
    assert memory.resident_set == "3P + A"
    assert "resident_set" not in memory.missing


def test_what_the_closed_form_is_not_of_gets_no_wrong_number(memory: Memory) -> None:
    spec = SPEC.changed(compile="default")
    done = reconcile(memory, spec, predict(spec))
    assert done.predicted_peak_bytes is None
    assert done.reconciliation == []
    assert done.missing["predicted_peak_bytes"] == why_not_predicted(spec)
    assert done.missing["reconciliation"]


def test_the_prediction_of_a_rank_is_that_of_its_worker(memory: Memory) -> None:
    spec = SPEC.changed(parallel="ddp", ranks=2)
    predicted = msgspec.structs.replace(memory, predicted_peak_bytes=123, reconciliation=[])
    done = reconcile(predicted, spec, predict(spec))
    assert (done.predicted_peak_bytes, done.reconciliation) == (123, [])


def test_the_eager_transformer_is_predicted() -> None:
    assert why_not_predicted(SPEC) is None


def test_an_older_block_has_the_peak_alone(memory: Memory) -> None:
    older = msgspec.structs.replace(memory, peak_as_predicted=[])
    (row,) = reconcile(older, SPEC, predict(SPEC)).reconciliation
    assert row.name == "peak"


def test_no_match_says_why(memory: Memory) -> None:
    many = msgspec.structs.replace(memory, peak_allocated_bytes=100 * memory.peak_allocated_bytes)
    done = reconcile(many, SPEC, predict(SPEC))
    assert done.resident_set is None
    assert "no closed form" in done.missing["resident_set"]


def stepped_history(*moves: tuple[int, int, int]) -> History:
    """A history of (address, signed bytes, number of the product), one a nanosecond from 100."""
    address, change, product = np.array(moves, dtype=np.int64).T
    return History(
        time_ns=np.arange(100, 100 + len(moves)),
        address=address,
        change=change,
        stack=np.full(len(moves), -1),
        stacks=[],
        product=product,
    )


# A small product with a large workspace in forward, much without any in backward.
WITH_WORKSPACE = stepped_history(
    *((0, 1000, -1), (1, 10, 0), (2, 500, 0), (2, -500, 0)),
    *((3, 300, -1), (3, -300, -1), (1, -10, -1)),
)
NOTES = Notes(
    phases=[PhaseMark(50, 0, "forward"), PhaseMark(104, 0, "backward"), PhaseMark(250, 0, "")],
    tags=[
        Tag(100, 0, "parameters", "head"),
        Tag(101, 1, "activations", "head"),
        # The clocks differ, or the tag is of what was there before.
        Tag(102, 2, "activations", "head"),
    ],
)


@pytest.fixture
def with_workspace() -> Memory:
    return describe_memory(Recording(source="cpu-profiler", history=WITH_WORKSPACE), NOTES)


def test_library_workspace_is_a_row_of_the_ledger(with_workspace: Memory) -> None:
    assert with_workspace.peak_phase == "forward"
    assert with_workspace.peak_allocated_bytes == 1510
    assert [row for row in with_workspace.ledger if row.bytes] == [
        LedgerRow("parameters", 1000),
        LedgerRow("activations", 10),
        LedgerRow("library workspace", 500),
    ]
    assert {one.category for one in with_workspace.largest} == {
        *("parameters", "activations", "library workspace")
    }


def test_a_prediction_is_held_against_the_peak_of_tensors(with_workspace: Memory) -> None:
    assert with_workspace.tensor_peak_bytes == 1310
    assert with_workspace.library_workspace_bytes == 200
    assert with_workspace.peak_as_predicted == [
        LedgerRow("parameters", 1000),
        LedgerRow("activations", 10),
        LedgerRow("temporaries", 300),
    ]
    done = reconcile(with_workspace, SPEC, predict(SPEC))
    *rows, added, peak = done.reconciliation
    assert sum(row.measured_bytes for row in rows) == 1310
    assert added == ReconciledRow("added by library workspace", 0, 200, None)
    assert (peak.measured_bytes, peak.predicted_bytes) == (1510, predict(SPEC).peak_bytes)
    assert "is not predicted" in done.missing[f"reconciliation.{added.name}"]


def test_without_it_the_two_peaks_are_one(memory: Memory) -> None:
    plain = replace(WITH_WORKSPACE, product=np.full(len(WITH_WORKSPACE), -1))
    same = describe_memory(Recording(source="cpu-profiler", history=plain), NOTES)
    assert same.tensor_peak_bytes == same.peak_allocated_bytes == 1510
    assert "added by library workspace" not in [row.name for row in memory.reconciliation]
    assert not [name for name in memory.missing if "library" in name]


def test_every_kind_of_allocation_falls_into_one_predicted_row() -> None:
    sizes = [1, 2, 4, 8, 16, 32, 64]
    # The fourth to sixth go with the step; the last stays.
    history = History(
        time_ns=np.array([*range(100, 107), 200, 200, 200], dtype=np.int64),
        address=np.array([*range(7), 3, 4, 5], dtype=np.int64),
        change=np.array([*sizes, -8, -16, -32], dtype=np.int64),
        stack=np.full(10, -1),
        stacks=[],
    )
    notes = Notes(
        phases=[PhaseMark(50, 0, "forward"), PhaseMark(250, 0, "")],
        tags=[
            Tag(100, 0, "parameters", "head"),
            Tag(101, 1, "activations", "loss"),
            Tag(102, 2, "activations", "head"),
            Tag(103, 3, "outputs", "model"),
        ],
    )
    rows = rows_as_predicted(replay_allocations(history, notes), 7, 200)
    assert rows == [
        LedgerRow("parameters", 1),
        LedgerRow("kept between steps", 64),
        LedgerRow("activations", 4),
        LedgerRow("logits and loss", 2 + 8),
        LedgerRow("temporaries", 16 + 32),
        LedgerRow("not predicted", 200 - sum(sizes)),
    ]


def test_memory_and_time_have_the_same_modules(tiny_run: RunDirectory, memory: Memory) -> None:
    rows = json.loads((tiny_run.pass_folder("trace") / "kernels.json").read_bytes())
    rows = rows if isinstance(rows, list) else rows["rows"]
    timed = {row["module"] for row in rows} - {"", "grad accumulate"}
    held = {row.module for row in memory.modules}
    assert timed <= held
    layers = {row.module for row in memory.modules if row.module.startswith("blocks.0")}
    assert {path.replace("blocks.0", "blocks.1", 1) for path in layers} <= held
