"""Models of a user's on null GPUs: settings that they change, work that they do not wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.null_gpu.conftest import NullGpu

pytestmark = pytest.mark.null_gpu

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 12), nn.Linear(12, 50)

    def forward(self, ids):
        return self.head(self.embedding(ids))

def make():
    return Model()
"""
SETTINGS = ("batch=2", "context=8", "layers=0", "steps=5", "warmup=1", "attention=own")
SIDE = """
class Side(Model):
    def __init__(self):
        super().__init__()
        self.side = torch.cuda.Stream()
        self.weight = nn.Parameter(torch.zeros(3000, 6000))

    def forward(self, ids):
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side), torch.no_grad():
            for _ in range(15):
                self.weight @ self.weight.T
        JOIN
        return super().forward(ids)

def make():
    return Side()
"""
JOIN = "torch.cuda.current_stream().wait_stream(self.side)"


def findings(gpu: NullGpu, file: Path, *settings: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record of a model's timing pass, and its findings by rule."""
    words = (f"{file}:make", *SETTINGS, "optimizer=sgd", *settings, "--passes", "timing")
    record = gpu.record(*words)
    return record, {one["rule"]: one for one in record["findings"]}


@pytest.mark.parametrize(
    "line",
    [
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
        "torch.backends.fp32_precision = 'tf32'; torch.backends.cudnn.benchmark = True",
    ],
)
def test_tf32_that_the_code_switches_on_is_on_the_record(
    null_gpu: NullGpu, tmp_path: Path, line: str
) -> None:
    file = tmp_path / "model.py"
    file.write_text(f"{MODEL}\n{line}\n")
    record, found = findings(null_gpu, file)
    settings = record["environment"]["settings"]
    assert settings["allow_tf32"] or settings["cudnn_allow_tf32"]
    assert settings.get("cudnn_benchmark", False) == ("benchmark" in line)
    assert found["settings-changed"]["severity"] == "problem"
    assert "precision=fp32" in found["settings-changed"]["verdict"]


@pytest.mark.parametrize("join", ["pass", JOIN])
def test_a_side_stream_that_is_not_joined_is_a_finding(
    null_gpu: NullGpu, tmp_path: Path, join: str
) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL + SIDE.replace("JOIN", join))
    _, found = findings(null_gpu, file)
    assert ("work-outside-steps" in found) == (join != JOIN)


@pytest.mark.parametrize(
    ("case", "rule"),
    [("f11-tf32-in-factory", "settings-changed"), ("f13-side-stream", "work-outside-steps")],
)
def test_cases_of_a_review_have_their_finding(
    null_gpu: NullGpu, shared_data: Path, case: str, rule: str
) -> None:
    _, found = findings(null_gpu, shared_data / "cases/reliability" / case / "model.py")
    assert found[rule]["severity"] == "problem"
