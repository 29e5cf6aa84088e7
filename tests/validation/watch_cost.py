"""What `watch` costs a training step, by pairs of processes that take turns.

``python -m tests.validation.watch_cost --rounds 30`` runs each script bare and watched in turn, and
prints the ratio of their median steps, with the 95 % interval of the median over the rounds. It
also compares counts and input waits of the record with the script's own.

``--processor`` measures the processor time of the recorder alone, in one process whose hooks are on
and off in turn: it does without pairs of processes, and other work on the machine matters less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from sysbench.core.compare.statistics import median_interval
from sysbench.core.storage import HOME_VARIABLE
from sysbench.core.watch.hook.step_recorder import Recorder
from sysbench.core.watch.job_steps import MarkFile, StepFold
from sysbench.core.watch.supervise_job import FOLDER_VARIABLE, HOOK

START = """
import json, statistics, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
"""
LOOP = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(TensorDataset(data), batch_size=batch)
steps, waits = [], []
iterator = iter(loader)
end = time.monotonic()
while True:
    asked = time.monotonic()
    rows = next(iterator, None)
    waits.append(time.monotonic() - asked)
    if rows is None:
        break
    loss_of(model, rows[0]).backward()
    optimizer.step()
    optimizer.zero_grad()
    now = time.monotonic()
    steps.append(now - end)
    end = now
print(json.dumps([steps, waits]))
"""
SCRIPTS = {
    "perceptron": """
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
data, batch = torch.randn(4000, 256), 8
def loss_of(model, x): return model(x).square().mean()
""",
    "convolutions": """
model = torch.nn.Sequential(*[torch.nn.Conv2d(3 if not n else 32, 32, 3) for n in range(4)])
data, batch = torch.randn(800, 3, 32, 32), 4
def loss_of(model, x): return model(x).square().mean()
""",
    "transformer": """
model = torch.nn.Sequential(
    torch.nn.Embedding(512, 192),
    *[torch.nn.TransformerEncoderLayer(192, 4, 384, batch_first=True) for _ in range(4)],
    torch.nn.Linear(192, 512),
)
data, batch = torch.randint(0, 512, (400, 48)), 4
def loss_of(model, x):
    return torch.nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
""",
}
WARMUP = 10
BLOCK_STEPS, BLOCK_WARMUP = 12, 3


def measure(script: Path, marks: Path | None) -> tuple[list[float], list[float]]:
    """Seconds of the steps and of the waits for input, by the script's own clock."""
    environ = dict(os.environ)
    if marks is not None:
        environ |= {"PYTHONPATH": str(HOOK), FOLDER_VARIABLE: str(marks)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environ, capture_output=True, text=True, check=True
    )
    steps, waits = json.loads(done.stdout)
    return steps, waits


def differences(marks: Path, steps: list[float], waits: list[float]) -> tuple[int, float, float]:
    """Steps recorded too many, and how far input waits and sums of phases are off, as shares of
    all steps.
    """
    (path,) = marks.glob("*.jsonl")  # the folder has the samples of the host, too
    file = MarkFile(path, marks)
    fold = StepFold(0, 0)
    for mark in file.read():
        fold.take(mark)
    fold.finish()
    waited = sum(row.input_ms for row in fold.loaders) / 1e3
    wall = sum(step.wall_ms for step in fold.steps)
    parts = sum(
        step.input_ms
        + step.forward_ms
        + step.backward_ms
        + step.optimizer_ms
        + step.evaluation_ms
        + step.other_ms
        for step in fold.steps
    )
    return len(fold.steps) - len(steps), (waited - sum(waits)) / sum(steps), parts / wall - 1


def processor_times(text: str, pairs: int) -> tuple[list[float], list[float]]:
    """Microseconds of processor time of steps without and with the recorder."""
    names: dict[str, Any] = {}
    exec(START + text, names)
    model, loss_of = names["model"], names["loss_of"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows = torch.utils.data.TensorDataset(names["data"][: BLOCK_STEPS * names["batch"]])
    loader = torch.utils.data.DataLoader(rows, batch_size=names["batch"])
    times: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(folder)
        for number in range(2 * pairs):
            is_watched = number % 4 in (1, 2)  # bare, watched, watched, bare
            if is_watched:
                recorder.install()
            block = []
            before = time.thread_time_ns()
            for (batch,) in loader:
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                now = time.thread_time_ns()
                block.append((now - before) / 1e3)
                before = now
            if is_watched:
                recorder.uninstall()
            times[is_watched].extend(block[BLOCK_WARMUP:])
        assert not recorder.broken
    return times


def print_processor_times(pairs: int) -> None:
    for name, text in SCRIPTS.items():
        bare, watched = (sorted(times) for times in processor_times(text, pairs))
        # The lowest tenth has the steps that other work on the machine disturbed least.
        low, high = bare[len(bare) // 10], watched[len(watched) // 10]
        middle = statistics.median(watched) - statistics.median(bare)
        print(
            f"{name}: bare step {low:.0f} us of processor time, recorder {high - low:+.1f} us "
            f"({100 * (high / low - 1):+.2f} %) of the lowest tenth, {middle:+.1f} us of medians",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--processor", action="store_true", help="processor time, in one process")
    arguments = parser.parse_args()
    if arguments.processor:
        print_processor_times(10 * arguments.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ[HOME_VARIABLE] = folder
        for name, text in SCRIPTS.items():
            script = Path(folder) / f"{name}.py"
            script.write_text(START + text + LOOP)
            ratios, medians, worst = [], [], (0, 0.0, 0.0)
            for number in range(arguments.rounds):
                marks = Path(folder) / f"{name}-{number}"
                marks.mkdir()
                found = {}
                # Each goes first in every second round: the machine may slow down or speed up.
                for place in (None, marks) if number % 2 else (marks, None):
                    steps, waits = measure(script, place)
                    found[place] = statistics.median(steps[WARMUP:])
                    if place is not None:
                        off = differences(marks, steps, waits)
                        worst = max(worst, off, key=lambda one: sum(map(abs, one)))
                ratios.append(found[marks] / found[None])
                medians.append(found[None])
            low, high = median_interval(ratios)
            print(
                f"{name}: bare step {1e3 * statistics.median(medians):.2f} ms, watched "
                f"{100 * (statistics.median(ratios) - 1):+.2f} % [{100 * (low - 1):+.2f}, "
                f"{100 * (high - 1):+.2f}] in {len(ratios)} pairs; largest difference: "
                f"{worst[0]} steps, input {100 * worst[1]:+.2f} %, phases {100 * worst[2]:+.4f} %",
                flush=True,
            )


if __name__ == "__main__":
    main()
