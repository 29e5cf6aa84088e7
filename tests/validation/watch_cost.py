"""What `watch` costs a training step outside of windows.

``python -m tests.validation.watch_cost --rounds 200`` trains three models with the recorder off and
on in turn, in one process: bare, watched, watched, bare. Two processes differ by more than the
recorder costs, from where their memory lies. For each model it prints the ratio of wall and of
processor time, watched to bare, as the median over the rounds with its 95 % interval. A watched
block pays for hooks, for marks that are written, and for the thread that samples lines, as often as
after the first minute of a job; with ``--first-minute`` five times as often, as in it. It is too
short for the file of samples, which the thread writes every five seconds in half a millisecond.

The steps take 25 to 50 ms; with ``--short`` 2 to 7 ms, of which the same hooks are a larger share.

The C library keeps freed memory here. By default it returns memory to the system or not, depending
on what lies at the end of its heap: bare steps of the perceptron then took 40 to 60 ms, from one
process to the next, and 36 to 41 ms with memory that is kept. ``--return-memory`` leaves the
default. The page faults of a bare step are printed, and what recording adds to them.

``watch_loops`` compares counts and input waits with the clocks of scripts.
"""

from __future__ import annotations

import argparse
import ctypes
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, TensorDataset

from sysbench.core.compare.statistics import median_interval
from sysbench.core.watch.hook.host_recorder import QUICK_SAMPLES
from sysbench.core.watch.hook.step_recorder import Recorder

BLOCK_SECONDS = 0.5
WARMUP = 2
"""First steps of a block, which are left out."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``; its manual has them."""


class Sizes(NamedTuple):
    width: int
    batch: int


LONG_STEPS = {
    "perceptron": Sizes(1024, 32),
    "convolutions": Sizes(32, 32),
    "transformer": Sizes(192, 4),
}
SHORT_STEPS = {
    "perceptron": Sizes(256, 8),
    "convolutions": Sizes(32, 4),
    "transformer": Sizes(96, 1),
}


def model_of(name: str, width: int) -> torch.nn.Module:
    nn = torch.nn
    if name == "perceptron":
        return nn.Sequential(*[nn.Linear(width, width) for _ in range(6)])
    if name == "convolutions":
        return nn.Sequential(*[nn.Conv2d(width if n else 3, width, 3) for n in range(4)])
    blocks = [nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True) for _ in range(4)]
    return nn.Sequential(nn.Embedding(512, width), *blocks, nn.Linear(width, 512))


def batches_of(name: str, sizes: Sizes, steps: int) -> DataLoader[Any]:
    count = steps * sizes.batch
    if name == "perceptron":
        rows = torch.randn(count, sizes.width)
    elif name == "convolutions":
        rows = torch.randn(count, 3, 32, 32)
    else:
        rows = torch.randint(0, 512, (count, 48))
    return DataLoader(TensorDataset(rows), batch_size=sizes.batch)


class Times(NamedTuple):
    """Means of a step of a block: seconds, and page faults that read nothing from a disk."""

    wall: float
    processor: float
    faults: float

    @classmethod
    def now(cls) -> Times:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        return cls(time.perf_counter(), time.process_time(), faults)


def train(model: Any, optimizer: Any, loader: Any) -> Times:
    """Times of the steps after the first ones."""
    began = Times.now()
    steps = 0
    for (rows,) in loader:
        if steps == WARMUP:
            began = Times.now()
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    ended = Times.now()
    return Times(
        *((after - before) / (steps - WARMUP) for before, after in zip(began, ended, strict=True))
    )


def measure_rounds(
    name: str, sizes: Sizes, rounds: int, taken: int
) -> Iterator[tuple[Times, Times]]:
    """Times of each round, bare and watched.

    Args:
        taken: Samples that the recorder has taken before.
    """
    torch.manual_seed(0)
    model = model_of(name, sizes.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    seconds = train(model, optimizer, batches_of(name, sizes, 20)).wall
    loader = batches_of(name, sizes, WARMUP + round(BLOCK_SECONDS / seconds))
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(folder)
        for number in range(rounds):
            times = {}
            for is_watched in (False, True) if number % 2 == 0 else (True, False):
                if is_watched:
                    recorder.install()
                    recorder._host._taken = taken
                times[is_watched] = train(model, optimizer, loader)
                if is_watched:
                    recorder.uninstall()
            yield times[False], times[True]
        assert not recorder.broken


def keep_freed_memory() -> None:
    """Raises OSError where the C library refuses."""
    largest = 2**25  # the largest threshold of `mmap` that glibc takes
    for name, value in ((M_TRIM_THRESHOLD, 2**31 - 1), (M_MMAP_THRESHOLD, largest)):
        if not ctypes.CDLL(None).mallopt(name, value):
            raise OSError(f"mallopt({name}, {value}) was refused")


def _text(ratios: list[float]) -> str:
    middle, (low, high) = statistics.median(ratios), median_interval(ratios)
    return f"{100 * (middle - 1):+.2f} % [{100 * (low - 1):+.2f}, {100 * (high - 1):+.2f}]"


def _faults(rounds: list[tuple[Times, Times]]) -> str:
    bare = statistics.median(one.faults for one, _ in rounds)
    added = [watched.faults - one.faults for one, watched in rounds]
    low, high = median_interval(added)
    return f"{bare:.0f} page faults {statistics.median(added):+.1f} [{low:+.1f}, {high:+.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--short", action="store_true", help="steps of 2 to 7 ms")
    parser.add_argument("--first-minute", action="store_true", help="with more samples of lines")
    parser.add_argument("--return-memory", action="store_true", help="freed, to the system")
    arguments = parser.parse_args()
    if not arguments.return_memory:
        keep_freed_memory()
    taken = 0 if arguments.first_minute else QUICK_SAMPLES
    torch.set_num_threads(1)
    for name, sizes in (SHORT_STEPS if arguments.short else LONG_STEPS).items():
        rounds = list(measure_rounds(name, sizes, arguments.rounds, taken))
        bare = statistics.median(one.wall for one, _ in rounds)
        added = statistics.median(watched.processor - bare.processor for bare, watched in rounds)
        walls = [watched.wall / bare.wall for bare, watched in rounds]
        processors = [watched.processor / bare.processor for bare, watched in rounds]
        print(
            f"{name}: bare step {1e3 * bare:.2f} ms, watched {_text(walls)}, processor time "
            f"{_text(processors)}, {1e6 * added:+.0f} us a step, {_faults(rounds)}, "
            f"in {len(rounds)} rounds",
            flush=True,
        )


if __name__ == "__main__":
    main()
