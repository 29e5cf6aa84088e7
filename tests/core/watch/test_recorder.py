"""The recorder in real training loops, against counts and clocks of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import fsum
from pathlib import Path

import pytest

from sysbench.core.record.job import JobStep, step_phases
from sysbench.core.watch.job_steps import StepFold
from sysbench.core.watch.marks import MarkFile
from sysbench.core.watch.supervise_job import FOLDER_VARIABLE, HOOK

START = """
import copy, io, json, time, torch
import torch.nn.functional as F
torch.set_num_threads(1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 256), torch.nn.Linear(256, 8)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
def loss_of(model=model):
    return F.cross_entropy(model(torch.randn(16, 64)), torch.randint(0, 8, (16,)))
ends = []
"""
END = """
torch.save(model, io.BytesIO())
assert not model._forward_hooks and not model._forward_pre_hooks
assert not any(module._forward_hooks for module in copy.deepcopy(model).modules())
print(json.dumps(ends))
"""
LOOPS = {
    "accumulation": """
for step in range(12):
    for _ in range(4):
        (loss_of() / 4).backward()
    optimizer.step(); optimizer.zero_grad(); ends.append(time.monotonic_ns())
""",
    "two optimizers": """
other = torch.nn.Linear(8, 8)
second = torch.optim.SGD(other.parameters(), lr=0.1)
for step in range(12):
    loss_of(torch.nn.Sequential(model, other)).backward()
    optimizer.step(); second.step(); ends.append(time.monotonic_ns())
""",
    "scaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 4)
for step in range(12):
    loss = loss_of()
    scaler.scale(loss * (float("inf") if step == 5 else 1)).backward()
    scaler.step(optimizer); scaler.update(); optimizer.zero_grad(); ends.append(time.monotonic_ns())
""",
    "inside the backward": """
for parameter in model.parameters():
    own = torch.optim.SGD([parameter], lr=0.1)
    def step_now(parameter, own=own):
        own.step(); own.zero_grad()
    parameter.register_post_accumulate_grad_hook(step_now)
for step in range(12):
    loss_of().backward(); ends.append(time.monotonic_ns())
""",
    "evaluation, checkpoint, an error in the model": """
from torch.utils.checkpoint import checkpoint
class Recomputed(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.inner = model
    def forward(self, x):
        if x is None:
            raise ValueError("no input")
        return checkpoint(self.inner, x, use_reentrant=False)
outer = Recomputed()
for step in range(12):
    try:
        outer(None)
    except ValueError:
        pass
    with torch.no_grad():
        loss_of()
    loss_of(outer).backward(); optimizer.step(); optimizer.zero_grad()
    ends.append(time.monotonic_ns())
""",
    "compiled": """
model.compile(backend="eager", fullgraph=True)
compiled = torch.compile(copy.deepcopy(model), backend="eager", fullgraph=True)
compiled_optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
for step in range(12):
    loss_of().backward(); loss_of(compiled).backward()
    optimizer.step(); compiled_optimizer.step(); ends.append(time.monotonic_ns())
model._compiled_call_impl = None
""",
}


def recorded(script: Path, folder: Path) -> tuple[list[JobStep], list[int]]:
    """Steps of a script, and the ends that it noted on the monotonic clock."""
    marks = folder / "marks"
    marks.mkdir()
    environ = {**os.environ, "PYTHONPATH": str(HOOK), FOLDER_VARIABLE: str(marks)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environ, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    (path,) = marks.glob("*.jsonl")
    file = MarkFile(path, folder)
    kept = [*file.read()]
    assert file.facts is not None and (file.problem, file.unreadable) == ("", 0)
    fold = StepFold(0, 0)
    for mark in kept:
        fold.take(mark)
    fold.finish()
    return fold.steps, json.loads(done.stdout)


@pytest.mark.parametrize("loop", LOOPS)
def test_steps_are_those_of_the_loop(loop: str, tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(START + LOOPS[loop] + END)
    steps, ends = recorded(script, tmp_path)
    assert len(steps) == len(ends) == 12
    # The script notes each end after the optimizer's, and before the next step begins.
    for step, before, after in zip(steps, [0, *ends], ends, strict=False):
        assert before < step.start_ns + 1e6 * step.wall_ms <= after
    for step in steps:
        assert fsum(step_phases(step).values()) == pytest.approx(step.wall_ms)
        assert step.forward_ms > 0 and step.backward_ms > 0
        assert step.optimizer_ms > 0 or step.skipped
    assert {step.micro_batches for step in steps} == {
        {"accumulation": 4, "compiled": 2}.get(loop, 1)
    }
    assert [step.step for step in steps if step.skipped] == ([5] if loop == "scaler" else [])
    assert all((step.evaluation_ms > 0) == loop.startswith("evaluation") for step in steps)
