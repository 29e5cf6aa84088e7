"""The workstation in a pseudo-terminal, with what an emulator shows of it."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyte

from tests.benchmarks.pseudo_terminal import STEADY, Terminal, started

RUN = Path(__file__).parents[1] / "fixtures" / "tiny-cpu"
RUNS = ("20261121-120000-tiny-cpu0", "20261121-120100-tiny-cpu0")
LARGE, SMALL = (160, 48), (80, 24)
WAIT_SECONDS = 60.0


class Emulated:
    """The workstation on two stored runs, with what its terminal shows."""

    def __init__(self, home: Path) -> None:
        for run in RUNS:
            shutil.copytree(RUN, home / "runs" / run)
        self.program: Terminal = started([sys.executable, "-P", "-c", STEADY], str(home), *LARGE)
        self.shown = pyte.Screen(*LARGE)
        self._stream = pyte.ByteStream(self.shown)

    def read(self, seconds: float) -> None:
        """Show what comes in that time."""
        came = self.program.read_for(seconds)
        self._stream.feed(bytes(self.program.seen[len(self.program.seen) - came :]))

    def wait_until(self, true: Callable[[], bool], about: str) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not true():
            assert time.monotonic() < end, "\n".join([about, *self.shown.display])
            self.read(0.1)

    def wait_for(self, words: str) -> None:
        self.wait_until(lambda: words in "\n".join(self.shown.display), words)

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size; as tmux does, it keeps only what has room."""
        self.program.resize(columns, lines)
        self.shown.resize(lines, columns)
