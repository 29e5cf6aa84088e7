"""A terminal that is resized in quick succession shows the whole screen again."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest

from ..benchmarks.pseudo_terminal import STEADY, Terminal, started

RUN = Path(__file__).parents[1] / "fixtures" / "tiny-cpu"
RUNS = ("20261121-120000-tiny-cpu0", "20261121-120100-tiny-cpu0")
LARGE, SMALL = (160, 48), (80, 24)
KEYS = {
    "run": b"\x1bOQ",
    "result": b"\x1bOS",
    "library": b"\x1b[15~",
    "studies": b"\x1b[17~",
    "inspect": b"\x1b[18~",
    "help": b"\x1bOP",
}
"""The key that opens a screen."""
WORDS = {
    "run": ("╭─ What to run ─", "╭─ What will happen ─", "│ model ", "│ memory limit ", "Start ^r"),
    "result": ("[1 Summary]", "╭─ Figures ─", "│ parameters ", "╭─ Machine ─", "$ sysbench-tui"),
    "library": ("╭─ Library", *RUNS, "$ sysbench-tui list"),
    "studies": ("╭─ Studies ─", "│accumulation ", "│warmup ", "$ sysbench-tui study"),
    "inspect": ("a file or a folder of ranks", "$ sysbench-tui inspect"),
    "help": ("esc closes", "Redraw"),
}
"""Words on it, from the top to the bottom."""
STRIP, FOOTER = "CPU 2 cores", "F1 Help"
CTRL_L = b"\x0c"
WAIT_SECONDS = 60.0


class Repeating(pyte.Screen):
    """pyte's screen, which also repeats the last character."""

    _last = " "

    def draw(self, data: str) -> None:
        self._last = data[-1]
        super().draw(data)

    def repeat(self, times: int = 1) -> None:
        super().draw(self._last * times)


class Stream(pyte.ByteStream):
    csi = pyte.ByteStream.csi | {"b": "repeat"}
    events = pyte.ByteStream.events | {"repeat"}


class Emulated:
    """The workstation on two stored runs, with what its terminal shows."""

    def __init__(self, home: Path) -> None:
        for run in RUNS:
            shutil.copytree(RUN, home / "runs" / run)
        self.program: Terminal = started([sys.executable, "-P", "-c", STEADY], str(home), *LARGE)
        self.shown = Repeating(*LARGE)
        self._stream = Stream(self.shown)

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

    def wait_for_screen(self, name: str) -> None:
        """Read until a screen is shown with its strip and its footer."""
        for words in (STRIP, *WORDS[name], FOOTER):
            self.wait_for(words)

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size; as tmux does, it keeps only what has room."""
        self.program.resize(columns, lines)
        self.shown.resize(lines, columns)


@pytest.fixture
def emulated(sysbench_home: Path) -> Iterator[Emulated]:
    emulated = Emulated(sysbench_home)
    emulated.wait_for("F4 Result")
    yield emulated
    emulated.program.end()


@pytest.mark.parametrize("pause", [0.0, 0.1], ids=["at once", "apart"])
def test_two_resizes_in_quick_succession_leave_every_screen_whole(
    emulated: Emulated, pause: float
) -> None:
    for name, key in KEYS.items():
        emulated.program.press(key)
        emulated.wait_for_screen(name)
        emulated.resize(*SMALL)
        emulated.read(pause)
        emulated.resize(*LARGE)
        emulated.wait_for_screen(name)


def test_ctrl_l_repaints_every_screen(emulated: Emulated) -> None:
    for name, key in KEYS.items():
        emulated.program.press(key)
        emulated.wait_for_screen(name)
        emulated.shown.erase_in_display(2)  # another program wrote over it
        emulated.program.press(CTRL_L)
        emulated.wait_for_screen(name)
