"""Translate box lines, blocks and braille to ASCII, one cell to one cell."""

from __future__ import annotations

import locale
import os
from collections.abc import Mapping

from rich.cells import cell_len

_SINGLES = {
    "-": "─━═▔▁▄−–—",
    ".": "┄▃░·•…",
    ":": "┊▒",
    "|": "│┃║▏▎▍▕┤├▌▐",
    "#": "▋▊▉█",
    "+": "┌┐└┘╭╮╰╯┬┴┼╔╗╚╝▆",
    "_": "▂",
    "<": "⏎◂◀←≤",
    "=": "▅≡",
    "*": "▇●■◆",
    "'": "▀°’",
    "%": "▓",
    "&": "▚",
    "X": "╳",
    "/": "╱",
    "o": "○◌◇",
    "v": "✓▼▽▾",
    "x": "✗×",
    "^": "▲△",
    ">": "▸▶→≥",
    "~": "±",
    "u": "µμ",
    "S": "Σ",
    "2": "²",
}
"""Characters by the one that replaces them."""


def _braille(dots: int) -> str:
    """Return an ASCII character for a braille cell, by the halves that have dots."""
    if not dots:
        return " "
    high, low = dots & 0b00011011, dots & 0b11100100
    return ":" if high and low else "'" if high else "."


_TABLE = str.maketrans(
    {char: plain for plain, chars in _SINGLES.items() for char in chars}
    | {chr(0x2800 + dots): _braille(dots) for dots in range(256)}
)


def ascii_only(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal shows plain ASCII only.

    ``SYSBENCH_ASCII`` overrides detection: ``1`` for ASCII, ``0`` for the full set.
    """
    forced = environment.get("SYSBENCH_ASCII", "")
    if forced:
        return forced != "0"
    encoding = locale.getpreferredencoding(False).lower().replace("-", "")
    return environment.get("TERM") == "linux" or encoding != "utf8"


def to_ascii(text: str) -> str:
    """Translate to ASCII; the width in cells stays the same."""
    if text.isascii():
        return text
    translated = text.translate(_TABLE)
    if translated.isascii():
        return translated
    return "".join(char if char.isascii() else "?" * cell_len(char) for char in translated)
