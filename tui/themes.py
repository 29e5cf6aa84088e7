"""The two themes, dark and light, in the colours that a terminal has.

Where a terminal has 256 or 16 colours, each of a theme's is replaced by the nearest it has: dark
surfaces that differ by a shade then become one black, and two hues the same yellow. For these
terminals every colour is chosen by hand, so that fields, the cursor and
the hues differ from their ground. Mixtures that a stylesheet makes are still replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from textual.theme import Theme

from sysbench.core.colours import HUES

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
