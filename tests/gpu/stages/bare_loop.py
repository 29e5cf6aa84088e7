"""Does the program time a step as a loop by hand does, and what does watching the card cost?"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import msgspec

from sysbench.core import RunSpec, run
from sysbench.core.machine.machine_reader import Sampler
from sysbench.core.machine.sample import Sample
from tests.gpu.stages.stage import Bench, Row, header, line

PAIRS = 3

# The model alone is ours: no phases, no supervisor, no notes. Two clocks, on steps of their own.
BARE = """
import contextlib, json, statistics, sys, time
import msgspec, torch
from torch.nn import functional as F
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.transformer import Transformer

spec = msgspec.json.decode(sys.argv[1], type=RunSpec)
device = torch.device(spec.device)
torch.cuda.set_device(device)
torch.manual_seed(spec.seed)
with device:
    model = Transformer(spec.dimensions, spec.context, spec.attention)
    tokens = torch.randint(spec.vocab, (spec.batch, spec.context))
    targets = torch.randint(spec.vocab, (spec.batch, spec.context))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
is_bf16 = spec.precision == "bf16"

def step():
    with torch.autocast("cuda", torch.bfloat16) if is_bf16 else contextlib.nullcontext():
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    del logits
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

for _ in range(spec.warmup):
    step()
torch.cuda.synchronize()
events = [torch.cuda.Event(enable_timing=True) for _ in range(spec.steps + 1)]
events[0].record()
for event in events[1:]:
    step()
    event.record()
torch.cuda.synchronize()
times = [first.elapsed_time(second) for first, second in zip(events, events[1:])]
began = time.perf_counter()
for _ in range(spec.steps):
    step()
torch.cuda.synchronize()
wall = (time.perf_counter() - began) * 1e3 / spec.steps
print(json.dumps({"events": statistics.median(times), "wall": wall}), flush=True)
"""


def lines(bench: Bench) -> Iterator[str]:
    """A row for each precision, and one for the sampler."""
    model = "tiny" if bench.is_quick else "cs336-2025/small"
    steps = 5 if bench.is_quick else 40
    yield f"{model}, train, batch 4, context 256, {steps} steps a process; the sides take turns."
    yield "Milliseconds are medians over the processes; ratios are of those, with the pairs' range."
    yield ""
    columns = ("precision", "pairs", "program ms", "bare, events ms", "bare, wall ms")
    yield from header(*columns, "program / events", "program / wall")
    for precision in ("bf16", "fp32"):
        spec = RunSpec(
            model=model, device=bench.device, batch=4, context=256, precision=precision,
            optimizer="adamw-foreach", warmup=5, steps=steps,
        )  # fmt: skip
        yield line(bench.once(precision, partial(_compared, bench, spec)))
    yield ""
    spec = RunSpec(
        model=model, device=bench.device, batch=4, context=256, warmup=5, steps=4 * steps,
        precision="bf16", optimizer="adamw-foreach",
    )  # fmt: skip
    yield from header("bare loop beside", "ms", "over without")
    for row in json.loads(bench.once("sampler", lambda: [json.dumps(_sampled(bench, spec))])[0]):
        yield line(row)


def _compared(bench: Bench, spec: RunSpec) -> Row:
    """The sides in turn, each first every other time, so that a drift favours neither."""
    ours, events, wall = [], [], []
    pairs = 1 if bench.is_quick else PAIRS
    for pair in range(pairs):
        for side in ("ours", "bare") if pair % 2 else ("bare", "ours"):
            if side == "ours":
                ours.append(_program(spec))
            else:
                found = _bare(spec)
                events.append(found["events"])
                wall.append(found["wall"])
    return [
        spec.precision,
        str(pairs),
        *(bench.time(statistics.median(side)) for side in (ours, events, wall)),
        *(_ratio(bench, ours, side) for side in (events, wall)),
    ]


def _ratio(bench: Bench, ours: list[float], bare: list[float]) -> str:
    pairs = [a / b for a, b in zip(ours, bare, strict=True)]
    middle = statistics.median(ours) / statistics.median(bare)
    return bench.time(middle, f"{{:.4f}} ({min(pairs):.4f} to {max(pairs):.4f})")


def _program(spec: RunSpec) -> float:
    record = run(spec, ["timing"]).record
    assert record.timing is not None, record.passes[-1].detail
    return record.timing.step.median_ms


def _bare(spec: RunSpec) -> dict[str, float]:
    """Milliseconds by clock. A process that aborts as it exits has measured them, too."""
    command = [sys.executable, "-P", "-c", BARE, msgspec.json.encode(spec).decode()]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and not done.stdout.endswith("}\n"):
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RuntimeError(*reason)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _sampled(bench: Bench, spec: RunSpec) -> list[Row]:
    """The bare loop with and without NVML and GPM being read in another process: this one."""
    taken: list[Sample] = []

    def none() -> AbstractContextManager[object]:
        return nullcontext()

    def twice() -> AbstractContextManager[object]:
        return Sampler(taken.append)

    sides = {"nothing": none, "NVML and GPM, 2 Hz": twice}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(1 if bench.is_quick else PAIRS):
        for name, beside in sides.items():
            with beside():
                found[name].append(_bare(spec)["events"])
    medians = {name: statistics.median(values) for name, values in found.items()}
    return [
        [name, bench.time(value), bench.time(value / medians["nothing"], "{:.4f}")]
        for name, value in medians.items()
    ]
