"""Does the product time a step as a bare loop does? Interleaved pairs, ratio of medians.

Both sides build the same model from the same seed in a fresh process with the same threads;
the bare side knows nothing of phases, events or supervisors.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

from sysbench.core import RunSpec, run

PAIRS = 12
STEPS = 60
# One thread: with more, the spread of thread scheduling hides what is compared here.
SPEC = RunSpec(device="cpu", warmup=5, steps=STEPS, attention="sdpa", batch=8, threads=1)

BARE = """
import sys, time, statistics, torch
from torch.nn import functional as F
from sysbench.core.worker.workloads.transformer import Transformer
from sysbench.core.spec.spec import RunSpec
import msgspec
spec = msgspec.json.decode(sys.argv[1], type=RunSpec)
torch.set_num_threads(spec.threads)
torch.manual_seed(spec.seed)
model = Transformer(spec.dimensions, spec.context, "sdpa")
tokens = torch.randint(spec.vocab, (spec.batch, spec.context))
targets = torch.randint(spec.vocab, (spec.batch, spec.context))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
times = []
for step in range(spec.warmup + spec.steps):
    began = time.perf_counter()
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    del logits
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    times.append((time.perf_counter() - began) * 1e3)
print(statistics.median(times[spec.warmup:]))
"""


def bare_median_ms() -> float:
    """The median step of the hand-written loop."""
    import msgspec

    spec = msgspec.json.encode(SPEC).decode()
    command = [sys.executable, "-P", "-c", BARE, spec]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def product_median_ms() -> float:
    """The median step as the product reports it."""
    timing = run(SPEC, ["timing"]).record.timing
    assert timing is not None
    return timing.step.median_ms


def main() -> None:
    ratios = []
    print(f"timing truth: {PAIRS} interleaved pairs of {STEPS} steps, one thread")
    with tempfile.TemporaryDirectory() as home:
        os.environ["SYSBENCH_HOME"] = home
        for pair in range(PAIRS):
            # Alternate who goes first, so that a drifting machine favours nobody.
            if pair % 2:
                product, bare = product_median_ms(), bare_median_ms()
            else:
                bare, product = bare_median_ms(), product_median_ms()
            ratios.append(product / bare)
            print(f"  bare {bare:8.3f} ms   product {product:8.3f} ms   {ratios[-1]:.4f}")
    print(
        f"  product / bare: median {statistics.median(ratios):.4f}, "
        f"from {min(ratios):.4f} to {max(ratios):.4f}"
    )


if __name__ == "__main__":
    main()
