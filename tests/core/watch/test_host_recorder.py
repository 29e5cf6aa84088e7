"""The sampler in a real loop: the lines that it counts, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from sysbench.core.watch.hook.window_tracer import WINDOW_VARIABLE
from sysbench.core.watch.job_block import HostFacts, read_host_facts
from sysbench.core.watch.supervise_job import FOLDER_VARIABLE, HOOK

SCRIPT = """
import gc, threading, time, weakref, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
outputs = []
model.register_forward_hook(lambda module, values, output: outputs.append(weakref.ref(output)))
def train(steps):
    for step in range(steps):
        loss = model(torch.randn(8, 64)).sum()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        time.sleep(0.05)
        if step == 2:
            gc.collect()
train(3)
gc.disable()
train(30)
del outputs[-1]
print(sum(output() is not None for output in outputs), threading.active_count())
"""
HOLDING = """
import sys, torch
sys.setswitchinterval(1.0)
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 600
    def __getitem__(self, index):
        sum(range(200_000))
        return index
for index in torch.utils.data.DataLoader(Slow(), batch_size=None, sampler=range(600)):
    sum(range(200_000))
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print()
"""

SECOND_HOOK = """
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
torch.set_num_threads(1)
calls = []
register_optimizer_step_pre_hook(lambda *_: calls.append(1))
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, foreach=False)
for _ in range(300):
    optimizer.step()
print(len(calls))
"""


def record(script: Path, source: str, window: str = "") -> tuple[HostFacts, list[str]]:
    """What was recorded of the script, and the words of its last line."""
    script.write_text(source)
    environ = {**os.environ, "PYTHONPATH": str(HOOK), FOLDER_VARIABLE: str(script.parent)}
    environ |= {WINDOW_VARIABLE: window} if window else {}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (facts,) = read_host_facts(script.parent, script.parent).values()
    return facts, done.stdout.splitlines()[-1].split()


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> tuple[HostFacts, list[str]]:
    """A script that sleeps in each step, with a window in it."""
    return record(tmp_path_factory.mktemp("sampled") / "train.py", SCRIPT, window="9:2")


def test_most_samples_are_at_the_line_that_sleeps(sampled: tuple[HostFacts, list[str]]) -> None:
    facts, _ = sampled
    counts: Counter[tuple[int, str, str, str]] = Counter()
    for row in facts.lines:
        counts[row.line, row.function, row.callee, row.phase] += row.samples
    number = SCRIPT.splitlines().index("        time.sleep(0.05)") + 1
    assert counts.most_common(1)[0][0] == (number, "train", "", "")
    # Sampling goes on after the window.
    assert max(row.bucket for row in facts.lines) > 15


def test_code_that_keeps_the_lock_is_not_counted_as_what_gives_it_up(tmp_path: Path) -> None:
    """A thread can sample only when the lock is free, which is at the next operator.

    The script's long switch interval keeps a busy machine from taking the lock from such code.
    """
    facts, _ = record(tmp_path / "train.py", HOLDING)
    samples = sum(row.samples for row in facts.lines)
    keeps = {number for number, text in enumerate(HOLDING.splitlines(), 1) if "sum(range" in text}
    for phase in ("", "i"):
        rows = [row for row in facts.lines if row.phase == phase]
        kept = [row for row in rows if row.tag == "before" or row.line in keeps]
        assert sum(row.samples for row in kept) > 0.2 * samples


def test_a_sample_that_only_its_timer_delayed_is_not_of_code_before(tmp_path: Path) -> None:
    """An idle processor of a virtual machine can wake up late; here all samples count as late."""
    late = (
        "import gc, torch\n"
        "named = [one for one in gc.get_objects() if type(one) is type(lambda: 0)]\n"
        "places = [one.__globals__ for one in named if 'LATE_SECONDS' in one.__globals__]\n"
        "places[0]['LATE_SECONDS'] = 0.0\n"
    )
    facts, _ = record(tmp_path / "train.py", late + SCRIPT)
    number = f"{late}{SCRIPT}".splitlines().index("        time.sleep(0.05)") + 1
    rows = [row for row in facts.lines if row.line == number]
    asleep = sum(row.samples for row in rows)
    assert sum(row.samples for row in rows if row.tag == "before") < 0.2 * asleep


def test_a_process_ends_whose_sampling_thread_never_began(tmp_path: Path) -> None:
    """Without memory a new thread can end before its first line."""
    without = (
        "import _thread\n"
        "begin = _thread.start_new_thread\n"
        "def start(call, args):\n"
        "    is_ours = type(getattr(call, '__self__', None)).__name__ == 'HostRecorder'\n"
        "    return begin((lambda: None) if is_ours else call, args)\n"
        "_thread.start_new_thread = start\n"
    )
    facts, _ = record(tmp_path / "train.py", without + HOLDING.replace("600", "20"))
    assert facts.failure == "the sampling thread did not end" and not facts.lines


def test_nothing_of_the_user_is_kept(sampled: tuple[HostFacts, list[str]]) -> None:
    """No output of a step lives on without the collector, and no thread is listed."""
    assert sampled[1] == ["0", "1"]


def test_collections_and_optimizers(sampled: tuple[HostFacts, list[str]]) -> None:
    facts, _ = sampled
    assert any(row.bucket == 3 and row.full for row in facts.pauses)
    (optimizer,) = facts.optimizers
    assert msgspec.structs.astuple(optimizer)[:6] == ("SGD", 2, 64 * 65, 0, 0, False)


def test_hooks_of_the_user_outlive_those_of_the_recorder(tmp_path: Path) -> None:
    _, printed = record(tmp_path / "hooks.py", SECOND_HOOK)
    assert printed == ["300"]
