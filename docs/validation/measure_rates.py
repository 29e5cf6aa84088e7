"""Rates of `doctor --measure` on the CPU beside numpy's and torch.utils.benchmark's.

``python -P docs/validation/measure_rates.py`` prints a table. The sides take turns, round by
round, each in a fresh process with one thread, and their medians are compared. Every side keeps
the best of its ways to do the same work, in arrays as large as those of `doctor --measure`, which
no cache holds, on pages of 4 KiB. numpy multiplies with OpenBLAS, and larger matrices than ours.

The same work, for numpy, means stores that pass through the caches, as those of torch's operators
do: `numpy.copyto` of a whole array is the C library's memcpy, which streams past them. It is a row
of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

from sysbench.core.machine.environment import cpu_model
from sysbench.core.record.rates import DeviceRates
from sysbench.core.runs.rates.measure import measure_rates

ROUNDS = 6
OURS = "doctor --measure"
NUMPY = """
import json, time
import numpy as np

def best(call, amount):
    call()
    times = []
    until = time.perf_counter() + 0.3
    while len(times) < 5 or time.perf_counter() < until:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return amount / sorted(times)[len(times) // 2]

rates = {}
products = []
for n in (512, 1024, 2048, 4096):
    a, b = (np.random.default_rng(seed).standard_normal((n, n), np.float32) for seed in (0, 1))
    out = np.empty_like(a)
    products.append(best(lambda: np.matmul(a, b, out=out), 2 * n**3))
rates["product fp32"] = max(products)
del a, b, out
x, y = np.ones(BYTES // 4, np.float32), np.ones(BYTES // 4, np.float32)
row, one = np.ones(1024, np.float32), np.float32(1)
ways = {
    "memory read": (1, [x.sum, x.max, lambda: np.dot(x, x)]),
    "memory write": (1, [lambda: x.fill(1.0), lambda: np.copyto(x.reshape(-1, 1024), row)]),
    "memory copy": (2, [lambda: np.positive(x, out=y), lambda: np.multiply(x, one, out=y)]),
    "memory copy, streaming": (2, [lambda: np.copyto(y, x)]),
}
for name, (moved, calls) in ways.items():
    rates[name] = max(best(call, moved * BYTES) for call in calls)
print(json.dumps(rates))
"""
BENCHMARK = """
import json
import torch
from torch.utils.benchmark import Timer

def best(statement, amount, **names):
    timer = Timer(statement, globals=names)
    return amount / timer.adaptive_autorange(min_run_time=0.3).median

torch.set_num_threads(1)
rates = {}
products = []
for n in (256, 512, 1024, 2048):
    a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    products.append(best("torch.mm(a, b, out=out)", 2 * n**3, torch=torch, a=a, b=b, out=out))
rates["product fp32"] = max(products)
x, y = torch.ones(BYTES // 4), torch.ones(BYTES // 4)
reads = "x.sum()", "torch.dot(x, x)"
rates["memory read"] = max(best(read, BYTES, torch=torch, x=x) for read in reads)
rates["memory write"] = best("x.fill_(1.0)", BYTES, x=x)
rates["memory copy"] = best("y.copy_(x)", 2 * BYTES, x=x, y=y)
print(json.dumps(rates))
"""


def other(code: str, count: int) -> dict[str, float]:
    """The rates that a fresh process with one thread prints, of arrays of so many bytes."""
    code = f"BYTES = {count}\n{code}"
    pages = {"NUMPY_MADVISE_HUGEPAGE": "0"}  # torch asks for no huge ones
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **pages}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def ours() -> DeviceRates:
    """One round of the program."""
    for item in measure_rates(["cpu"], rounds=1, threads=1):
        if isinstance(item, DeviceRates):
            return item
    raise SystemExit("no rates were measured")


def array_bytes(rates: DeviceRates) -> int:
    """Bytes of an array, from "arrays of 1307 MiB"."""
    return int(rates.work["memory copy"].split()[2]) * 2**20


def main() -> None:
    """Measure in turn and print."""
    others = {"torch.utils.benchmark": BENCHMARK, "numpy": NUMPY}
    found: dict[str, list[dict[str, float]]] = {side: [] for side in (OURS, *others)}
    for _ in range(ROUNDS):
        rates = ours()
        found[OURS].append(rates.rounds[0])
        for side, code in others.items():
            found[side].append(other(code, array_bytes(rates)))
    print(f"{cpu_model()}, 1 thread, medians of {ROUNDS} processes a side, in turn\n")
    print(f"| rate | {OURS} | over torch.utils.benchmark | over numpy |")
    print("|---|---:|---:|---:|")
    for name in ("product fp32", "memory read", "memory write", "memory copy"):
        medians = {
            side: statistics.median(rates[name] for rates in rounds)
            for side, rounds in found.items()
            if name in rounds[0]
        }
        mine = medians.pop(OURS)
        ratios = [
            f"{mine / medians[side]:.3f}" if side in medians else ""
            for side in ("torch.utils.benchmark", "numpy")
        ]
        print(f"| {name} | {mine / 1e9:.1f} G/s | {' | '.join(ratios)} |")
    mine, streams = (
        statistics.median(rates[name] for rates in found[side])
        for side, name in ((OURS, "memory copy"), ("numpy", "memory copy, streaming"))
    )
    print(f"\nOver numpy's streaming copy: {mine / streams:.3f}")


if __name__ == "__main__":
    main()
