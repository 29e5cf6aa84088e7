"""The recorder in real training loops, against counts and clocks of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from math import fsum
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

import pytest
import torch
from torch.autograd.profiler import profile

from sysbench.core.record.job import step_phases
from sysbench.core.watch.hook.step_recorder import Recorder
from sysbench.core.watch.hook.torch_patches import TorchPatches, call_after_gradients, is_profiling
from sysbench.core.watch.hook.window_tracer import WINDOW_FILE
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
    "a compiled optimizer": """
import logging
logging.disable(logging.WARNING)
@torch.compile(backend="eager")
def update():
    optimizer.step(); optimizer.zero_grad()
for step in range(12):
    loss = loss_of()
    if step:
        ends.append(time.monotonic_ns())
    loss.backward(); update()
torch.ones(1, requires_grad=True).sum().backward(); ends.append(time.monotonic_ns())
""",
    "a thread that trains": """
import threading
def train():
    for step in range(12):
        loss_of().backward(); optimizer.step(); ends.append(time.monotonic_ns())
thread = threading.Thread(target=train)
thread.start(); thread.join()
""",
    "optimizers one after another, and in one another": """
class Outer(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})
    def step(self, closure=None):
        return self.inner.step(closure)
for step in range(12):
    if step % 4 == 0:
        own = Outer(torch.optim.SGD(model.parameters(), lr=0.1))
    loss_of().backward(); own.step(); ends.append(time.monotonic_ns())
""",
    "interrupted": """
class Interrupted(Net):
    def forward(self, x):
        if len(ends) == 5:
            ends.append(0); raise KeyboardInterrupt
        return super().forward(x)
own = Interrupted()
optimizer = torch.optim.AdamW(own.parameters())
for _ in torch.utils.data.DataLoader(range(13)):
    try:
        loss_of(own).backward(); optimizer.step(); ends.append(time.monotonic_ns())
    except KeyboardInterrupt:
        pass
ends.remove(0)
""",
}


COPIES = """
import os, runpy, sys, torch, torch._dynamo
torch.set_num_threads(1)
for script in sys.argv[1:]:
    if not (pid := os.fork()):
        for stream in (1, 2):
            os.dup2(os.open(f"{script}.{stream}", os.O_WRONLY | os.O_CREAT), stream)
        runpy.run_path(script, run_name="__main__")
        break
    print(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Importing torch and its compiler takes longer than a loop. Each script runs in a copy of a
process that has done it; a copy has a file of marks of its own."""


class Ended(NamedTuple):
    pid: int
    code: int
    output: str
    errors: str


def run_copies(folder: Path, codes: dict[str, str], *, watched: bool = True) -> dict[str, Ended]:
    """Run each code in a copy of one process; the marks are in ``marks``."""
    (folder / "marks").mkdir()
    scripts = [folder / f"{number}.py" for number in range(len(codes))]
    for script, code in zip(scripts, codes.values(), strict=True):
        script.write_text(code)
    environ = {**os.environ, **(hook(folder / "marks") if watched else {})}
    done = subprocess.run(
        [sys.executable, "-c", COPIES, *map(str, scripts)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, "")
    ended = {}
    for name, script, line in zip(codes, scripts, done.stdout.splitlines(), strict=True):
        pid, exit_code = map(int, line.split())
        texts = (Path(f"{script}.{stream}").read_text() for stream in (1, 2))
        ended[name] = Ended(pid, exit_code, *(text.replace(str(folder), "") for text in texts))
    return ended


def hook(marks: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(HOOK), FOLDER_VARIABLE: str(marks)}


def fold_of(path: Path) -> StepFold:
    """The steps of a process from its file of marks."""
    file = MarkFile(path, path.parent)
    fold = StepFold(0, 0)
    for mark in file.read():
        fold.take(mark)
    fold.finish()
    assert file.facts is not None and (file.problem, file.unreadable) == ("", 0)
    return fold


Folded = Callable[[str], tuple[StepFold, list[int]]]


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Folded:
    """Steps of a loop, and their ends, which its script noted on the monotonic clock."""
    folder = tmp_path_factory.mktemp("loops")
    ended = run_copies(folder, {name: START + loop + END for name, loop in LOOPS.items()})

    @cache
    def of(name: str) -> tuple[StepFold, list[int]]:
        copy = ended[name]
        assert copy.code == 0, copy.errors
        (path,) = (folder / "marks").glob(f"*-{copy.pid}.jsonl")
        return fold_of(path), json.loads(copy.output)

    return of


@pytest.mark.parametrize("loop", LOOPS)
def test_steps_are_those_of_the_loop(loop: str, folded: Folded) -> None:
    fold, ends = folded(loop)
    steps = fold.steps
    assert len(steps) == len(ends) == 12
    # The script notes each end after the optimizer's, and before the next step begins.
    for step, before, after in zip(steps, [0, *ends], ends, strict=False):
        assert before < step.start_ns + 1e6 * step.wall_ms <= after
    if loop == "a thread that trains":
        # Before its first step it was not known as the one that trains.
        assert steps.pop(0).micro_batches == 0
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


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Ended]]:
    """Each case watched, and without the recorder."""
    codes = {case: START + code for case, code in SAME.items()}
    return [
        run_copies(tmp_path_factory.mktemp("same"), codes, watched=watched)
        for watched in (True, False)
    ]


@pytest.mark.parametrize("case", SAME)
def test_output_and_tracebacks_are_those_without_it(
    case: str, outputs: list[dict[str, Ended]]
) -> None:
    watched, bare = (ended[case] for ended in outputs)
    assert watched[1:] == bare[1:]
    assert ("Traceback" in bare.errors) == bool(bare.code) == case.startswith("an error")


WORKERS = """
for workers, context in ((0, None), (1, "fork"), (2, "spawn")):
    loader = torch.utils.data.DataLoader(
        list(range(8)), num_workers=workers, multiprocessing_context=context)
    for batch in loader:
        loss_of().backward(); optimizer.step(); ends.append(time.monotonic_ns())
print(json.dumps(ends))
"""


def test_workers_are_counted_and_are_no_ranks(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    # A worker that is spawned imports the script, and needs no model.
    lines = ["if __name__ == '__main__':", *indent(START + WORKERS, "  ").splitlines()]
    script.write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **hook(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.jsonl")
    fold, ends = fold_of(path), json.loads(done.stdout)
    assert len(fold.steps) == len(ends) == 24
    assert {row.workers: row.waits for row in fold.loaders} == {0: 8, 1: 8, 2: 8}
    line = 1 + lines.index("      for batch in loader:")
    assert {row.place for row in fold.loaders} == {f"loop.py:{line}"}


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


def test_a_window_that_is_asked_for_traces_each_of_its_steps(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.install()
    try:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters())
        (tmp_path / WINDOW_FILE).write_text("2")
        while not (traces := list(tmp_path.glob("window-*.json"))):
            model(torch.ones(4, 4)).sum().backward()
            optimizer.step()
    finally:
        recorder.uninstall()
    rows = [row for row in json.loads(traces[0].read_text())["traceEvents"] if "dur" in row]
    starts = [row["ts"] for row in rows if row["name"] == "aten::addmm"]
    steps = [row for row in rows if row["name"].startswith("ProfilerStep#")]
    assert len(steps) == 2
    for step in steps:
        assert any(step["ts"] <= start <= step["ts"] + step["dur"] for start in starts)
