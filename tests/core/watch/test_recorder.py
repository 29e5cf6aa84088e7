"""The recorder in real training loops, against counts and clocks of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import fsum
from pathlib import Path

import pytest
import torch
from torch.autograd.profiler import profile

from sysbench.core.record.job import step_phases
from sysbench.core.watch.hook.torch_patches import TorchPatches, call_after_gradients, is_profiling
from sysbench.core.watch.job_steps import MarkFile, StepFold
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
    "a closure": """
def closure():
    optimizer.zero_grad(); loss = loss_of(); loss.backward(); return loss
for step in range(12):
    optimizer.step(closure); ends.append(time.monotonic_ns())
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


def folded(script: Path, folder: Path) -> tuple[StepFold, list[int]]:
    """Marks of a script, and the ends of its steps that it noted on the monotonic clock."""
    marks = folder / "marks"
    marks.mkdir()
    environ = {**os.environ, "PYTHONPATH": str(HOOK), FOLDER_VARIABLE: str(marks)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environ, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    (path,) = marks.glob("*.jsonl")
    file = MarkFile(path, folder)
    fold = StepFold(0, 0)
    for mark in file.read():
        fold.take(mark)
    fold.finish()
    assert file.facts is not None and (file.problem, file.unreadable) == ("", 0)
    return fold, json.loads(done.stdout)


@pytest.mark.parametrize("loop", LOOPS)
def test_steps_are_those_of_the_loop(loop: str, tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(START + LOOPS[loop] + END)
    fold, ends = folded(script, tmp_path)
    steps = fold.steps
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


SAME = {
    "an error in the backward": "torch.ones(2).sum().backward()",
    "an error in the data set": """
class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        raise ValueError(index)
for batch in torch.utils.data.DataLoader(Broken()):
    pass
""",
    "a scripted range, a compiled gradient": """
def ranged(x: torch.Tensor):
    with torch.autograd.profiler.record_function("mine"):
        return x + 1
print(torch.jit.script(ranged)(torch.ones(2)))
square = torch.compile(lambda x: torch.func.grad(lambda y: (y * y).sum())(x), backend="eager")
print(square(torch.ones(2)))
""",
}


@pytest.mark.parametrize("case", SAME)
def test_output_and_tracebacks_are_those_without_it(case: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(START + SAME[case])
    (tmp_path / "marks").mkdir()
    hook = {"PYTHONPATH": str(HOOK), FOLDER_VARIABLE: str(tmp_path / "marks")}
    watched, bare = (
        subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            timeout=240,
        )
        for more in (hook, {})
    )
    assert (watched.returncode, watched.stdout, watched.stderr) == (
        bare.returncode,
        bare.stdout,
        bare.stderr,
    )


WORKERS = """
if __name__ == "__main__":
    for workers, context in ((0, None), (1, "fork"), (2, "spawn")):
        loader = torch.utils.data.DataLoader(
            list(range(8)), num_workers=workers, multiprocessing_context=context)
        for batch in loader:
            loss_of().backward(); optimizer.step(); ends.append(time.monotonic_ns())
    print(json.dumps(ends))
"""


def test_workers_are_counted_and_are_no_ranks(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(START + WORKERS)
    fold, ends = folded(script, tmp_path)
    assert len(fold.steps) == len(ends) == 24
    assert {row.workers: row.waits for row in fold.loaders} == {0: 8, 1: 8, 2: 8}
    assert {row.place for row in fold.loaders} == {"loop.py:21"}


def test_a_profiler_that_runs_is_seen() -> None:
    assert not is_profiling(torch)
    with profile():
        assert is_profiling(torch)
    assert not is_profiling(torch)


def test_all_profilers_call_the_functions_that_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    profiler = torch.autograd.profiler
    for name in ("_run_on_profiler_start", "_run_on_profiler_stop"):
        monkeypatch.setattr(profiler, name, getattr(profiler, name))
    patches = TorchPatches(None, torch)
    assert patches.around_profilers(lambda: calls.append("begin"), lambda: calls.append("end"))
    with profile():
        assert calls == ["begin"]
    assert calls == ["begin", "end"]
    patches.uninstall()
    with profile():
        assert calls == ["begin", "end"]


def test_the_allocator_s_history_can_be_asked_for() -> None:
    """Of a build without CUDA; the null GPU's tests count with it."""
    assert callable(torch.cuda.memory._record_memory_history)
    assert callable(torch.cuda.memory._snapshot)


def test_the_private_member_of_torch_is_there() -> None:
    """`call_after_gradients` uses it: without it, waiting at the end of a backward is unknown."""
    calls: list[str] = []
    loss = torch.ones(2, requires_grad=True).sum()
    node = loss.grad_fn
    assert node is not None
    node.register_prehook(lambda _: call_after_gradients(torch, lambda: calls.append("ended")))
    loss.backward()  # type: ignore[no-untyped-call]
    assert calls == ["ended"]
