"""The screens in figures: first frame, bytes on the wire, a long table. Writes docs/performance.md.

    python -P tests/benchmarks/bench_screens.py [--nvitop COMMAND] [--write]

All programs run in one go, in pseudo-terminals of the same size, in turn: a bare Textual app, this
one, and nvitop where its command is given, on the stand-in for NVIDIA's library of
tests/nvml_stub. Work is in seconds of CPU time, which other programs on the machine do not
lengthen. Bytes are those that the program wrote to its terminal.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.metadata
import itertools
import os
import runpy
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import bench_keys
from tests.benchmarks.pseudo_terminal import OURS, SIZES, SLOW_LINE, STEADY, started

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
TRIES = 7
# Else every start would compile our modules again, and none of the libraries.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
WORDS, FRAME = b"What to run", b"Studies"
"""On the form's frame, and on the keys below it, which are there first."""
FIRST_LIMIT, WIRE_LIMIT, TABLE_LIMIT = 1.5, 25.0, 0.3
"""Goals: times the bare app; KiB/s live at 160x48; seconds of CPU time for 100,000 rows."""

BARE = """
from textual.app import App
from textual.widgets import Footer, Input, Label
class Bare(App):
    def compose(self):
        yield Label("What to run")
        yield from (Input(str(n), compact=True) for n in range(20))
        yield Footer()
Bare().run()
"""
STUB = Path(__file__).parents[1] / "nvml_stub" / "build.py"
TURNS = 6
F2, F3, F5 = b"\x1bOQ", b"\x1bOR", b"\x1b[15~"
KEYS = ((F2, WORDS), (F3, b"Step time"), (F5, "Library · ".encode()), (F3, b"Step time"))
"""Keys that paint a whole screen, and words of it."""
NVITOP = "nvitop"
BUSY = b"40%"
"""The load of the stand-in's GPU, in nvitop's first line of figures."""
LIVE = ("run", "tiny", "threads=1", "until=0.000001", "max_steps=100000", "max_seconds=600",
        "--passes", "timing")  # fmt: skip


def first_frames(home: str, nvitop: Sequence[str]) -> dict[str, list[float]]:
    """CPU seconds until the words are on the terminal, of programs in turn."""
    found: dict[str, list[float]] = {}
    programs: dict[str, Sequence[str] | None] = {
        "python -c pass": None,
        "bare Textual app, 20 fields": [sys.executable, "-P", "-c", BARE],
        "sysbench-tui, first frame": OURS,
        "sysbench-tui, the form": OURS,
    }
    words = dict.fromkeys(programs, WORDS) | {"sysbench-tui, first frame": FRAME, NVITOP: BUSY}
    if nvitop:
        programs[NVITOP] = nvitop
    for _ in range(TRIES):
        for name, command in programs.items():
            if command is None:  # the start of the interpreter alone
                pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-P", "-c", "pass"])
                _, _, used = os.wait4(pid, 0)
                seconds = used.ru_utime + used.ru_stime
            else:
                terminal = started(command, home, 120, 40)
                terminal.wait_for(words[name])
                seconds = terminal.end()
            found.setdefault(name, []).append(seconds)
    return found


@contextmanager
def live_run(home: str) -> Iterator[None]:
    """A run of tiny that measures until it is ended."""
    environment = {**os.environ, "SYSBENCH_HOME": home, "OMP_NUM_THREADS": "1"}
    quiet = subprocess.DEVNULL
    run = subprocess.Popen([*OURS, *LIVE], env=environment, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        run.send_signal(signal.SIGINT)
        run.wait()


def wire(nvitop: Sequence[str], seconds: float = 20.0) -> dict[str, float]:
    """Bytes a second that are written, by situation."""
    found = {}
    for columns, lines in SIZES:
        size = f"{columns}x{lines}"
        with tempfile.TemporaryDirectory() as home:
            steady = [sys.executable, "-P", "-c", STEADY]
            for name, command in (("", OURS), (" on a steady machine", steady)):
                form = started(command, home, columns, lines)
                form.wait_for(WORDS)
                form.read_for(8)  # until the bars beside the load are all of it
                found[f"form, nothing typed{name}, {size}"] = form.read_for(seconds) / seconds
                form.end()
            with live_run(home):
                wait_until(lambda: any(Path(home, "runs").glob("*/events.jsonl")), 60)
                time.sleep(12)
                live = started(OURS, home, columns, lines)
                live.wait_for(b"Step time")
                live.read_for(4)
                found[f"live, timing, {size}"] = live.read_for(seconds) / seconds
                live.end()
            if nvitop:
                other = started(nvitop, "", columns, lines)
                other.wait_for(BUSY)
                other.read_for(4)
                found[f"nvitop, nothing typed, {size}"] = other.read_for(seconds) / seconds
                other.end()
    return found


def answers() -> dict[str, list[float]]:
    """Seconds until the answer to a key is on the terminal while a run is measured, by line."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as home, live_run(home):
        wait_until(lambda: any(Path(home, "runs").glob("*/events.jsonl")), 60)
        time.sleep(12)
        for (columns, lines), rate in itertools.product(SIZES, (0, SLOW_LINE)):
            live = started(OURS, home, columns, lines)
            live.rate = rate
            live.wait_for(b"Step time")
            for key, words in KEYS:  # what a screen needs once is loaded
                live.read_for(2)
                live.answered(key, words)
            limit = f"{rate // 2**10} KiB/s" if rate else "none"
            taken = found[f"{columns}x{lines} | {limit}"] = []
            for _ in range(TURNS):
                for key, words in KEYS:
                    live.read_for(1)
                    taken.append(live.answered(key, words))
            live.end()
    return found


@contextmanager
def on_the_stub(command: str) -> Iterator[list[str]]:
    """The command of nvitop, with a stand-in for NVIDIA's library that has one GPU; [] for none."""
    if not command:
        yield []
        return
    with tempfile.TemporaryDirectory() as folder:
        runpy.run_path(str(STUB))["build"](Path(folder))
        yield ["env", f"LD_LIBRARY_PATH={folder}", *shlex.split(command)]


def about(nvitop: Sequence[str]) -> str:
    """What is said of nvitop below the tables."""
    if not nvitop:
        return "nvitop was not given: it is not among the figures."
    done = subprocess.run([*nvitop, "--version"], capture_output=True, text=True, check=True)
    return (
        f"{done.stdout.strip()}, on curses and without Textual, watches the stand-in for NVIDIA's\n"
        "library in `tests/nvml_stub`: one GPU whose figures do not change, no process on it,\n"
        "answers without a driver's delay. The host's figures and graphs move. Its first frame is\n"
        "the one that has the GPU's load."
    )


def wait_until(true: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: It did not come true.
    """
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.1)


def long_table() -> dict[str, float]:
    """CPU milliseconds of `bench_long_table`."""
    sys.path.insert(0, str(Path(__file__).parent))
    bench = importlib.import_module("bench_long_table")

    async def figures() -> dict[str, float]:
        async with bench.Tables().run_test(size=(160, 48)) as pilot:
            measured: dict[str, float] = await bench.measure(pilot)
        return measured

    return asyncio.run(figures())


def page(nvitop: Sequence[str]) -> Iterator[str]:
    """The lines of the page, measured now."""
    names = ("textual", "rich", "torch")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    yield from (
        "# Performance of the screens",
        "",
        "How fast do the screens start, and how much do they send? Measured in one run by",
        "",
        "```sh",
        "python -P tests/benchmarks/bench_screens.py --nvitop COMMAND --write",
        "```",
        "",
        f"{date.today():%Y-%m-%d}, Python {sys.version.split()[0]}, {versions}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before.",
    )
    with tempfile.TemporaryDirectory() as home:
        frames = first_frames(home, nvitop)
    middle = {name: statistics.median(values) for name, values in frames.items()}
    bare = middle["bare Textual app, 20 fields"]
    yield from ("", "## First frame", "")
    yield f"CPU seconds from the start to the words on the terminal, 120x40, {TRIES} tries."
    yield from ("", "| program | median | least | times the bare app |", "|---|---:|---:|---:|")
    for name, values in frames.items():
        yield f"| {name} | {middle[name]:.3f} | {min(values):.3f} | {middle[name] / bare:.2f} |"
    yield from (
        "",
        f"Goal: first frame and form in at most {FIRST_LIMIT:g} times that of the bare app.",
    )
    yield from ("", "## Bytes on the wire", "")
    yield "As written to the terminal in true colours, mean of 20 s; `ssh -C` makes it less."
    yield from ("", "| situation | KiB/s |", "|---|---:|")
    for name, value in wire(nvitop).items():
        yield f"| {name} | {value / 1024:.2f} |"
    yield from (
        "",
        f"Goal: live at 160x48 at most {WIRE_LIMIT:g}; nothing where nothing changes. The\n"
        "form writes only the strip's figures of this machine, when they change. Steady is a\n"
        "machine whose load reads 97 to 100 %.",
    )
    yield from ("", "## Keys during a run", "")
    yield (
        "Milliseconds from a key that paints a whole screen to words of it, during a run: "
        f"{TURNS * len(KEYS)} keys."
    )
    yield from (
        "",
        "| size | limit of the line | median | p95 | most |",
        "|---|---|---:|---:|---:|",
    )
    for name, taken in answers().items():
        p95 = statistics.quantiles(taken, n=20)[-1]
        figures = (statistics.median(taken), p95, max(taken))
        yield f"| {name} | {' | '.join(f'{1e3 * figure:.0f}' for figure in figures)} |"
    yield from ("", "Goal: 250 at 160x48 without a limit.")
    yield from ("", "## Every key", "")
    yield from bench_keys.lines_of()
    yield from (
        "",
        "## A table of 100,000 rows",
        "",
        "CPU milliseconds until it is painted, 160x48.",
    )
    yield from ("", "| table | ms |", "|---|---:|")
    for name, value in long_table().items():
        yield f"| {name} | {value:.0f} |"
    yield from ("", f"Goal: 100,000 rows in less than {TABLE_LIMIT:g} s.")
    yield from ("", about(nvitop))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--nvitop", metavar="COMMAND", default="", help="measure nvitop as well")
    arguments = parser.parse_args()
    lines = []
    with on_the_stub(arguments.nvitop) as nvitop:
        for line in page(nvitop):
            print(line, flush=True)
            lines.append(line)
    if arguments.write:
        PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
