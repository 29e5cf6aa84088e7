"""Patches of Textual, the only place that uses its private members. See docs/upstream.md.

Each has a test in tests/tui/test_textual_patches.py that fails when the private member is gone, or
when Textual no longer needs the patch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS
from rich.style import Style
from textual.app import App, ReturnType
from textual.command import CommandList, CommandPalette
from textual.geometry import Region, Size
from textual.screen import ModalScreen
from textual.strip import Strip

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from textual.events import Click
    from textual.screen import Screen

CellStyle = tuple[str, str, str]
"""SGR codes (ECMA-48, 8.3.117), the codes of an equivalent blank, a hyperlink."""
Cell = tuple[str, CellStyle]
"""A character and its style; the second half of a wide character has no text."""
PLAIN = ("", "", "")

MAX_GAP = 4
"""Gaps up to this size are sent too, since moving the cursor takes more bytes."""
MIN_ERASED = 4
"""Trailing blanks from which erasing the line takes fewer bytes."""
BACKGROUND_ALONE = re.compile(r"(48;[\d;]+|4[0-79]|10[0-7])?")


class Update(Protocol):
    """An update of Textual's compositor."""

    render_segments: Callable[[Console], str]


class CompositorLayout(Update, Protocol):
    """A whole frame."""

    strips: Sequence[Iterable[Strip]]
    region: Region


class Chops(Update, Protocol):
    """Changed parts of lines: first and last column of each line, and its strips."""

    spans: Sequence[tuple[int, int, int]]
    chops: Sequence[Mapping[int, Strip | None]]
    chop_ends: Sequence[Sequence[int]]


class FrameDiffApp(App[ReturnType]):
    """Diff each frame against the previous one and send only changed cells."""

    def __init__(self) -> None:
        super().__init__()
        self.frame = FrameBuffer(can_erase=erases_with_background())

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        update: Any = renderable
        if is_layout(update) or is_chops(update):
            update.render_segments = partial(self.frame.encode, update, screen)
        super()._display(screen, renderable)


def is_layout(update: object) -> TypeGuard[CompositorLayout]:
    return all(hasattr(update, name) for name in ("strips", "region"))


def is_chops(update: object) -> TypeGuard[Chops]:
    return all(hasattr(update, name) for name in ("spans", "chops", "chop_ends"))


class FrameBuffer:
    """The cells of the previous frame.

    Args:
        can_erase: Whether the terminal gives erased cells the current background.
    """

    def __init__(self, *, can_erase: bool) -> None:
        self._can_erase = can_erase
        self._screen: object = None
        self._size: Size | None = None
        self._rows: dict[int, dict[int, Cell]] = {}

    def forget(self) -> None:
        """Forget the previous frame, for example after a resize."""
        self._rows.clear()

    def encode(self, update: CompositorLayout | Chops, screen: object, console: Console) -> str:
        """Return the escape sequences that paint the changes of an update.

        After a switch between screens, but not dialogs, the whole frame is sent.
        """
        is_dialog = isinstance(screen, ModalScreen) or isinstance(self._screen, ModalScreen)
        if screen is not self._screen and not is_dialog:
            self.forget()
        self._screen = screen
        if is_layout(update):
            if self._size not in (None, update.region.size):
                self.forget()  # a frame of the old size may have arrived after the resize
            self._size = update.region.size
        colours = COLOR_SYSTEMS[console.color_system or "truecolor"]
        width = self._size.width if self._can_erase and self._size else 0
        return "".join(
            encode_cells(x, y, cells, width)
            for piece in pieces_of(update)
            for x, y, cells in self._changes(*piece, colours)
        )

    def _changes(
        self, x: int, y: int, strips: Iterable[Strip], colours: ColorSystem
    ) -> Iterator[tuple[int, int, list[Cell]]]:
        row = self._rows.setdefault(y, {})
        cells = [cell for strip in strips for cell in cells_of(strip, colours)]
        changed = [column for column, cell in enumerate(cells) if row.get(x + column) != cell]
        row.update(enumerate(cells, x))
        # Indices of `changed` at which a new run of cells begins.
        starts = [
            index
            for index in range(1, len(changed))
            if changed[index] - changed[index - 1] > MAX_GAP + 1
        ]
        for begin, end in zip([0, *starts], [*starts, len(changed)], strict=True):
            if begin == end:
                return
            first, last = changed[begin], changed[end - 1]
            # Never split a double-width character.
            while first and not cells[first][0]:
                first -= 1
            while last + 1 < len(cells) and not cells[last + 1][0]:
                last += 1
            yield x + first, y, cells[first : last + 1]


def pieces_of(update: CompositorLayout | Chops) -> Iterator[tuple[int, int, Iterable[Strip]]]:
    if is_layout(update):
        for y, strips in enumerate(update.strips, update.region.y):
            yield update.region.x, y, strips
    elif is_chops(update):
        for y, from_x, to_x in update.spans:
            for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
                if strip is not None and x <= to_x and end > from_x:
                    is_whole = from_x <= x < to_x and end <= to_x
                    yield x, y, [strip if is_whole else strip.crop(0, min(end, to_x) - x)]


def cells_of(strip: Strip, colours: ColorSystem) -> list[Cell]:
    """Split a strip into cells; blanks that look the same get the same style."""
    cells: list[Cell] = []
    for text, style, control in strip:
        if control:
            continue
        look = cell_look(style, colours) if style else PLAIN
        blank = (look[1], *look[1:])
        if text.isascii():
            cells += [(char, blank if char == " " else look) for char in text]
            continue
        for char in text:
            width = cell_len(char)
            if width:
                cells += [(char, blank if char == " " else look), *[("", look)] * (width - 1)]
            elif cells:
                # A combining character belongs to the previous one.
                index = -1 if cells[-1][0] else -2
                cells[index] = (cells[index][0] + char, cells[index][1])
    return cells


@lru_cache(maxsize=16384)
def cell_look(style: Style, colours: ColorSystem) -> CellStyle:
    codes = Strip.render_ansi(style, colours)
    lines = style.underline or style.underline2 or style.overline or style.strike
    if lines or style.reverse or style.link:
        return codes, codes, f"id={style.link_id};{style.link}" if style.link else ""
    return codes, Strip.render_ansi(Style(bgcolor=style.bgcolor), colours), ""


def encode_cells(x: int, y: int, cells: Sequence[Cell], width: int) -> str:
    """Return the escape sequences that paint cells from a position.

    Args:
        width: Columns of the terminal if it gives erased cells the current background, else 0.
    """
    end, last = len(cells), cells[-1]
    if x + end == width and last[0] == " " and BACKGROUND_ALONE.fullmatch(last[1][0]):
        while end and cells[end - 1] == last:
            end -= 1
        end = end if len(cells) - end >= MIN_ERASED else len(cells)
    written, (codes, blank, link) = [f"\x1b[{y + 1};{x + 1}H"], PLAIN
    for text, look in [*cells[:end], *(("\x1b[K", last[1]) for _ in cells[end : end + 1])]:
        if look[2] != link:
            written.append(f"\x1b]8;{look[2] or ';'}\x1b\\")
            link = look[2]
        if look[0] != codes and not (text == " " and look[1] == blank):
            written.append(f"\x1b[{'0;' if look[0] and codes else ''}{look[0]}m")
            codes, blank, _ = look
        written.append(text)
    return "".join(written) + "\x1b]8;;\x1b\\" * bool(link) + "\x1b[m" * bool(codes)


def erases_with_background() -> bool:
    """Whether erased cells get the current background, according to terminfo."""
    if "TEXTUAL_DRIVER" in os.environ:
        return False  # TERM describes the server's terminal, not the browser
    try:
        import curses  # lazy: not in every Python

        curses.setupterm(os.environ.get("TERM", ""), 1)
    except Exception:  # curses.error for an unknown TERM
        return False
    return curses.tigetflag("bce") > 0


class GuardedPalette(CommandPalette):
    """Textual's command palette without two crashes in a small terminal."""

    def on_click(self, event: Click) -> None:
        # Textual raises if the terminal has shrunk and there is no widget at this position.
        if not self.size.contains(event.screen_x, event.screen_y):
            event.prevent_default()

    def _action_command_list(self, action: str) -> None:
        # Textual's list raises while it has no size.
        if any(commands.size for commands in self.query(CommandList)):
            super()._action_command_list(action)
