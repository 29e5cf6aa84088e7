"""Rates of `doctor --measure` on the CPU beside numpy's and torch.utils.benchmark's.

``python -P docs/validation/measure_rates.py`` prints a table. The sides take turns, round by
round, each in a fresh process with one thread, and in another order each round. Each rate is
compared within its round, so that a slow drift of the host hits both sides: the median of the
rounds' ratios, with its 95 % interval. Every side keeps the best of its ways to do the same work,
in arrays as large as those of `doctor --measure`, which no cache holds, on pages of 4 KiB. numpy's
wheels bring OpenBLAS, which is slower than torch's MKL; ``--mkl FOLDER``, that of libmkl_rt.so,
adds a side where MKL answers numpy's calls (needs ``cc``).

The same work, for numpy, means stores that pass through the caches, as those of torch's operators
do: `numpy.copyto` of a whole array is the C library's memcpy, which streams past them. It is a row
of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from sysbench.core.analysis.statistics import median_interval
from sysbench.core.machine.environment import cpu_model
from sysbench.core.record.rates import DeviceRates
from sysbench.core.runs.rates.measure import measure_rates

ROUNDS = 20
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
rows, row, one = x.reshape(-1, 1024), np.ones(1024, np.float32), np.float32(1)
left, sums = np.ones(len(rows), np.float32), np.empty(len(rows), np.float32)
reads = [x.sum, x.max, lambda: np.dot(x, x), lambda: np.matmul(rows, row, out=sums)]
ways = {
    "memory read": (1, [*reads, lambda: np.matmul(left, rows)]),
    "memory write": (1, [lambda: x.fill(1.0), lambda: np.copyto(rows, row)]),
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
rows, row = x.view(-1, 1024), torch.ones(1, 1024)
names = {"torch": torch, "x": x, "rows": rows, "row": row, "sums": torch.empty(len(rows))}
names["firsts"] = torch.zeros(len(rows), dtype=torch.int64)
reads = "x.sum()", "torch.dot(x, x)", "torch.mv(rows, row[0], out=sums)"
writes = "x.fill_(1.0)", "torch.index_select(row, 0, firsts, out=rows)"
rates["memory read"] = max(best(read, BYTES, **names) for read in reads)
rates["memory write"] = max(best(write, BYTES, **names) for write in writes)
rates["memory copy"] = best("y.copy_(x)", 2 * BYTES, x=x, y=y)
print(json.dumps(rates))
"""


MKL_FOR_NUMPY = """
void cblas_sgemm_64(int, int, int, long, long, long, float, const float *, long, const float *,
                    long, float, float *, long);
void cblas_sgemv_64(int, int, long, long, float, const float *, long, const float *, long, float,
                    float *, long);
float cblas_sdot_64(long, const float *, long, const float *, long);
void scipy_cblas_sgemm64_(int order, int left, int right, long m, long n, long k, float alpha,
                          const float *a, long a_step, const float *b, long b_step, float beta,
                          float *c, long c_step) {
    cblas_sgemm_64(order, left, right, m, n, k, alpha, a, a_step, b, b_step, beta, c, c_step);
}
void scipy_cblas_sgemv64_(int order, int turn, long m, long n, float alpha, const float *a,
                          long a_step, const float *x, long x_step, float beta, float *y,
                          long y_step) {
    cblas_sgemv_64(order, turn, m, n, alpha, a, a_step, x, x_step, beta, y, y_step);
}
float scipy_cblas_sdot64_(long n, const float *x, long x_step, const float *y, long y_step) {
    return cblas_sdot_64(n, x, x_step, y, y_step);
}
"""
"""The functions that numpy calls, by the names that its wheels give them."""


def numpy_on_mkl(mkl: Path, folder: Path) -> Mapping[str, str]:
    """Variables under which numpy multiplies with the MKL of that folder.

    Raises:
        SystemExit: There is no MKL, or no compiler.
    """
    libraries = sorted(mkl.resolve().glob("libmkl_rt.so*"))
    if not libraries:
        raise SystemExit(f"no libmkl_rt.so in {mkl}")
    source, library = folder / "mkl.c", folder / "mkl.so"
    source.write_text(MKL_FOR_NUMPY)
    link = [f"-L{libraries[0].parent}", f"-l:{libraries[0].name}", f"-Wl,-rpath,{mkl.resolve()}"]
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library), *link], check=True)
    return {"LD_PRELOAD": str(library), "MKL_THREADING_LAYER": "SEQUENTIAL"}


def other(code: str, variables: Mapping[str, str], count: int) -> dict[str, float]:
    """The rates that a fresh process with one thread prints, of arrays of so many bytes."""
    code = f"BYTES = {count}\n{code}"
    pages = {"NUMPY_MADVISE_HUGEPAGE": "0"}  # torch asks for no huge ones
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", code]
    environ = {**os.environ, **threads, **pages, **variables}
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mkl", type=Path, help="folder of libmkl_rt.so")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="rounds; at least 6 for an interval"
    )
    arguments = parser.parse_args()
    mkl, rounds = arguments.mkl, arguments.rounds
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, tuple[str, Mapping[str, str]]] = {
            "torch.utils.benchmark": (BENCHMARK, {}),
            "numpy": (NUMPY, {}),
        }
        if mkl:
            sides["numpy on MKL"] = NUMPY, numpy_on_mkl(mkl, Path(folder))
        found: dict[str, list[dict[str, float]]] = {side: [] for side in (OURS, *sides)}
        count = array_bytes(ours())
        for number in range(rounds):
            for side in turned(list(found), number):
                found[side].append(ours().rounds[0] if side == OURS else other(*sides[side], count))
            print(f"round {number + 1} of {rounds}", file=sys.stderr)

    print(f"{cpu_model()}, 1 thread, {rounds} rounds of a process a side, in turn\n")
    print(table(found, list(sides)))


def turned(sides: Sequence[str], number: int) -> list[str]:
    """The order of a round: each side begins equally often."""
    first = number % len(sides)
    return [*sides[first:], *sides[:first]]


def table(found: Mapping[str, Sequence[Mapping[str, float]]], sides: Sequence[str]) -> str:
    """A Markdown table: our median, least and most, and the ratios of the rounds.

    Args:
        found: Of each side the rates of its rounds, in FLOP/s or bytes/s; printed in 10⁹ of them.
        sides: Those to compare with.
    """

    def ratio(side: str, name: str, theirs: str = "") -> str:
        pairs = zip(found[OURS], found[side], strict=True)
        ratios = [mine[name] / other[theirs or name] for mine, other in pairs]
        low, high = median_interval(ratios)
        return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"

    lines = [
        f"| rate | {OURS} | least to most | {' | '.join(f'over {side}' for side in sides)} |",
        f"|---|---:|---:|{'---:|' * len(sides)}",
    ]
    for name in ("product fp32", "memory read", "memory write", "memory copy"):
        every = [rates[name] / 1e9 for rates in found[OURS]]
        spread = f"{min(every):.1f} to {max(every):.1f}"
        ratios = " | ".join(ratio(side, name) for side in sides)
        lines.append(f"| {name} | {statistics.median(every):.1f} G/s | {spread} | {ratios} |")
    streaming = ratio("numpy", "memory copy", "memory copy, streaming")
    return "\n".join([*lines, f"\nOver numpy's streaming copy: {streaming}"])


if __name__ == "__main__":
    main()
