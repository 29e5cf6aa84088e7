"""Dry runs of a user's model, against CUDA's allocator."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sysbench.core.predict.dry_run_client import canonical_spec
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import parse_spec
from sysbench.core.worker.dry_run.exact import exact_prediction
from sysbench.core.worker.workloads.make_workload import make_workload
from tests.core.predict.conftest import cuda_phase_peaks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CODE = """
import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 64


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.often, self.never = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Dropout(0)

    def forward(self, x):
        return x + self.often(self.never(self.inner(x)))


class Biased(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, 1, WIDTH))

    def forward(self, x):
        return x + self.bias.baddbmm(x, x.transpose(1, 2) @ x)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.Parameter(torch.randn(4, WIDTH, WIDTH))

    def forward(self, x):
        rows = x.flatten(0, 1)
        ends = torch.arange(1, 5, device=x.device, dtype=torch.int32) * (len(rows) // 4)
        return x + torch._grouped_mm(rows, self.experts, offs=ends).view_as(x)


class Scaled(nn.Module):
    def forward(self, x):
        return x / x.pow(2).sum(-1, keepdim=True) + F.softplus(x) * torch.log1p(x.abs())


class Picked(nn.Module):
    def forward(self, x):
        return x * x[..., [-1], :]


class Masked(nn.Module):
    dropout = 0.0

    def __init__(self):
        super().__init__()
        self.split, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        heads = (one.unflatten(-1, (4, -1)).transpose(1, 2) for one in self.split(x).chunk(3, -1))
        mask = torch.ones(len(x), 1, x.shape[1], x.shape[1], device=x.device).tril().bool()
        mixed = F.scaled_dot_product_attention(*heads, mask, self.dropout)
        return x + self.joined(mixed.transpose(1, 2).flatten(2))


class MaskedAndDropped(Masked):
    dropout = 0.1


def model(layer):
    layers = [globals()[layer]() for _ in range(3)]
    return nn.Sequential(nn.Embedding(50, WIDTH), *layers, nn.Linear(WIDTH, 50))
"""


@pytest.mark.parametrize(
    "layer", ["Dropped", "Biased", "Experts", "Scaled", "Picked", "Masked", "MaskedAndDropped"]
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_phase_of_a_user_s_model_peaks_where_the_allocator_says(
    layer: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "layers.py").write_text(CODE)
    settings: dict[str, Any] = {"model": f"{tmp_path / 'layers.py'}:model", "model.layer": layer}
    sizes = {"batch": 4, "context": 32, "device": "cuda:0", "precision": precision}
    spec = resolve(parse_spec({**settings, **sizes}))
    prediction = exact_prediction(canonical_spec(spec))
    workspaces = {row.name: row.bytes for row in prediction.ledger}["workspaces"]
    measured = cuda_phase_peaks(lambda: make_workload(spec))
    predicted = {phase.phase: phase.peak_bytes - workspaces for phase in prediction.phases}
    if layer.startswith("Masked"):
        del predicted["backward"]  # its kernel's scratch is in the requests alone
    assert predicted == {phase: measured[phase] for phase in predicted}
