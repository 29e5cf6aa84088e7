"""The experiments where only a GPU can say whether they are right. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.core import SysbenchError, run
from sysbench.core.machine.devices import resolve_device
from sysbench.core.record.record import Numerics
from sysbench.core.spec.spec import parse_spec

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


def numerics(workload: str, device: str) -> Numerics:
    block = run(parse_spec({"workload": workload, "device": device})).record.numerics
    assert block is not None
    return block


def test_the_dispatcher_s_types_are_those_that_the_device_has(device: str) -> None:
    reported = [row for row in numerics("autocast-dtypes", "cpu").dtypes if row.autocast == "cuda"]
    seen = [row for row in numerics("autocast-dtypes", device).dtypes if row.autocast == "cuda"]
    assert {row.source for row in seen} == {"measured"}
    assert [(row.tensor, row.lower, row.dtype) for row in reported] == [
        (row.tensor, row.lower, row.dtype) for row in seen
    ]


@pytest.mark.needs_values
def test_sums_on_the_device_are_those_of_the_cpu(device: str) -> None:
    here, there = (numerics("accumulation", one).accumulations for one in ("cpu", device))
    assert [(row.name, row.value) for row in here] == [(row.name, row.value) for row in there]


@pytest.mark.parametrize("attention", ["naive", "sdpa-flash", "sdpa-efficient", "flex"])
@pytest.mark.parametrize("compile", ["off", "default"])
def test_bare_attention_runs_forward_and_backward(
    device: str, attention: str, compile: str
) -> None:
    if attention == "flex" or compile == "default":
        pytest.importorskip("triton", reason="no Triton, which torch.compile needs on a GPU")
    spec = parse_spec(
        {"workload": "attention", "batch": 8, "context": 1024, "d_model": 64, "mask": "causal"}
        | {"precision": "bf16-pure", "attention": attention, "compile": compile, "device": device}
    )
    record = run(spec).record
    assert [(one.name, one.outcome) for one in record.passes] == [
        (name, "finished") for name in ("timing", "trace", "memory")
    ]
    assert record.compile is None or not record.compile.fell_back


def test_recomputing_lowers_the_peak_as_predicted(device: str) -> None:
    spec = parse_spec({"model": "cs336-2025/small", "context": 512, "device": device})
    plain = run(spec.changed(optimizer="sgd"), ["memory"]).record.memory
    recomputed = run(spec.changed(optimizer="sgd", checkpoint=2), ["memory"]).record.memory
    assert plain is not None
    assert recomputed is not None
    assert recomputed.peak_allocated_bytes < plain.peak_allocated_bytes
    assert recomputed.predicted_peak_bytes == pytest.approx(
        recomputed.comparable_peak_bytes, rel=0.02
    )
