"""`watch` on null GPUs: who holds the memory of a training, and what its window shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sysbench.core.memory.oom import out_of_memory
from sysbench.core.runs.run_directory import find_run
from tests.null_gpu.conftest import NullGpu

pytestmark = pytest.mark.null_gpu

TOLERANCE = 0.001
LAYERS, WIDTH, BATCH = 4, 512, 256
TRAIN = f"""
import json, torch
from torch.nn.functional import gelu

class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(gelu(self.up(self.norm(x))))

model = torch.nn.Sequential(*[Block({WIDTH}) for _ in range({LAYERS})]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept = []
for step in range(8):
    x = torch.randn(2**20 if step == 7 else {BATCH}, {WIDTH}, device="cuda")
    if step == 7:
        print(json.dumps([sum(p.numel() for p in model.parameters()), x.nbytes]), flush=True)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.ones(100_000, device="cuda"))
"""


def test_who_holds_memory_when_the_card_is_full(null_gpu: NullGpu, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    done = null_gpu.sysbench(
        *("watch", "--memory", "2:4", "--", str(null_gpu.where.python), str(script)),
        memory_mib=8192,
        pace=0.001,
    )
    assert done.returncode == 1 and "CUDA out of memory" in done.stderr
    run = find_run("last", null_gpu.home)
    record = run.record()
    assert record.status == "oom"
    pass_and_oom = out_of_memory(record)
    assert pass_and_oom is not None
    oom = pass_and_oom[1]
    parameters, batch_bytes = json.loads(done.stdout)
    ledger = {row.name: row.bytes for row in oom.ledger}
    # Each of its tensors has a scalar that counts steps.
    assert ledger["optimizer state"] == pytest.approx(8 * parameters, rel=TOLERANCE)
    assert ledger["parameters"] == 4 * parameters
    assert ledger["inputs"] == batch_bytes
    assert ledger["outputs"] == batch_bytes  # of the norm, which the next layer has not saved
    assert ledger["other tensors"] == 7 * 400_000
    assert oom.allocated_bytes == sum(ledger.values())
    assert 0 <= ledger["residual"] < TOLERANCE * oom.allocated_bytes
    assert oom.reserved_bytes is not None and oom.reserved_bytes > oom.allocated_bytes
    assert oom.requested_bytes == 4 * batch_bytes and oom.stack[0].endswith(" Block.forward")
    state = null_gpu.sysbench("inspect", str(run.snapshot_path), "--json")
    snapshot = json.loads(state.stdout)["memory"]
    assert snapshot["peak_allocated_bytes"] == oom.allocated_bytes
    memory = record.memory
    assert memory is not None
    forward = {row.name: row.bytes for row in memory.columns["end of forward"]}
    # Norm, first layer, gelu and second layer save their inputs, a norm also mean and deviation.
    saved = 4 * BATCH * (WIDTH * (1 + 1 + 4 + 4) + 2) * LAYERS - 4 * BATCH * WIDTH
    assert forward["activations"] == pytest.approx(saved, rel=TOLERANCE)
    # The optimizer's temporaries are seen by the allocator's history alone.
    assert memory.recorded_peak_phase.startswith("Optimizer.step#AdamW.step")
    assert memory.recorded_peak_bytes == pytest.approx(
        memory.end_allocated_bytes + 4 * parameters, rel=0.02
    )
    assert any("train.py:" in word for row in memory.origins for word in row.stack)
    (grows,) = [found for found in record.findings if found.rule == "memory-grows"]
    assert grows.numbers["growth_bytes"] == pytest.approx(400_000, rel=0.01)
    assert "kept[]" in grows.verdict


def test_work_from_before_the_window_is_not_idle_time(null_gpu: NullGpu, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch
model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.zeros(8192, 4096, device="cuda")
for _ in range(40):  # nothing reads a value: the queue of the GPU fills
    model(x).square().mean().backward()
    optimizer.step()
"""
    )
    python = str(null_gpu.where.python)
    done = null_gpu.sysbench("watch", "--window", "20:3", "--", python, str(script), pace=10)
    assert done.returncode == 0, done.stderr
    kernels = find_run("last", null_gpu.home).record().kernels
    assert kernels is not None and kernels.steps == 3
    assert sum(row.share for row in kernels.idle) < 0.5
