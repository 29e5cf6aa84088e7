"""The looks of the workstation: swatches, and lines in ASCII."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from rich.segment import Segment
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter

from sysbench.core.colours import HUES, Look, look_of, place_look
from sysbench.tui.glyphs import to_ascii


class Swatch(NamedTuple):
    """The looks of a part of a chart; the glyph distinguishes it without colour.

    ``colour`` is a variable of the stylesheet, so that the theme decides it: `rich_colour` has
    its value for what is not `Content`.
    """

    glyph: str
    colour: str


def _swatch(look: Look) -> Swatch:
    return Swatch(look.glyph, f"$hue-{look.hue}")


def swatch_of(name: str) -> Swatch:
    """The look of a category, a phase or a row of a ledger: it goes by the name alone."""
    return _swatch(look_of(name))


def swatch(position: int) -> Swatch:
    """The look of one of several alike things at that position, such as a line of a figure."""
    return _swatch(place_look(position))


IDLE = swatch_of("idle")


def rich_colour(app: App[Any], colour: str) -> str:
    """The value of a swatch's colour in the present theme, as ``#rrggbb``.

    In an app that has no such variable it is the colour on a dark background.
    """
    name = colour.removeprefix("$")
    plain = HUES.get(name.removeprefix("hue-"))
    return app.theme_variables.get(name, plain.dark if plain else colour)


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
