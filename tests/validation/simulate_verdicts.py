"""Simulates comparisons under five kinds of noise and prints the tables of ``verdicts.md``.

Run it as ``python -m tests.validation.simulate_verdicts [COMPARISONS]``.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator

from sysbench.core.compare.interval import RoundBlock, interleaved
from sysbench.core.compare.power import power_after
from sysbench.core.compare.verdict import Verdict, judge

Noise = Callable[[random.Random], Iterator[float]]
"""Endless log deviations of successive processes."""

MOST_BLOCKS = 24
ORDERS = ("ABBA", "BAAB")
SLOWDOWNS = (0.02, 0.03, 0.05, 0.10)
POWER_BLOCKS = 5
FLOOR_ROUNDS = 40


def normal(draw: random.Random) -> Iterator[float]:
    """Deviation 2 %."""
    while True:
        yield draw.gauss(0, 0.02)


def heavy_tails(draw: random.Random) -> Iterator[float]:
    """Student's t with two degrees of freedom, scale 1 %: its variance is infinite."""
    while True:
        yield 0.01 * draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1, 1))


def two_modes(draw: random.Random) -> Iterator[float]:
    """Half of the processes 5 % slower, and 0.3 % within each mode."""
    while True:
        yield draw.choice((0.0, 0.05)) + draw.gauss(0, 0.003)


def linear_drift(draw: random.Random) -> Iterator[float]:
    """0.5 % slower with every process, and 1 % of normal noise."""
    level = 0.0
    while True:
        yield level + draw.gauss(0, 0.01)
        level += 0.005


def neighbour_in_bursts(draw: random.Random) -> Iterator[float]:
    """A neighbour that costs 8 ± 3 % for five processes on average, 30 % of the time."""
    present = draw.random() < 0.3
    while True:
        yield (abs(draw.gauss(0.08, 0.03)) if present else 0.0) + draw.gauss(0, 0.005)
        present = draw.random() < (0.8 if present else 0.2 * 0.3 / 0.7)


KINDS: tuple[Noise, ...] = (normal, heavy_tails, two_modes, linear_drift, neighbour_in_bursts)


def next_block(noise: Iterator[float], draw: random.Random, slowdown: float) -> RoundBlock:
    """Four successive processes in one of the two orders, B slower by a share."""
    times: dict[str, list[float]] = {"A": [], "B": []}
    for side in draw.choice(ORDERS):
        factor = 1 + slowdown if side == "B" else 1.0
        times[side].append(100 * factor * math.exp(next(noise)))
    return RoundBlock((times["A"][0], times["A"][1]), (times["B"][0], times["B"][1]))


def compared(kind: Noise, draw: random.Random, slowdown: float, most: int) -> tuple[Verdict, int]:
    """One comparison with the stopping rule: a look after every block."""
    noise, blocks = kind(draw), []
    while True:
        blocks.append(next_block(noise, draw, slowdown))
        verdict = judge(interleaved(blocks))
        if verdict.verdict != "not decidable" or len(blocks) == most:
            return verdict, len(blocks)


def false_verdicts(comparisons: int) -> Iterator[str]:
    """Rows of A against A."""
    yield "| noise | faster | slower | false | same within 1 % | not decidable | mean rounds |"
    yield "|---|---|---|---|---|---|---|"
    for kind in KINDS:
        draw, words, blocks = random.Random(2026), Counter[str](), 0
        for _ in range(comparisons):
            verdict, used = compared(kind, draw, 0, MOST_BLOCKS)
            words[verdict.verdict] += 1
            blocks += used
        wrong = words["faster"] + words["slower"]
        cells = (
            kind.__name__.replace("_", " "),
            f"{words['faster']}",
            f"{words['slower']}",
            f"{100 * wrong / comparisons:.1f} %",
            f"{words['same']}",
            f"{words['not decidable']}",
            f"{4 * blocks / comparisons:.0f}",
        )
        yield f"| {' | '.join(cells)} |"


def powers(comparisons: int) -> Iterator[str]:
    """Rows of A against a slower B: mean chance promised before the start, and share found.

    Each comparison has a noise floor of its own, measured before it on the same machine.
    """
    columns = " | ".join(f"{100 * slowdown:.0f} % slower" for slowdown in SLOWDOWNS)
    yield f"| noise | {columns} |"
    yield "|---|" + "---|" * len(SLOWDOWNS)
    for kind in KINDS:
        cells = [kind.__name__.replace("_", " ")]
        for slowdown in SLOWDOWNS:
            draw, promised, found = random.Random(2027), 0.0, 0
            for _ in range(comparisons):
                noise = kind(draw)
                floor = [next(noise) for _ in range(FLOOR_ROUNDS)]
                promised += power_after(floor, slowdown, POWER_BLOCKS)[-1]
                found += compared(kind, draw, slowdown, POWER_BLOCKS)[0].verdict == "slower"
            cells.append(f"{100 * promised / comparisons:.0f} → {100 * found / comparisons:.0f} %")
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Print both tables."""
    comparisons = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print("\n".join(false_verdicts(comparisons)), end="\n\n")
    print("\n".join(powers(500)))


if __name__ == "__main__":
    main()
