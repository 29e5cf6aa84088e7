"""Colours and textures of categories, the same in every view.

A category's look depends on its name alone, so two runs side by side, a filtered table, the screens
and the HTML page agree.

The hues are the seven colours of Okabe and Ito (*Color Universal Design*, 2008), which people with
protanopia, deuteranopia or tritanopia can distinguish. They are too pale for a white page. Their
counterparts there have the same hue angles, a contrast of at least 3:1 with the page, and lightness
values that keep them as far apart for the same readers. A texture goes with each hue, since there
are more categories than hues: within a family of names, no two share both.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple


class Hue(NamedTuple):
    """A colour on a dark and on a light background, each as ``#rrggbb``."""

    dark: str
    light: str


HUES: dict[str, Hue] = {
    "sky": Hue("#56b4e9", "#058fdf"),
    "orange": Hue("#e69f00", "#886300"),
    "green": Hue("#009e73", "#03856e"),
    "purple": Hue("#cc79a7", "#dd52ac"),
    "yellow": Hue("#f0e442", "#938f1d"),
    "vermilion": Hue("#d55e00", "#7d3414"),
    "blue": Hue("#0072b2", "#114683"),
    "grey": Hue("#8a97a4", "#66727e"),
}
"""By name; grey is for idle time, the rest and memory without an owner."""

TEXTURES = "█▓▒▚▌╳╱≡"
"""Glyphs of one cell, from full to sparse; each is another character in ASCII too."""


class Look(NamedTuple):
    """A category's hue and texture.

    Attributes:
        hue: A name of `HUES`.
        glyph: One of `TEXTURES`, ``░``, or a blank.
        faint: Whether a drawing without textures takes half the colour.
    """

    hue: str
    glyph: str
    faint: bool = False


KERNELS = {
    "gemm": Look("sky", "█"),
    "attention": Look("orange", "▓"),
    "softmax": Look("purple", "▒"),
    "elementwise": Look("green", "▚"),
    "norm": Look("yellow", "▌"),
    "optimizer": Look("vermilion", "╱"),
    "reduce": Look("blue", "╳"),
    "copy": Look("grey", "≡"),
    "communication": Look("vermilion", "█", faint=True),
    "embedding": Look("purple", "█", faint=True),
    "convolution": Look("blue", "▓", faint=True),
    "random": Look("yellow", "▒", faint=True),
    "fused kernels": Look("green", "▓", faint=True),
    "other": Look("grey", "▒", faint=True),
}

REST = {"idle": Look("grey", "░"), "unattributed": Look("grey", " ")}
"""Time in which no kernel ran, or none that has a name."""

MEMORY = {
    "parameters": Look("sky", "█"),
    "activations": Look("orange", "▓"),
    "gradients": Look("purple", "▒"),
    "optimizer state": Look("green", "▚"),
    "temporaries": Look("vermilion", "╱"),
    "autocast weight copies": Look("yellow", "▌"),
    "logits and loss": Look("blue", "╳"),
    "outputs": Look("blue", "▒", faint=True),
    "kv cache": Look("yellow", "▚"),
    "inputs": Look("purple", "█", faint=True),
    "buffers": Look("green", "▓", faint=True),
    "other weights": Look("sky", "▒", faint=True),
    "library workspace": Look("yellow", "▒", faint=True),
    "workspaces": Look("yellow", "█", faint=True),
    "gathered parameters": Look("sky", "╱", faint=True),
    "communication buffers": Look("yellow", "╱"),
    "received tokens": Look("vermilion", "▚", faint=True),
    "held by CUDA graphs": Look("sky", "▌", faint=True),
    "kept between steps": Look("orange", "█", faint=True),
    "there before the recording": Look("grey", "▓"),
    "not attributed": Look("grey", "▒", faint=True),
    "rounding": Look("grey", "░"),
    "blocks larger than asked for": Look("grey", "▌"),
}
"""Rows of the memory ledger; of a name such as ``temporaries (forward)`` the first part counts."""

TEMPORARIES = {
    "temporaries (forward)": Look("vermilion", "█"),
    "temporaries (backward)": Look("vermilion", "▓"),
    "temporaries (optimizer)": Look("vermilion", "▒", faint=True),
    "temporaries (loss)": Look("vermilion", "▌", faint=True),
    "temporaries (build)": Look("vermilion", "╱"),
    "temporaries (clip)": Look("vermilion", "≡"),
    "temporaries (zero-grad)": Look("vermilion", "╳"),
}
"""Parts of one row of the ledger, which a timeline stacks on each other."""

PHASES = {
    "forward": Look("sky", "█"),
    "backward": Look("orange", "▓"),
    "optimizer": Look("vermilion", "╱"),
    "loss": Look("purple", "▒"),
    "clip": Look("yellow", "▌"),
    "zero-grad": Look("blue", "╳"),
    "input": Look("green", "▚"),
    "evaluation": Look("purple", "╳"),
}
"""Phases of a step; ``optimizer`` looks as the category of its kernels does."""

LANES = {
    "host had not launched yet": Look("blue", "░"),
    "waiting on a sync": Look("purple", "░"),
    "host inside the launch call": Look("yellow", "╱"),
    "between launched kernels": Look("grey", "▚"),
    "launch of the next kernel not recorded": Look("grey", "╳"),
    "host outside operators (Python, dispatch)": Look("blue", "▒"),
    "step": Look("green", "▓", faint=True),
    "range": Look("sky", "▒"),
    "CUDA call": Look("sky", "▌"),
    "synchronizing call": Look("purple", "▌"),
}
"""Lanes of a timeline that are not of kernels: causes of idle time, steps, ranges, calls."""

STAGES = {
    "dynamo": Look("sky", "█"),
    "aot": Look("orange", "▓"),
    "inductor": Look("purple", "▒"),
    "backend": Look("green", "▚"),
}
"""Stages of `torch.compile`."""

FAMILIES: tuple[dict[str, Look], ...] = (
    KERNELS | REST,
    MEMORY,
    TEMPORARIES,
    PHASES,
    STAGES,
    LANES,
)
"""Names that are drawn together."""

LOOKS: dict[str, Look] = STAGES | LANES | PHASES | MEMORY | TEMPORARIES | REST | KERNELS


def known_look(name: str) -> Look | None:
    """Return the look of a listed name; None for others."""
    names = (name, name.split(" (")[0], name.split(" to ")[0])
    return next((LOOKS[known] for known in names if known in LOOKS), None)


def look_of(name: str) -> Look:
    """Return the look of a name, the same at every call in every process.

    A name that is not listed, such as a category of an imported file, gets one from its letters.
    """
    if (known := known_look(name)) is not None:
        return known
    number = zlib.crc32(name.encode())
    coloured = [hue for hue in HUES if hue != "grey"]
    return Look(coloured[number % len(coloured)], TEXTURES[number // 16 % len(TEXTURES)])


def place_look(place: int) -> Look:
    """Return the look of one of several similar things by its position, such as a line."""
    return Look([*HUES][place % len(HUES)], TEXTURES[place % len(TEXTURES)])
