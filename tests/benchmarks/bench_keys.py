"""Each key in figures: bytes, plain and compressed, and time until the screen changes no more.

    python -P tests/benchmarks/bench_keys.py [--turns N]

The workstation on a stored run and with sensors that do not change, in a pseudo-terminal: with all
that comes read at once, and through a line of 20 KiB/s.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.pseudo_terminal import SIZES, SLOW_LINE, STEADY, started

RUN = Path(__file__).parents[1] / "fixtures" / "tiny-cpu"
RUNS = ("20261121-120000-tiny-cpu0", "20261121-120100-tiny-cpu0")
WORDS = b"What to run"
TURNS = 5
ESCAPE, DOWN = b"\x1b", b"\x1b[B"
KEYS = (
    ("F4: Result", b"\x1bOS"),
    ("2: Timing", b"2"),
    ("3: Kernels", b"3"),
    ("down in Kernels", DOWN),
    ("4: Memory", b"4"),
    ("v: the next view of Memory", b"v"),
    ("v: and the next", b"v"),
    ("F1: Help", b"\x1bOP"),
    ("esc: Help closes", ESCAPE),
    ("^p: palette", b"\x10"),
    ("esc: the palette closes", ESCAPE),
    ("1: Summary", b"1"),
    ("F5: Library", b"\x1b[15~"),
    ("down in the Library", DOWN),
    ("up in the Library", b"\x1b[A"),
    ("F2: Run", b"\x1bOQ"),
)
"""Keys in the order in which they are pressed: each is possible after the one before."""
Taken = dict[str, list[tuple[int, int, float]]]
"""Of each time that a key was pressed, by its name: bytes, bytes through `ssh -C`, seconds."""


def pressed(home: str, columns: int, lines: int, rate: float, turns: int) -> Taken:
    """Press every key so often; what a screen needs once is loaded by a round before."""
    terminal = started([sys.executable, "-P", "-c", STEADY], home, columns, lines)
    terminal.wait_for(WORDS)
    terminal.read_for(10)  # until the bars beside the load are all of it
    found: Taken = {name: [] for name, _ in KEYS}
    terminal.rate = rate
    stream = zlib.compressobj(6)  # as `ssh -C`: one stream, flushed after each key
    stream.compress(bytes(terminal.seen))
    stream.flush(zlib.Z_SYNC_FLUSH)
    for turn in range(turns + 1):
        for name, key in KEYS:
            count, seconds = terminal.stills(key)
            packed = stream.compress(bytes(terminal.seen[-count:]))
            packed += stream.flush(zlib.Z_SYNC_FLUSH)
            if turn:
                found[name].append((count, len(packed), seconds))
    terminal.end()
    return found


def lines_of(turns: int = TURNS) -> Iterator[str]:
    """The tables, measured now: a row a key, below them all keys together."""
    load = f"load {os.getloadavg()[0]:.1f} before"
    yield f"Each key {turns} times on {RUNS[0]}, in true colours, {load}."
    yield "Milliseconds to the last byte, median and p95: all read at once, then through a line of"
    yield f"{SLOW_LINE // 2**10} KiB/s. -C: bytes through zlib, level 6, one stream flushed"
    yield "per key, as `ssh -C` sends them."
    with tempfile.TemporaryDirectory() as home:
        for run in RUNS:
            shutil.copytree(RUN, Path(home, "runs", run))
        for columns, lines in SIZES:
            size = f"{columns}x{lines}"
            yield from (
                "",
                f"| key, {size} | bytes | -C | ms | p95 | ms, slow | p95 |",
                "|---|" + 6 * "---:|",
            )
            fast, slow = (pressed(home, columns, lines, rate, turns) for rate in (0, SLOW_LINE))
            for name, _ in KEYS:
                yield _row(name, fast[name], slow[name])
            both = (list(itertools.chain(*taken.values())) for taken in (fast, slow))
            yield _row("all of them", *both)


def _row(name: str, fast: list[tuple[int, int, float]], slow: list[tuple[int, int, float]]) -> str:
    cells = [f"{statistics.median(one[at] for one in fast):.0f}" for at in (0, 1)]
    for taken in (fast, slow):
        seconds = [one for *_, one in taken]
        p95 = statistics.quantiles(seconds, n=20, method="inclusive")[-1]
        cells += [f"{1e3 * statistics.median(seconds):.0f}", f"{1e3 * p95:.0f}"]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS, help="times that each key is pressed")
    for line in lines_of(parser.parse_args().turns):
        print(line, flush=True)


if __name__ == "__main__":
    main()
