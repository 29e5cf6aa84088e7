"""Themes, swatches of chart parts, and filters of painted lines."""

from __future__ import annotations

import re
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
"""Number of colours: 2**24, 256, or 16."""

DARK, LIGHT = "sysbench", "sysbench-light"


class Surfaces(NamedTuple):
    """Background and edge colours, each as ``#rrggbb``.

    Attributes:
        surface: Dialogs and every second row.
        panel: Strip, keys and buttons.
        field: Inputs.
        edge: Frame of a panel without the focus.
        cursor: Row under the cursor; ``blurred`` without the focus.
        groove: Scrollbar track.
    """

    background: str
    surface: str
    panel: str
    field: str
    edge: str
    cursor: str
    blurred: str
    groove: str


class Foregrounds(NamedTuple):
    """Text colours, each as ``#rrggbb``."""

    foreground: str
    strong: str
    accent: str
    secondary: str
    success: str
    warning: str
    error: str


# Rows of colours: the fields of `Surfaces`, of `Foregrounds`, and the hues of `core.colours`.
_SURFACES: dict[tuple[str, Depth], str] = {
    (DARK, "full"): "#0f1317 #151a20 #1c232b #222b35 #33404c #24544f #20303a #12171c",
    (LIGHT, "full"): "#fbfcfd #f1f4f7 #e4e9ee #dde4ea #b4bfc9 #b9e2dc #d3dee6 #f1f4f7",
    (DARK, "256"): "#121212 #1c1c1c #262626 #3a3a3a #585858 #005f5f #444444 #1c1c1c",
    (LIGHT, "256"): "#ffffff #eeeeee #e4e4e4 #d0d0d0 #a8a8a8 #afd7d7 #c6c6c6 #eeeeee",
    (DARK, "16"): "#000000 #000000 #000000 #555555 #aaaaaa #0000aa #555555 #000000",
    (LIGHT, "16"): "#ffffff #ffffff #ffffff #aaaaaa #555555 #55ffff #aaaaaa #ffffff",
}
_FOREGROUNDS: dict[tuple[str, Depth], str] = {
    (DARK, "full"): "#d3dae3 #f2f6f8 #4fc1b0 #7f93a8 #8fb573 #d9a65a #e0706d",
    (LIGHT, "full"): "#1c232b #0b0f13 #0d6b5e #4d5b68 #3d6b1f #855400 #b3261e",
    (DARK, "256"): "#dadada #ffffff #5fd7af #87afd7 #87d75f #ffaf5f #ff8787",
    (LIGHT, "256"): "#121212 #000000 #005f5f #444444 #005f00 #875f00 #af0000",
    (DARK, "16"): "#ffffff #ffffff #55ffff #aaaaaa #55ff55 #ffff55 #ff5555",
    (LIGHT, "16"): "#000000 #000000 #0000aa #555555 #000000 #aa5500 #aa0000",
}
_HUES_BY_HAND: dict[tuple[str, Depth], str] = {
    (DARK, "256"): "#5fafff #ffaf00 #00af87 #d787af #ffff5f #d75f00 #005fd7 #8a8a8a",
    (LIGHT, "256"): "#0087d7 #875f00 #00875f #d700af #878700 #870000 #00005f #6c6c6c",
    (DARK, "16"): "#55ffff #aa5500 #00aa00 #ff55ff #ffff55 #ff5555 #5555ff #aaaaaa",
    (LIGHT, "16"): "#5555ff #aa5500 #00aa00 #aa00aa #000000 #aa0000 #0000aa #555555",
}

_DEPTHS: dict[str | None, Depth] = {"256": "256", "standard": "16"}


def depth_of(color_system: str | None) -> Depth:
    return _DEPTHS.get(color_system, "full")


def hue_variables(name: str, depth: Depth) -> dict[str, str]:
    """Return the hues of `core.colours` as stylesheet variables, such as ``hue-sky``."""
    colours = [both.dark if name == DARK else both.light for both in HUES.values()]
    if (name, depth) in _HUES_BY_HAND:
        colours = _HUES_BY_HAND[name, depth].split()
    return {f"hue-{hue}": colour for hue, colour in zip(HUES, colours, strict=True)}


def theme_of(name: str, depth: Depth) -> Theme:
    surfaces = Surfaces(*_SURFACES[name, depth].split())
    text = Foregrounds(*_FOREGROUNDS[name, depth].split())
    return Theme(
        name=name,
        dark=name == DARK,
        primary=text.accent,
        secondary=text.secondary,
        accent=text.accent,
        foreground=text.foreground,
        background=surfaces.background,
        surface=surfaces.surface,
        panel=surfaces.panel,
        success=text.success,
        warning=text.warning,
        error=text.error,
        variables={
            "field": surfaces.field,
            "field-focus": f"{text.accent} 25%" if depth == "full" else surfaces.cursor,
            "border": text.accent,
            "border-blurred": surfaces.edge,
            "input-selection-background": f"{text.accent} 30%",
            "block-cursor-background": surfaces.cursor,
            "block-cursor-foreground": text.strong,
            "block-cursor-text-style": "none",
            "block-cursor-blurred-background": surfaces.blurred,
            "footer-background": surfaces.surface,
            "footer-key-foreground": text.accent,
            "scrollbar": surfaces.edge,
            "scrollbar-hover": text.secondary,
            "scrollbar-background": surfaces.groove,
            "scrollbar-background-hover": surfaces.groove,
            "scrollbar-corner-color": surfaces.groove,
            **hue_variables(name, depth),
        },
    )


FILE = "screens.json"


class Choices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user's choices; ``theme`` is empty by default."""

    theme: str = ""


def read_choices() -> Choices:
    try:
        return msgspec.json.decode((home() / FILE).read_bytes(), type=Choices)
    except (OSError, *UNREADABLE_JSON):
        # A damaged file needs no message: the next choice overwrites it.
        return Choices()


def save(choices: Choices) -> None:
    make_folder(home())
    write_atomically(home() / FILE, msgspec.json.encode(choices))


class Swatch(NamedTuple):
    glyph: str
    colour: str


def _swatch(look: Look) -> Swatch:
    return Swatch(look.glyph, f"$hue-{look.hue}")


def swatch_of(name: str) -> Swatch:
    """Return the swatch of a category, phase or ledger row by name."""
    return _swatch(look_of(name))


def swatch(position: int) -> Swatch:
    """Return the swatch of the N-th of similar items, such as lines of a figure."""
    return _swatch(place_look(position))


IDLE = swatch_of("idle")

SEVERITY_COLOURS = {
    "problem": "$error",
    "warning": "$warning",
    "note": "$secondary",
    "good": "$success",
}
"""Colours of a finding."""


def rich_colour(app: App[Any], colour: str) -> str:
    """Return a swatch's colour in the current theme as ``#rrggbb``.

    An app without the variable gets the colour for a dark background.
    """
    name = colour.removeprefix("$")
    plain = HUES.get(name.removeprefix("hue-"))
    return app.theme_variables.get(name, plain.dark if plain else colour)


class PrintableFilter(LineFilter):
    """Drops control characters, which a run's id, a path or a message may contain.

    They have no width, so the layout does not change.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [
            Segment(text if control else _CONTROLS.sub("", text), style, control)
            for text, style, control in segments
        ]


_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff]"
)
"""C0 and C1 controls, line separators, direction marks, and surrogates."""


class AsciiFilter(LineFilter):
    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]
