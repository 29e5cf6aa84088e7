"""The looks of the workstation: swatches, and lines in ASCII."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from rich.segment import Segment
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from sysbench.core.colours import HUES, Look, look_of, place_look
from sysbench.core.storage import UNREADABLE_JSON, home, make_folder, write_atomically
from sysbench.tui.glyphs import to_ascii

Depth = Literal["full", "256", "16"]
"""The number of colours: 2**24, 256, or 16."""

DARK, LIGHT = "sysbench", "sysbench-light"


class Surfaces(NamedTuple):
    """What words stand on and edges are made of, each as ``#rrggbb``.

    Attributes:
        background: Under everything.
        surface: Under dialogs and every second row.
        panel: Under the strip, the keys, the buttons.
        field: Under what can be typed or chosen.
        edge: The frame of a panel without the focus.
        cursor: Under the row that the cursor stands on; ``blurred`` where the focus is elsewhere.
        groove: Under a scrollbar.
    """

    background: str
    surface: str
    panel: str
    field: str
    edge: str
    cursor: str
    blurred: str
    groove: str


class Inks(NamedTuple):
    """What is written, each as ``#rrggbb``."""

    foreground: str
    strong: str
    accent: str
    secondary: str
    success: str
    warning: str
    error: str


_SURFACES: dict[tuple[str, Depth], Surfaces] = {
    (DARK, "full"): Surfaces(
        "#0f1317", "#151a20", "#1c232b", "#222b35", "#33404c", "#24544f", "#20303a", "#12171c"
    ),
    (LIGHT, "full"): Surfaces(
        "#fbfcfd", "#f1f4f7", "#e4e9ee", "#dde4ea", "#b4bfc9", "#b9e2dc", "#d3dee6", "#f1f4f7"
    ),
    (DARK, "256"): Surfaces(
        "#121212", "#1c1c1c", "#262626", "#3a3a3a", "#585858", "#005f5f", "#444444", "#1c1c1c"
    ),
    (LIGHT, "256"): Surfaces(
        "#ffffff", "#eeeeee", "#e4e4e4", "#d0d0d0", "#a8a8a8", "#afd7d7", "#c6c6c6", "#eeeeee"
    ),
    (DARK, "16"): Surfaces(
        "#000000", "#000000", "#000000", "#555555", "#aaaaaa", "#0000aa", "#555555", "#000000"
    ),
    (LIGHT, "16"): Surfaces(
        *("#ffffff", "#ffffff", "#ffffff", "#aaaaaa", "#555555", "#55ffff", "#aaaaaa", "#ffffff")
    ),
}

_INKS: dict[tuple[str, Depth], Inks] = {
    (DARK, "full"): Inks(
        "#d3dae3", "#f2f6f8", "#4fc1b0", "#7f93a8", "#8fb573", "#d9a65a", "#e0706d"
    ),
    (LIGHT, "full"): Inks(
        "#1c232b", "#0b0f13", "#0d6b5e", "#4d5b68", "#3d6b1f", "#855400", "#b3261e"
    ),
    (DARK, "256"): Inks(
        "#dadada", "#ffffff", "#5fd7af", "#87afd7", "#87d75f", "#ffaf5f", "#ff8787"
    ),
    (LIGHT, "256"): Inks(
        "#121212", "#000000", "#005f5f", "#444444", "#005f00", "#875f00", "#af0000"
    ),
    (DARK, "16"): Inks("#ffffff", "#ffffff", "#55ffff", "#aaaaaa", "#55ff55", "#ffff55", "#ff5555"),
    (LIGHT, "16"): Inks(
        "#000000", "#000000", "#0000aa", "#555555", "#000000", "#aa5500", "#aa0000"
    ),
}

_HUES_BY_HAND: dict[tuple[str, Depth], dict[str, str]] = {
    (DARK, "256"): {
        "sky": "#5fafff",
        "orange": "#ffaf00",
        "green": "#00af87",
        "purple": "#d787af",
        "yellow": "#ffff5f",
        "vermilion": "#d75f00",
        "blue": "#005fd7",
        "grey": "#8a8a8a",
    },
    (LIGHT, "256"): {
        "sky": "#0087d7",
        "orange": "#875f00",
        "green": "#00875f",
        "purple": "#d700af",
        "yellow": "#878700",
        "vermilion": "#870000",
        "blue": "#00005f",
        "grey": "#6c6c6c",
    },
    (DARK, "16"): {
        "sky": "#55ffff",
        "orange": "#aa5500",
        "green": "#00aa00",
        "purple": "#ff55ff",
        "yellow": "#ffff55",
        "vermilion": "#ff5555",
        "blue": "#5555ff",
        "grey": "#aaaaaa",
    },
    (LIGHT, "16"): {
        "sky": "#5555ff",
        "orange": "#aa5500",
        "green": "#00aa00",
        "purple": "#aa00aa",
        "yellow": "#000000",
        "vermilion": "#aa0000",
        "blue": "#0000aa",
        "grey": "#555555",
    },
}

_DEPTHS: dict[str | None, Depth] = {"256": "256", "standard": "16"}


def depth_of(color_system: str | None) -> Depth:
    """The number of colours by rich's name of a colour system."""
    return _DEPTHS.get(color_system, "full")


def hue_variables(name: str, depth: Depth) -> dict[str, str]:
    """The hues of `core.colours` as variables of a stylesheet, ``hue-sky`` and so on."""
    by_hand: Mapping[str, str] = _HUES_BY_HAND.get((name, depth), {})
    plain = {hue: both.dark if name == DARK else both.light for hue, both in HUES.items()}
    return {f"hue-{hue}": by_hand.get(hue, colour) for hue, colour in plain.items()}


def theme_of(name: str, depth: Depth) -> Theme:
    """The dark or the light theme in the colours of a terminal."""
    on, ink = _SURFACES[name, depth], _INKS[name, depth]
    return Theme(
        name=name,
        dark=name == DARK,
        primary=ink.accent,
        secondary=ink.secondary,
        accent=ink.accent,
        foreground=ink.foreground,
        background=on.background,
        surface=on.surface,
        panel=on.panel,
        success=ink.success,
        warning=ink.warning,
        error=ink.error,
        variables={
            "field": on.field,
            "field-focus": f"{ink.accent} 25%" if depth == "full" else on.cursor,
            "border": ink.accent,
            "border-blurred": on.edge,
            "input-selection-background": f"{ink.accent} 30%",
            "block-cursor-background": on.cursor,
            "block-cursor-foreground": ink.strong,
            "block-cursor-text-style": "none",
            "block-cursor-blurred-background": on.blurred,
            "footer-background": on.surface,
            "footer-key-foreground": ink.accent,
            "scrollbar": on.edge,
            "scrollbar-hover": ink.secondary,
            "scrollbar-background": on.groove,
            "scrollbar-background-hover": on.groove,
            "scrollbar-corner-color": on.groove,
            **hue_variables(name, depth),
        },
    )


FILE = "screens.json"


class Choices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a user chose about the screens; ``theme`` is empty until one is chosen."""

    theme: str = ""


def kept_choices() -> Choices:
    """What was kept last; the defaults where nothing was, or where it cannot be read."""
    try:
        return msgspec.json.decode((home() / FILE).read_bytes(), type=Choices)
    except (OSError, *UNREADABLE_JSON):
        # A theme is not worth a message at the start: the next choice writes the file anew.
        return Choices()


def keep(choices: Choices) -> None:
    """Keep these for the next start.

    Raises:
        OSError: Nothing was written.
    """
    make_folder(home())
    write_atomically(home() / FILE, msgspec.json.encode(choices))


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
