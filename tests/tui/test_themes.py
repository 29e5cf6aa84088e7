"""Both themes in every number of colours: readable, and fields that look like fields."""

from __future__ import annotations

import shutil
from itertools import combinations, product
from pathlib import Path

import pytest
from rich._palettes import EIGHT_BIT_PALETTE, STANDARD_PALETTE
from rich.color import Color, ColorSystem

from sysbench.core.colours import TEXTURES
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.cells import category_words
from sysbench.core.trace.classify import CATEGORIES
from sysbench.tui.app import SysbenchApp
from sysbench.tui.glyphs import to_ascii
from sysbench.tui.screens.kernels_tab import KernelsTab
from sysbench.tui.theme import (
    DARK,
    FILE,
    LIGHT,
    Depth,
    depth_of,
    hue_variables,
    rich_colour,
    swatch_of,
    theme_of,
)
from sysbench.tui.widgets.stack_bar import StackBar
from tests.colour_science import VISIONS, contrast, distance
from tests.tui.conftest import CannedSampler, open_tab

RESULT_FIRST = True
FROZEN = Path(__file__).parents[1] / "fixtures" / "tiny-cpu"
DEPTHS: tuple[Depth, ...] = ("full", "256", "16")
SYSTEMS = {"256": ColorSystem.EIGHT_BIT, "16": ColorSystem.STANDARD}
APART = {"full": 0.07, "256": 0.05, "16": 0.0}
"""Minimum distance of two hues. Sixteen colours do not contain seven distinguishable hues;
there the textures differ."""

every_theme = pytest.mark.parametrize(("name", "depth"), list(product((DARK, LIGHT), DEPTHS)))


def colours(name: str, depth: Depth) -> dict[str, str]:
    """All plain colours of a theme by name."""
    theme = theme_of(name, depth)
    named = {
        "foreground": theme.foreground,
        "background": theme.background,
        "surface": theme.surface,
        "panel": theme.panel,
        "accent": theme.accent,
        "success": theme.success,
        "warning": theme.warning,
        "error": theme.error,
        "secondary": theme.secondary,
        **theme.variables,
    }
    return {key: shown(value, depth) for key, value in named.items() if value and len(value) == 7}


def shown(colour: str, depth: Depth) -> str:
    """The colour that a terminal of that depth shows."""
    if depth == "full":
        return colour
    chosen = Color.parse(colour).downgrade(SYSTEMS[depth])
    # The sixteen are as the user's terminal has them; here as a VGA has them.
    palette = STANDARD_PALETTE if depth == "16" else EIGHT_BIT_PALETTE
    assert chosen.number is not None
    return palette[chosen.number].hex


@every_theme
def test_words_can_be_read_on_every_surface(name: str, depth: Depth) -> None:
    have = colours(name, depth)
    for on in ("background", "surface", "panel", "field"):
        assert contrast(have["foreground"], have[on]) >= 7.0, on  # WCAG 2.2, 1.4.6
    for ink in ("accent", "success", "warning", "error", "secondary"):
        assert contrast(have[ink], have["background"]) >= 4.5, ink  # 1.4.3
    for on in ("block-cursor-background", "block-cursor-blurred-background"):
        assert contrast(have["block-cursor-foreground"], have[on]) >= 4.5, on


@every_theme
def test_hues_stand_out_and_stay_apart(name: str, depth: Depth) -> None:
    have = colours(name, depth)
    hues = {hue: shown(colour, depth) for hue, colour in hue_variables(name, depth).items()}
    for hue, colour in hues.items():
        assert contrast(colour, have["background"]) >= 3.0, hue
    plain = [colour for hue, colour in hues.items() if hue != "hue-grey"]
    assert len(set(plain)) == 7
    for vision in VISIONS:
        least = min(distance(one, other, vision) for one, other in combinations(plain, 2))
        assert least >= APART[depth], vision


@every_theme
def test_a_field_and_the_cursor_differ_from_their_ground(name: str, depth: Depth) -> None:
    have = colours(name, depth)
    grounds = {have[on] for on in ("background", "surface", "panel")}
    assert have["field"] not in grounds
    assert have["block-cursor-background"] not in {*grounds, have["field"]}
    if depth != "full":
        assert distance(have["field"], have["background"]) >= 0.1


def test_the_number_of_colours_is_the_terminals() -> None:
    names = ("truecolor", "256", "standard", None)
    assert [depth_of(name) for name in names] == ["full", "256", "16", "full"]


def test_textures_are_distinct_in_ascii() -> None:
    assert len({to_ascii(glyph) for glyph in f"{TEXTURES}░ "}) == len(TEXTURES) + 2


async def test_the_theme_is_kept_and_recolours_what_is_shown(
    sysbench_home: Path, app: SysbenchApp
) -> None:
    own_run = RunDirectory(sysbench_home / "runs" / "frozen")
    shutil.copytree(FROZEN, own_run.path)
    async with app.run_test(size=(80, 24)) as pilot:
        tab = await open_tab(pilot, app, own_run, "kernels")
        assert isinstance(tab, KernelsTab)
        parts = {part.name: part.look for part in tab.query_one(StackBar).parts}
        assert parts and set(parts) <= {*map(category_words, CATEGORIES), "idle", "unattributed"}
        names = {category_words(name): name for name in CATEGORIES}
        assert all(look == swatch_of(names.get(name, name)) for name, look in parts.items())
        dark = rich_colour(app, parts["gemm"].colour)
        await pilot.press("f12")
        await pilot.pause()
        assert app.theme == LIGHT
        assert rich_colour(app, parts["gemm"].colour) != dark
    assert SysbenchApp(CannedSampler()).theme == LIGHT
    (sysbench_home / FILE).write_text("{ not JSON")
    assert SysbenchApp(CannedSampler()).theme == DARK


@pytest.mark.parametrize(("term", "number"), [("xterm-256color", 237), ("xterm", 8)])
def test_without_colorterm_the_app_takes_colours_that_the_terminal_has(
    monkeypatch: pytest.MonkeyPatch, term: str, number: int
) -> None:
    monkeypatch.delenv("COLORTERM", raising=False)
    monkeypatch.setenv("TERM", term)
    app = SysbenchApp(CannedSampler())
    field = app.get_css_variables()["field"]
    assert Color.parse(field).downgrade(SYSTEMS[app.depth]).number == number
