"""Real and simulated comparisons by pairs of processes that take turns, beside the old way.

``python -m tests.validation.duet --same 40`` compares a spec with itself; ``--delay 10 20 --minutes
1.5`` compares it 20 times with one whose step has 10 % more work (110 equal layers instead of 100).
``--old`` measures one process at a time in ABBA blocks. Each comparison is an `ab` command with
``--minutes`` as its limit; its result is a line of ``duet.jsonl`` in the home, so a run that was
stopped goes on, and the table has all results there. SYSBENCH_HOME names the home.

``--simulate 1000`` prints the shares of false verdicts and of found differences under five kinds of
noise between processes, each with drift and bursts of the machine while they take turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.compare.compared_records import pair_difference
from sysbench.core.compare.interval import duet
from sysbench.core.compare.verdict import Verdict, judge
from sysbench.core.record.timing import Round
from tests.validation.simulate_verdicts import KINDS, Noise

LAYERS = 100
MODEL = """
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return x + self.inner(x).relu()


def make(layers=100, width=128):
    blocks = [Block(width) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(50, width), *blocks, nn.Linear(width, 50))
"""
SETTINGS = ("device=cpu", "batch=4", "context=64", f"model.layers={LAYERS}")
TURNS = 5
PAIRS = (9, 18, 40)
"""Pairs in some 1, 2 and 4 minutes, of a step of some 60 ms."""
SLOWDOWNS = (0.02, 0.05, 0.10)


class Kind(msgspec.Struct, frozen=True):
    """What was compared: a slowdown in per cent (0 is the same spec), the limit, and the method."""

    percent: float
    minutes: float
    method: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """``promised`` is the chance to find the slowdown that the plan gave before the start."""

    kind: Kind
    verdict: Verdict
    seconds: float
    pairs_ms: float | None
    promised: float | None
    load: float
    experiment: str


def compared(kind: Kind, model: Path, seed: int) -> Result:
    """One comparison by the command line."""
    words = ["ab", f"{model}:make", f"{model}:make", "--json", "--seed", str(seed)]
    words += [word for setting in SETTINGS for word in ("--set", setting)]
    words += ["--max-minutes", f"{kind.minutes:g}"]
    if kind.percent:
        words += ["--set-b", f"model.layers={LAYERS + round(LAYERS * kind.percent / 100)}"]
    if kind.method == "blocks":
        words.append("--one-at-a-time")
    began = time.monotonic()
    program = [sys.executable, "-P", "-m", "sysbench.tui.cli", *words]
    done = subprocess.run(program, stdout=subprocess.PIPE, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    promises = (report["plan"] or {}).get("promises", [])
    chances = {round(100 * row["difference"], 1): row["power"] for row in promises}
    medians = [row["median_ms"] for row in report["a"]["rounds"] if row["median_ms"]]
    return Result(
        kind=kind,
        verdict=msgspec.convert(report["verdict"], Verdict),
        seconds=time.monotonic() - began,
        pairs_ms=statistics.median(medians) if medians else None,
        promised=chances.get(kind.percent),
        load=os.getloadavg()[0],
        experiment=report["id"],
    )


def results(path: Path) -> list[Result]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Result) for line in lines]


def table(rows: list[Result]) -> Iterator[str]:
    yield (
        "| method | B | minutes | runs | promised | slower | faster | same | open | mean change "
        "| spread | rounds | seconds | load |"
    )
    yield f"|{'---|' * 14}"
    for kind in dict.fromkeys(row.kind for row in rows):
        of_kind = [row for row in rows if row.kind == kind]
        words = [row.verdict.verdict for row in of_kind]
        spreads = [row.verdict.spread for row in of_kind if row.verdict.spread is not None]
        promised = [row.promised for row in of_kind if row.promised is not None]
        cells = [
            kind.method,
            f"+{kind.percent:g} %" if kind.percent else "A",
            f"{kind.minutes:g}",
            len(of_kind),
            f"{100 * statistics.fmean(promised):.0f} %" if promised else "n/a",
            *(words.count(word) for word in ("slower", "faster", "same", "not decidable")),
            f"{100 * statistics.fmean(row.verdict.change or 0 for row in of_kind):+.2f} %",
            f"{100 * statistics.median(spreads):.1f} %" if spreads else "n/a",
            f"{statistics.fmean(2 * row.verdict.rounds_a for row in of_kind):.0f}",
            f"{statistics.fmean(row.seconds for row in of_kind):.0f}",
            f"{statistics.median(row.load for row in of_kind):.1f}",
        ]
        yield f"| {' | '.join(map(str, cells))} |"


def measure(kind: Kind, count: int) -> None:
    """Compare until there are ``count`` results of this kind, then print the table of all."""
    home = Path(os.environ.get("SYSBENCH_HOME") or tempfile.mkdtemp(prefix="duet-"))
    os.environ["SYSBENCH_HOME"] = str(home)
    home.mkdir(parents=True, exist_ok=True)
    path, model = home / "duet.jsonl", home / "delayed_model.py"
    model.write_text(MODEL)
    done = sum(row.kind == kind for row in results(path))
    for seed in range(done, count):
        result = compared(kind, model, seed)
        with path.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
        change = result.verdict.change
        print(
            f"{kind.method} {seed + 1}/{count}: {result.verdict.verdict}"
            f" {'n/a' if change is None else f'{100 * change:+.1f} %'},"
            f" {result.verdict.rounds_a} rounds a side, {result.seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    print("\n".join(table(results(path))))


def simulated_pair(noise: Iterator[float], draw: random.Random, slowdown: float) -> float:
    """Log ratio of two processes that take turns on a machine that drifts and has bursts."""
    level, burst = 0.0, 0.0
    order = draw.choice(("AB", "BA"))
    processes = {side: next(noise) for side in order}
    steps: dict[str, list[float]] = {"A": [], "B": []}
    for _ in range(TURNS):
        for side in order:
            level += draw.gauss(0, 0.02)
            burst = draw.choice((0.3, 0.6)) if draw.random() < 0.05 else burst * 0.7
            tail = 0.01 * draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1, 1))
            slower = math.log1p(slowdown) if side == "B" else 0.0
            steps[side].append(100 * math.exp(level + burst + tail + slower + processes[side]))
    a, b = (
        Round(
            index=1,
            started_ns=0,
            outcome="finished",
            median_ms=statistics.median(steps[side]),
            samples_ms=steps[side],
            turn_steps=[1] * TURNS,
            position=order.index(side),
        )
        for side in "AB"
    )
    return pair_difference(a, b)


def decided(kind: Noise, draw: random.Random, slowdown: float, most: int) -> tuple[str, int]:
    """The verdict's word with a look after every pair, and the pairs that it took."""
    noise, differences = kind(draw), []
    for count in itertools.count(1):
        differences.append(simulated_pair(noise, draw, slowdown))
        word = judge(duet(differences)).verdict
        if word != "not decidable" or count == most:
            return word, count
    raise AssertionError


def simulate(comparisons: int) -> Iterator[str]:
    columns = [f"{100 * slowdown:.0f} % in {most}" for slowdown in SLOWDOWNS for most in PAIRS]
    yield f"| noise between processes | false in {PAIRS[-1]} | {' | '.join(columns)} |"
    yield f"|{'---|' * (2 + len(columns))}"
    for kind in KINDS:
        draw = random.Random(2026)
        words = [decided(kind, draw, 0.0, PAIRS[-1])[0] for _ in range(comparisons)]
        wrong = sum(word in ("faster", "slower") for word in words)
        cells = [kind.__name__.replace("_", " "), f"{100 * wrong / comparisons:.1f} %"]
        for slowdown in SLOWDOWNS:
            # Stopping later does not change what was decided before.
            outcomes = [
                decided(kind, draw, slowdown, PAIRS[-1]) for _ in range(max(1, comparisons // 5))
            ]
            for most in PAIRS:
                found = sum(word == "slower" and used <= most for word, used in outcomes)
                cells.append(f"{100 * found / len(outcomes):.0f} %")
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--same", type=int, metavar="N")
    parser.add_argument("--delay", nargs=2, type=float, metavar=("PERCENT", "N"))
    parser.add_argument("--minutes", type=float, default=1.5)
    parser.add_argument("--old", action="store_true", help="ABBA blocks instead of pairs")
    parser.add_argument("--simulate", type=int, metavar="N")
    options = parser.parse_args()
    method = "blocks" if options.old else "duet"
    if options.simulate:
        for line in simulate(options.simulate):
            print(line, flush=True)
    if options.same:
        measure(Kind(0.0, options.minutes, method), options.same)
    if options.delay:
        percent, count = options.delay
        measure(Kind(percent, options.minutes, method), int(count))


if __name__ == "__main__":
    main()
