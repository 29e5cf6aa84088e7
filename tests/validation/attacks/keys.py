"""Attack on the workstation: what can be typed, clicked and pasted, in no order, at any size."""

from __future__ import annotations

import random
import shutil
from contextlib import chdir

from sysbench.core.runs.run_directory import list_runs
from sysbench.core.storage import home as data_folder
from tests.benchmarks.bench_keys import RUN, RUNS, WORDS
from tests.benchmarks.pseudo_terminal import OURS, Terminal, started
from tests.validation.attacks.common import Rows

SEEDS = range(6)
KEYS_A_SEED = 2000
SIZES = ((10, 4), (30, 8), (44, 14), (80, 24), (120, 36), (160, 48), (200, 50))
RESIZED = 0.03
"""Share of the keys with another size behind them."""
PAUSES = (0.0, 0.0, 0.01, 0.05, 0.2)
"""Seconds between two keys: as a paste brings them, and as a person types."""

LETTERS = [bytes([code]) for code in b"abcdefghijklmnoprstuvwxyzGLN0123456789?/+- "]
"""All but the one that leaves."""
CONTROLS = [bytes([code]) for code in b"\t\r\x7f\x0f\x10\x12\x13"]
"""Tab, Enter, backspace, ^o, ^p, ^r and ^s; not ^z, which stops the process."""
SEQUENCES = [
    b"\x1b" + end
    for end in (
        *(b"OP", b"OQ", b"OR", b"OS", b"[15~", b"[17~", b"[18~", b"[19~", b"[24~"),
        *(b"[A", b"[B", b"[C", b"[D", b"[Z", b"[H", b"[F", b"[5~", b"[6~", b"", b"\x1b"),
    )
]
POINTED = [b"\x1b[<0;20;10M\x1b[<0;20;10m", b"\x1b[<0;3;5M\x1b[<0;3;5m", b"\x1b[<64;20;10M"]
TEXTS = [
    b"[/red]",
    b"<script>",
    b"\xff\xc3",
    b"\x1b[200~run tiny batch=2\x1b[201~",
    "\N{RIGHT-TO-LEFT OVERRIDE}".encode(),
]
TYPED = [*LETTERS, *CONTROLS, *SEQUENCES * 2, *POINTED, *TEXTS]


def random_keys() -> Rows:
    """Keys, clicks and texts at random sizes; runs are started, stopped and deleted by them."""
    count = left = 0
    for seed in SEEDS:
        for name in RUNS:
            shutil.copytree(RUN, data_folder() / "runs" / name, dirs_exist_ok=True)
        with chdir(data_folder()):  # whatever they export is written there
            terminal = started(OURS, str(data_folder()), 100, 30)
        terminal.wait_for(WORDS)
        typed = _typed(terminal, random.Random(seed))
        count += typed
        assert b"Traceback" not in terminal.seen, (seed, bytes(terminal.seen[-3000:]))
        if typed < KEYS_A_SEED:
            assert terminal.exit_code() == 0, seed
            left += 1
        else:
            terminal.end()
        for run in list_runs():
            run.stop()
    return [
        (
            f"keys, clicks and texts in no order, at sizes from {_size(0)} to {_size(-1)}",
            "the workstation, until they choose Quit",
            "what they delete",
            f"{count:,} of them in {len(SEEDS)} workstations; {left} ended by Quit",
        )
    ]


def _size(place: int) -> str:
    columns, lines = SIZES[place]
    return f"{columns}x{lines}"


def _typed(terminal: Terminal, drawn: random.Random) -> int:
    """Type until there is enough of it, or the program has left; the number typed."""
    for place in range(KEYS_A_SEED):
        try:
            terminal.press(drawn.choice(TYPED))
            terminal.read(drawn.choice(PAUSES))
            if drawn.random() < RESIZED:
                terminal.resize(*drawn.choice(SIZES))
        except OSError:  # how Linux says that nobody is behind the terminal any more
            return place
    return KEYS_A_SEED
