"""A terminal shows the whole screen again: after resizes in quick succession, and on request."""

from __future__ import annotations

from tests.tui.emulated import LARGE, RUNS, SMALL, Emulated

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
    "run": ("╭─ What to run ─", "╭─ Prediction ─", "│ model ", "│ memory limit ", "Start ^r"),
    "result": ("[1 Summary]", "╭─ Passes ─", "╭─ Trust ─", "tokens/s", "$ sysbench-tui"),
    "library": ("╭─ Library", "cpu0", RUNS[-1], "$ sysbench-tui list"),
    "studies": ("╭─ Studies ─", "│accumulation ", "│warmup ", "$ sysbench-tui study"),
    "inspect": ("a file or a folder of ranks", "$ sysbench-tui inspect"),
    "help": ("esc closes", "Redraw"),
}
"""Words on it, from the top to the bottom."""
STRIP, FOOTER = "CPU 2 cores", "F1 Help"
CTRL_L = b"\x0c"


def wait_for_screen(emulated: Emulated, name: str) -> None:
    """Read until a screen is shown with its strip and its footer."""
    for words in (STRIP, *WORDS[name], FOOTER):
        emulated.wait_for(words)


def test_every_screen_is_whole_after_two_quick_resizes_and_after_ctrl_l(
    emulated: Emulated,
) -> None:
    for name, key in KEYS.items():
        emulated.program.press(key)
        wait_for_screen(emulated, name)
        for pause in (0.0, 0.1):
            emulated.resize(*SMALL)
            emulated.read(pause)
            emulated.resize(*LARGE)
            wait_for_screen(emulated, name)
        emulated.shown.erase_in_display(2)  # another program wrote over it
        emulated.program.press(CTRL_L)
        wait_for_screen(emulated, name)
