"""A film of the main job, from the form to what was resident: ``make film``.

The real app at 80x24, driven by keys, measures a small model on this machine. What it showed is
one SVG that moves by itself, ``docs/pictures/film.svg``. Waiting is shown faster than it was; the
clock in the corner has the real seconds. ``python -m tests.validation.film --stills FOLDER`` also
writes each frame.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.color import blend_rgb
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME

if TYPE_CHECKING:
    from textual.pilot import Pilot
    from textual.strip import Strip

    from sysbench.tui.app import SysbenchApp

FILM = Path(__file__).parents[2] / "docs" / "pictures" / "film.svg"
COLUMNS, ROWS = 80, 24
CELL, LINE, FONT = 8.43, 17, 14
"""Pixels: width of a cell, height of a line, size of the font."""
READ = 4.0
"""Seconds that a screen stands which is there to be read."""
TYPED = 0.3
"""Seconds that a frame stands after a key."""
LOOK = 2.0
"""Seconds between two looks at the screen while a run is under way."""
FAST = 0.4
"""Seconds that such a look is shown."""
MOST_BYTES = 300_000

FAMILY = "DejaVu Sans Mono, Menlo, Consolas, monospace"


class Look(NamedTuple):
    """How a text is shown: colours as ``#rrggbb``."""

    front: str
    back: str
    bold: bool
    underline: bool


Line = tuple[tuple[str, Look], ...]


@dataclass
class Film:
    """The frames: when each was there, for how long it is to be seen, and its lines."""

    began: float = field(default_factory=time.monotonic)
    frames: list[tuple[float, float, list[Line]]] = field(default_factory=list)

    def take(self, lines: list[Line], seconds: float) -> None:
        """Add a frame if it differs from the last one; else the last one stands longer.

        A screen that is just being made has no text yet, and is no frame.
        """
        if not any(text.strip() for line in lines for text, _ in line):
            return
        if self.frames and self.frames[-1][2] == lines:
            at, shown, _ = self.frames[-1]
            self.frames[-1] = (at, max(shown, seconds), lines)
        else:
            self.frames.append((time.monotonic() - self.began, seconds, lines))


async def play() -> Film:
    """Do the main job by keys, and film it."""
    from sysbench.tui.app import SysbenchApp

    app = SysbenchApp()
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        await pilot.pause(1.5)
        film = Film()
        film.take(lines_of(app), READ / 2)
        await press(film, app, pilot, "tab", "ctrl+u", "8", "tab", "ctrl+u", "2", "5", "6", "tab")
        film.take(lines_of(app), READ / 2)
        await press(film, app, pilot, "ctrl+r")
        while app.current_mode != "result":
            await pilot.pause(LOOK)
            film.take(lines_of(app), FAST)
        for keys in ((), ("2",), ("3",), ("v",), ("4",), ("v",)):
            await press(film, app, pilot, *keys)
            await pilot.pause(1.0)
            film.take(lines_of(app), READ)
    return film


async def press(film: Film, app: SysbenchApp, pilot: Pilot[None], *keys: str) -> None:
    """Press keys one after another, a frame each."""
    for key in keys:
        await pilot.press(key)
        await pilot.pause(0.2)
        film.take(lines_of(app), TYPED)


def lines_of(app: SysbenchApp) -> list[Line]:
    """What is on the screen: each line as runs of cells of one style."""
    return [tuple(runs_of(strip)) for strip in app.screen._compositor.render_strips()]


def runs_of(strip: Strip) -> Iterator[tuple[str, Look]]:
    """The texts of a line with their looks, neighbours of one look joined.

    A space has no colour but that behind it, and joins what has the same.
    """
    text, last = "", None
    for segment in strip:
        look = look_of(segment.style or Style.null())
        if last is not None and look.back == last.back and not segment.text.strip(" "):
            look = look if look.underline else last
        if look == last:
            text += segment.text
            continue
        if last is not None:
            yield text, last
        text, last = segment.text, look
    if last is not None:
        yield text, last


def look_of(style: Style) -> Look:
    """The colours that a terminal shows, swapped where reversed and between them where dim."""
    theme = SVG_EXPORT_THEME
    front = style.color.get_truecolor(theme) if style.color else theme.foreground_color
    behind = theme.background_color
    if style.bgcolor:
        behind = style.bgcolor.get_truecolor(theme, foreground=False)
    if style.reverse:
        front, behind = behind, front
    if style.dim:
        front = blend_rgb(front, behind, 0.4)
    return Look(front.hex, behind.hex, bool(style.bold), bool(style.underline))


def svg_of(film: Film) -> str:
    """The film as an SVG in which frames stand one above another and roll by."""
    seconds = [shown for _, shown, _ in film.frames]
    cells: Counter[str] = Counter()
    for text, look in (run for *_, rows in film.frames for row in rows for run in row):
        cells[look.back] += len(text)
    ((behind, _),) = cells.most_common(1)
    length, height = sum(seconds), (ROWS + 1) * LINE
    lines: dict[Line, int] = {}
    looks: dict[tuple[str, bool, bool], int] = {}
    body, moves, passed = [], [], 0.0
    for index, (at, shown, rows) in enumerate(film.frames):
        moves.append(f"{passed / length:.3%}{{transform:translateY(-{index * height}px)}}")
        passed += shown
        uses = [
            f'<use href="#l{lines.setdefault(row, len(lines))}" y="{place * LINE}"/>'
            for place, row in enumerate(rows)
        ]
        clock = (
            f'<text class="k" x="{COLUMNS * CELL - 8:.0f}" y="{ROWS * LINE + 13}">{at:.0f} s</text>'
        )
        body.append(f'<g transform="translate(0 {index * height})">{"".join(uses)}{clock}</g>')
    drawn = [
        f'<g id="l{index}">{"".join(drawing(row, looks, behind))}</g>'
        for row, index in lines.items()
    ]
    width = COLUMNS * CELL
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" font-family="{FAMILY}" font-size="{FONT}" '
        f'xml:space="preserve">\n'
        f"<title>From the form to what was resident, in the real app</title>\n<style>"
        f".k{{fill:#8a9199;text-anchor:end;font-size:11px}}{rules(looks)}"
        f"#film{{animation:roll {length:.1f}s step-end infinite}}"
        f"@keyframes roll{{{''.join(moves)}}}"
        f"@media (prefers-reduced-motion:reduce){{#film{{animation:none;"
        f"transform:translateY(-{(len(film.frames) - 1) * height}px)}}}}</style>\n"
        f"<defs>{''.join(drawn)}</defs>\n"
        f'<rect width="100%" height="100%" fill="{behind}"/>\n'
        f'<g id="film">{"".join(body)}</g>\n</svg>\n'
    )


def drawing(line: Line, looks: dict[tuple[str, bool, bool], int], behind: str) -> Iterator[str]:
    """The rectangles and texts of a line on a picture of one colour."""
    column = 0
    for back, group in groupby(line, key=lambda run: run[1].back):
        start, width = column, sum(cell_len(text) for text, _ in group)
        column += width
        if back != behind:
            yield (
                f'<rect x="{start * CELL:.1f}" width="{width * CELL + 0.4:.1f}" '
                f'height="{LINE}" fill="{back}"/>'
            )
    column = 0
    for text, look in line:
        width = cell_len(text)
        x = column * CELL
        bare = text.strip(" ")
        if bare:
            before = len(text) - len(text.lstrip(" "))
            kind = looks.setdefault((look.front, look.bold, look.underline), len(looks))
            wide = cell_len(bare)
            length = f' textLength="{wide * CELL:.1f}"' if wide > 1 else ""
            left = f"{x + before * CELL:.1f}"
            shown = escape(bare, quote=False)
            yield f'<text class="c{kind}" x="{left}" y="13"{length}>{shown}</text>'
        column += width


def rules(looks: dict[tuple[str, bool, bool], int]) -> str:
    """A class of the stylesheet for each look of a text."""
    return "".join(
        f".c{number}{{fill:{colour}{';font-weight:700' if bold else ''}"
        f"{';text-decoration:underline' if underline else ''}}}"
        for (colour, bold, underline), number in looks.items()
    )


def main() -> None:
    """Film, and write the SVG; say how large and how long it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stills", type=Path, metavar="FOLDER")
    stills: Path | None = parser.parse_args().stills
    with tempfile.TemporaryDirectory() as home:
        os.environ["SYSBENCH_HOME"] = home
        os.environ["COLORTERM"] = "truecolor"  # the theme goes by the terminal
        film = asyncio.run(play())
    text = svg_of(film)
    shown = sum(seconds for _, seconds, _ in film.frames)
    print(f"{FILM.name}: {len(film.frames)} frames, {shown:.0f} s, {len(text.encode()):,} bytes")
    if stills:
        stills.mkdir(parents=True, exist_ok=True)
        for index, frame in enumerate(film.frames):
            (stills / f"{index:03}.svg").write_text(svg_of(Film(frames=[frame])), encoding="utf-8")

    if len(text.encode()) > MOST_BYTES:
        raise SystemExit(f"more than {MOST_BYTES:,} bytes: {FILM.name} stays as it was")
    FILM.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
