"""What only a GPU can show. Skipped, with the reason, where there is none."""

from __future__ import annotations

import gzip
import json
import pickletools
from pathlib import Path

import pytest

from sysbench.core import Record, Run, RunSpec, SysbenchError, run
from sysbench.core.machine.devices import resolve_device

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSBENCH_HOME", str(tmp_path))


@pytest.fixture(autouse=True, scope="module")
def device() -> str:
    try:
        return resolve_device("cuda:0")
    except SysbenchError as error:
        pytest.skip(str(error))


def spec_on(device: str, **changes: object) -> RunSpec:
    return RunSpec(device=device, batch=8, context=256).changed(**changes)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "bf16-pure"])
def test_every_precision_is_measured(device: str, precision: str) -> None:
    record = run(spec_on(device, precision=precision), ["timing"]).record
    assert record.status == "finished"
    assert record.timing is not None
    assert record.timing.clock == "cuda-events"
    assert record.environment["settings"]["allow_tf32"] == (precision == "tf32")


@pytest.mark.parametrize("attention", ["naive", "sdpa", "sdpa-flash", "sdpa-efficient"])
def test_every_attention_is_measured(device: str, attention: str) -> None:
    record = run(spec_on(device, precision="bf16", attention=attention), ["timing"]).record
    assert record.status == "finished"


@pytest.fixture(scope="module")
def whole(device: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run of a small but real size with every pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSBENCH_HOME", str(tmp_path_factory.mktemp("gpu-home")))
        return run(RunSpec(model="cs336-2025/small", device=device, precision="bf16"))


def record_of(whole: Run) -> Record:
    record = whole.directory.record()
    assert record.status == "finished", record.passes
    return record


def test_the_kernel_table_explains_the_step(whole: Run) -> None:
    kernels = record_of(whole).kernels
    assert kernels is not None
    assert kernels.source == "kernels"
    assert kernels.coverage.explained >= 0.99
    shares = sum(row.share for row in kernels.rows) + sum(row.share for row in kernels.idle)
    assert shares + kernels.unattributed_ns / (kernels.step_ms * 1e6) == pytest.approx(1, abs=0.01)


def test_the_memory_ledgers_close(whole: Run) -> None:
    memory = record_of(whole).memory
    assert memory is not None
    assert memory.source == "cuda-snapshot"
    assert memory.driver_used_bytes is not None
    assert sum(row.bytes for row in memory.ledger) == pytest.approx(
        memory.peak_allocated_bytes, rel=0.01
    )
    # The rows add up by their residual: that it is small is what can fail.
    assert memory.residual_bytes is not None
    assert abs(memory.residual_bytes) < 0.01 * memory.peak_allocated_bytes
    assert sum(row.bytes for row in memory.card) == memory.driver_used_bytes


def test_the_prediction_comes_true(whole: Run) -> None:
    memory = record_of(whole).memory
    assert memory is not None
    # Like with like: requests and workspaces, without what blocks are larger than requests.
    assert memory.predicted_peak_bytes == pytest.approx(memory.comparable_peak_bytes, rel=0.03)
    assert memory.predicted_reserved_bytes == pytest.approx(memory.peak_reserved_bytes, rel=0.03)


def test_the_artifacts_open_elsewhere(whole: Run) -> None:
    with gzip.open(whole.directory.trace_path) as file:
        assert json.load(file)["traceEvents"]
    data = whole.directory.snapshot_path.read_bytes()
    assert next(pickletools.genops(data))[1] == 4


def test_a_smaller_card_is_emulated_and_the_next_run_is_clean(device: str) -> None:
    tight = spec_on(device, model="cs336-2025/medium", memory_limit=2 * 2**30)
    failed = run(tight, ["timing"]).record
    assert failed.status == "oom"
    assert failed.passes[0].oom is not None
    assert failed.passes[0].oom.requested_bytes
    after = run(spec_on(device), ["memory"]).record
    assert after.memory is not None
    assert after.memory.baseline_bytes == 0
