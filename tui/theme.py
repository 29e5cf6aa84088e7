"""The looks of the workstation: theme, swatches, lines in ASCII, a stylesheet parsed once."""

from __future__ import annotations

import re
from typing import NamedTuple

from rich.segment import Segment
from textual.color import Color
from textual.css.stylesheet import Stylesheet
from textual.filter import LineFilter
from textual.theme import Theme

from .glyphs import to_ascii

DARK = Theme(
    name="sysbench",
    primary="#4fc1b0",
    secondary="#7f93a8",
    accent="#4fc1b0",
    foreground="#d3dae3",
    background="#0f1317",
    surface="#151a20",
    panel="#1c232b",
    success="#8fb573",
    warning="#d9a65a",
    error="#e0706d",
    variables={
        "border": "#4fc1b0",
        "border-blurred": "#33404c",
        "input-selection-background": "#4fc1b0 30%",
        "block-cursor-background": "#24544f",
        "block-cursor-foreground": "#f2f6f8",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": "#20303a",
        "footer-background": "#151a20",
        "footer-key-foreground": "#4fc1b0",
        "scrollbar": "#33404c",
        "scrollbar-hover": "#4a5a68",
        "scrollbar-background": "#12171c",
        "scrollbar-background-hover": "#12171c",
        "scrollbar-corner-color": "#12171c",
    },
)


class Swatch(NamedTuple):
    """The looks of a part of a stacked chart; the glyph distinguishes it without colour."""

    glyph: str
    colour: str


_COLOURS = (
    "#4fc1b0",
    "#6c9ef8",
    "#d9a65a",
    "#a78bda",
    "#8fb573",
    "#d77fa1",
    "#63b3d1",
    "#e08a6d",
    "#b5b35f",
    "#7f93a8",
)
_GLYPHS = "█▓▒"
IDLE = Swatch("░", "#5d6b78")


def swatch(position: int) -> Swatch:
    """The look of the part at that position; neighbours always differ in glyph and colour."""
    return Swatch(_GLYPHS[position % len(_GLYPHS)], _COLOURS[position % len(_COLOURS)])


class OnceParsed(Stylesheet):
    """Textual parses every source anew, several times, whenever a screen is first shown: in a
    fresh stylesheet without a cache, and after clearing the cache for variables that did not
    change. This one parses a source when it is added, and again when the theme changes."""

    def __init__(self, *, variables: dict[str, str]) -> None:
        super().__init__(variables=variables)
        self._known = variables

    def set_variables(self, variables: dict[str, str]) -> None:
        if variables != self._known:
            self._known = variables
            super().set_variables(variables)

    def reparse(self) -> None:
        # Rules replace the old ones only when all of them could be parsed.
        self.parse()


class PrintableFilter(LineFilter):
    """Drops from every line what a terminal would obey: a run's id, a path or another program's
    message can hold an escape sequence. These characters have no width: nothing moves."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [
            Segment(text if control else _OBEYED.sub("", text), style, control)
            for text, style, control in segments
        ]


_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff]"
)
"""Control characters of both sets, separators of lines, marks of the text's direction, and halves
of pairs, which no terminal gets at all."""


class AsciiFilter(LineFilter):
    """Translates every line on its way to the terminal."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]
