"""The process of exact mode, as the one that asks sees it: real children, and broken ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sysbench.core.errors import SpecError, WorkerFailed
from sysbench.core.predict.closed_form import predict
from sysbench.core.predict.dry_run_client import Estimator, ExactPrediction, canonical_spec
from sysbench.core.predict.fit_grid import fit
from sysbench.core.spec.model_source import locate
from sysbench.core.spec.spec import RunSpec, parse_spec


def test_a_model_that_fits_nowhere_is_predicted(estimator: Estimator) -> None:
    spec = RunSpec(model="10B", device="cuda:3", precision="bf16")
    prediction = estimator.predict(spec)
    assert prediction.peak_bytes == pytest.approx(predict(spec).peak_bytes, rel=0.002)
    assert prediction.method.startswith("exact")
    assert "4 layers extended to 50" in prediction.method
    assert prediction.seconds > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputed_blocks_are_played(estimator: Estimator, precision: str) -> None:
    sizes = {"vocab": 1000, "d_model": 64, "d_ff": 256, "layers": 5, "heads": 4}
    plain = parse_spec({**sizes, "context": 256, "device": "cuda:0", "precision": precision})
    spec = plain.changed(checkpoint=2)
    prediction, all_kept = estimator.predict(spec), estimator.predict(plain)
    assert prediction.peak_bytes == pytest.approx(predict(spec).peak_bytes, abs=16)
    assert prediction.peak_bytes < all_kept.peak_bytes
    assert prediction.held is not None and all_kept.held is not None
    assert prediction.held.allocated_bytes < all_kept.held.allocated_bytes


def test_a_step_that_cannot_run_is_one_error_and_the_process_goes_on(
    estimator: Estimator,
) -> None:
    pid = estimator.pid
    with pytest.raises(WorkerFailed, match="cannot run"):
        estimator.predict(RunSpec(batch=2**20, context=2**24, device="cpu"))
    assert estimator.predict(RunSpec(device="cpu")).peak_bytes > 0
    assert estimator.pid == pid


CODE = """
from torch import nn

def make(layers, width=16):
    return nn.Sequential(nn.Embedding(9, width), *(nn.Linear(width, 9) for _ in range(layers)))

def reads():
    model = nn.Sequential(nn.Embedding(9, 4))
    model.register_forward_hook(lambda *hooked: hooked[-1].sum().item())
    return model

def exits():
    raise SystemExit(0)
"""


def test_a_user_model_is_dry_run_by_its_own_code(estimator: Estimator, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(CODE)

    def asked(factory: str, **settings: object) -> ExactPrediction:
        device = {"device": "cpu", "batch": 2, "context": 8}
        spec = parse_spec({"model": f"{path}:{factory}", **device, **settings})
        return estimator.predict(locate(spec))

    prediction = asked("make", **{"model.layers": 1})
    assert prediction.parameters == 9 * 16 + 16 * 9 + 9
    assert prediction.forward_flops == 2 * (2 * 8) * 16 * 9
    assert sum(row.bytes for row in prediction.ledger) == prediction.peak_bytes
    assert asked("make", **{"model.layers": 1, "device": "cuda:0"}).held is not None
    with pytest.raises(WorkerFailed, match=r"mine\.py:9 in <lambda>: .*item\(\) cannot be called"):
        asked("reads")
    with pytest.raises(WorkerFailed, match=r"mine\.py:13 in exits.*ended the process by exit\(0\)"):
        asked("exits")
    with pytest.raises(SpecError, match="of one step on one device plays compiled code"):
        fit(parse_spec({"model": "x.py:make", "compile": "default"}), "batch", 2**30, predict)


def test_a_killed_process_is_named_and_replaced_and_its_answers_are_cached(
    estimator: Estimator,
) -> None:
    spec = RunSpec(device="cpu")
    first = estimator.predict(spec)
    assert estimator.pid is not None
    os.kill(estimator.pid, signal.SIGKILL)
    # What does not change a prediction does not make another question.
    assert estimator.predict(spec.changed(until=0.1, threads=3, seed=7)) is first
    with pytest.raises(WorkerFailed, match="SIGKILL"):
        estimator.predict(spec.changed(batch=5))
    assert estimator.pid is None
    assert estimator.predict(spec.changed(batch=5)).peak_bytes > first.peak_bytes


def test_no_answer_in_time_ends_the_process() -> None:
    with Estimator(timeout_seconds=0.05) as estimator:
        with pytest.raises(WorkerFailed, match=r"within 0\.05 s"):
            estimator.predict(RunSpec(device="cpu"))
        assert estimator.pid is None


def test_a_torch_that_cannot_be_imported_is_reported_by_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('this torch is broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Estimator() as estimator, pytest.raises(WorkerFailed, match="this torch is broken"):
        estimator.predict(RunSpec(device="cpu"))


def printed(code: str) -> list[str]:
    """Lines from an interpreter of its own: this one may have imported anything."""
    command = [sys.executable, "-P", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


def test_the_process_imports_torch_where_it_times_it() -> None:
    code = "import sys, sysbench.core.worker.dry_run.child; print('torch' in sys.modules)"
    assert printed(code) == ["False"]


def test_the_process_starts_before_the_question() -> None:
    with Estimator() as estimator:
        assert estimator.pid is not None


def test_who_asks_never_imports_torch() -> None:
    code = (
        "import sys; from sysbench.core.predict.dry_run_client import Estimator; "
        "import sysbench.core.predict.fit_grid, sysbench.core.predict.dry_run_client; "
        "import sysbench.core.tables.estimate_tables; print('torch' in sys.modules)"
    )
    assert printed(code) == ["False"]


def test_a_question_keeps_all_that_changes_a_prediction() -> None:
    spec = RunSpec(model="2.7B", clip=0.5, optimizer="sgd", device="cuda:5", batch=3)
    question = canonical_spec(spec)
    assert question.dimensions == spec.dimensions
    assert (question.device, question.clip, question.optimizer) == ("cuda:0", 1.0, "sgd")
    assert predict(question) == predict(spec)
    assert canonical_spec(spec.changed(device="cpu")).device == "cpu"


def test_edited_code_is_imported_again(tmp_path: Path, estimator: Estimator) -> None:
    path = tmp_path / "model.py"
    counted = []
    for width in (8, 16):
        layers = f"nn.Embedding(50, {width}), nn.Linear({width}, 50, bias=False)"
        path.write_text(f"from torch import nn\ndef make():\n    return nn.Sequential({layers})\n")
        given = {"model": f"{path}:make", "batch": 2, "context": 4, "device": "cpu"}
        counted.append(estimator.predict(locate(parse_spec(given))).parameters)
    assert counted == [2 * 50 * 8, 2 * 50 * 16]
