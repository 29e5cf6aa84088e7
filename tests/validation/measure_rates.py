"""Rates of `doctor --measure` on the CPU beside numpy's and torch.utils.benchmark's.

``python -m tests.validation.measure_rates`` prints a table. All sides are in one process with one
thread and work on the same memory: where the host lays a process's pages moves a rate by 15 % on a
virtual machine, and its neighbours move it from minute to minute. So they take turns, rate by rate,
within seconds, each round in another order, and a rate is compared within its round: the median of
the rounds' ratios, with its 95 % interval. Every side keeps the best of its ways to do the same
work, in arrays as large as those of `doctor --measure`, which no cache holds. numpy's wheels bring
OpenBLAS; with ``--mkl FOLDER``, that of libmkl_rt.so, MKL answers numpy's calls (needs ``cc``), as
it answers torch's.

The same work, for numpy, means stores that pass through the caches, as those of torch's operators
do: `numpy.copyto` of a whole array is the C library's memcpy, which streams past them. It is a row
of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.benchmark import Timer

from sysbench.core.compare.statistics import median_interval
from sysbench.core.machine.read_environment import cpu_model
from sysbench.core.record.device_rates import RateRequest
from sysbench.core.worker.measure_rates import LONG_ROW, MEASURES, ROW, SIZES, Bench

ROUNDS = 20
SECONDS = 0.1
OURS, BENCHMARK, NUMPY = "doctor --measure", "torch.utils.benchmark", "numpy"
STREAMING = "memory copy, streaming"
Measure = Callable[[], float]
"""One rate of one side, in FLOP/s or bytes/s."""

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


def ours(bench: Bench) -> dict[str, Measure]:
    """The program's own, as its worker calls them."""

    def rate(name: str) -> float:
        return MEASURES[name](bench)[0]

    names = ("product fp32", "memory read", "memory write", "memory copy")
    return {name: partial(rate, name) for name in names}


def of_benchmark(x: torch.Tensor, y: torch.Tensor) -> dict[str, Measure]:
    """By statements that torch's own timer compiles."""

    def rate(amount: float, statement: str, **names: object) -> float:
        timer = Timer(statement, globals={"torch": torch, **names})
        return amount / timer.adaptive_autorange(min_run_time=SECONDS).median

    def product(n: int) -> float:
        a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
        return rate(2 * n**3, "torch.mm(a, b, out=out)", a=a, b=b, out=out)

    rows, row = x.view(-1, ROW), torch.ones(1, ROW)
    long_rows, long_row = x.view(-1, LONG_ROW), torch.ones(LONG_ROW)
    names = {"x": x, "y": y, "rows": rows, "row": row}
    names |= {"long_rows": long_rows, "long_row": long_row, "sums": torch.empty(len(long_rows))}
    names["firsts"] = torch.zeros(len(rows), dtype=torch.int64)
    reads = "x.sum()", "torch.dot(x, x)", "torch.mv(long_rows, long_row, out=sums)"
    writes = "x.fill_(1.0)", "torch.index_select(row, 0, firsts, out=rows)"
    return {
        "product fp32": lambda: max(map(product, SIZES["cpu"])),
        "memory read": lambda: max(rate(x.nbytes, one, **names) for one in reads),
        "memory write": lambda: max(rate(x.nbytes, one, **names) for one in writes),
        "memory copy": lambda: rate(2 * x.nbytes, "y.copy_(x)", **names),
    }


def of_numpy(x_there: torch.Tensor, y_there: torch.Tensor) -> dict[str, Measure]:
    """By a loop with a clock."""
    x, y = x_there.numpy(), y_there.numpy()

    def rate(amount: float, call: Callable[[], object]) -> float:
        call()
        times: list[float] = []
        until = time.perf_counter() + SECONDS
        while not times or time.perf_counter() < until:  # as long as the other sides
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        return amount / statistics.median(times)

    def product(n: int) -> float:
        a, b = (np.random.default_rng(seed).standard_normal((n, n), np.float32) for seed in (0, 1))
        out = np.empty_like(a)
        return rate(2 * n**3, lambda: np.matmul(a, b, out=out))

    rows, row, one = x.reshape(-1, ROW), np.ones(ROW, np.float32), np.float32(1)
    long_rows, long_row = x.reshape(-1, LONG_ROW), np.ones(LONG_ROW, np.float32)
    sums = np.empty(len(long_rows), np.float32)
    reads = x.sum, lambda: np.dot(x, x), lambda: np.matmul(long_rows, long_row, out=sums)
    writes = (lambda: x.fill(1.0), lambda: np.copyto(rows, row))
    copies = (lambda: np.positive(x, out=y), lambda: np.multiply(x, one, out=y))
    return {
        "product fp32": lambda: max(map(product, SIZES["cpu"])),
        "memory read": lambda: max(rate(x.nbytes, call) for call in reads),
        "memory write": lambda: max(rate(x.nbytes, call) for call in writes),
        "memory copy": lambda: max(rate(2 * x.nbytes, call) for call in copies),
        STREAMING: lambda: rate(2 * x.nbytes, lambda: np.copyto(y, x)),
    }


def turned(sides: Sequence[str], number: int) -> list[str]:
    """The order of a round: each side begins equally often."""
    first = number % len(sides)
    return [*sides[first:], *sides[:first]]


def main() -> None:
    """Measure in turn and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mkl", type=Path, help="folder of libmkl_rt.so")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 6 for an interval")
    arguments = parser.parse_args()
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if not one_thread.items() <= os.environ.items():  # libraries read them when they are loaded
        with tempfile.TemporaryDirectory() as folder:
            extra = numpy_on_mkl(arguments.mkl, Path(folder)) if arguments.mkl else {}
            environ = {**os.environ, **one_thread, **extra}
            raise SystemExit(subprocess.run([*sys.orig_argv], env=environ).returncode)
    torch.set_num_threads(1)
    bench = Bench(RateRequest(device="cpu", threads=1, seconds=SECONDS))
    x, y, _ = bench.arrays
    sides = {OURS: ours(bench), BENCHMARK: of_benchmark(x, y), NUMPY: of_numpy(x, y)}
    found: dict[str, dict[str, list[float]]] = {
        side: {name: [] for name in rates} for side, rates in sides.items()
    }
    for number in range(arguments.rounds):
        for name in sides[NUMPY]:
            for side in turned(list(sides), number):
                if name in sides[side]:
                    found[side][name].append(sides[side][name]())
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)

    library = "MKL" if arguments.mkl else "OpenBLAS"
    print(f"{cpu_model()}, 1 thread, {arguments.rounds} rounds, numpy with {library}\n")
    print(table(found))


def table(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """A Markdown table: our median, least and most, and the ratios of the rounds.

    Args:
        found: Of each side the rates of its rounds, in FLOP/s or bytes/s; printed in 10⁹ of them.
    """

    def ratio(side: str, name: str, theirs: str = "") -> str:
        pairs = zip(found[OURS][name], found[side][theirs or name], strict=True)
        ratios = [mine / other for mine, other in pairs]
        low, high = median_interval(ratios)
        return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"

    lines = [
        f"| rate | {OURS} | least to most | over {BENCHMARK} | over {NUMPY} |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, rates in found[OURS].items():
        every = [rate / 1e9 for rate in rates]
        spread = f"{min(every):.1f} to {max(every):.1f}"
        ratios = " | ".join(ratio(side, name) for side in (BENCHMARK, NUMPY))
        lines.append(f"| {name} | {statistics.median(every):.1f} G/s | {spread} | {ratios} |")
    return "\n".join(
        [*lines, f"\nOver numpy's streaming copy: {ratio(NUMPY, 'memory copy', STREAMING)}"]
    )


if __name__ == "__main__":
    main()
