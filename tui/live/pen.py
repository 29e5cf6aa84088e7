"""The terminal's pen: where it is, how it writes now, and the fewest bytes to go on from there.

Textual spells a style out before each piece of text, resets it behind, and writes every blank. Here
only what differs from the pen's state is written, and blanks are erased where the terminal can.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style

ON = ("1", "2", "3", "4", "5", "6", "7", "8", "9", "21", "51", "52", "53")
OFF = ("22", "22", "23", "24", "25", "25", "27", "28", "29", "24", "54", "54", "55")
"""Codes of Select Graphic Rendition (ECMA-48, 8.3.117) by the bits of a Rich style."""

UNSEEN = 0b0000010110111
"""The bits of weight, slant, blinking and hiding: a blank has none of them."""

RESET = "\x1b[m"
ERASE_LINE = "\x1b[K"

BLANKS = re.compile("(^ +| +$| {8,})")
"""Blanks that may be erased for less than they take; others are text."""

SAME = re.compile(r"([\x20-\x7e])\1{4,}")
"""Characters that may be told by their number: tmux 3.3a repeats no others, whatever TERM says."""


class Look(NamedTuple):
    """All that a terminal is told of a character's looks.

    Attributes:
        bits: Attributes, as Rich numbers them.
        ink: Codes of the text's colour; empty for the terminal's own.
        ground: Codes of the background; empty for the terminal's own.
        link: Parameters and address of a hyperlink (OSC 8); empty for none.
    """

    bits: int = 0
    ink: str = ""
    ground: str = ""
    link: str = ""

    @property
    def is_bare(self) -> bool:
        """Whether a blank of this look shows its ground and nothing else."""
        return not (self.bits & ~UNSEEN or self.link)


PLAIN = Look()
Run = tuple[str, Look]
"""Text of one look."""

Piece = tuple[int, int, list[Run]]
"""Column, row, and what is painted from there on."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a terminal can do besides going to a place and taking a whole style.

    Attributes:
        moves: Goes right, left, and to a column of the line.
        undoes: Takes back one attribute or colour.
        ends: Erases to the end of the line.
        erases: Erases so many characters.
        fills: Erased cells have the present background.
        repeats: Repeats the last character.
    """

    moves: bool = False
    undoes: bool = False
    ends: bool = False
    erases: bool = False
    fills: bool = False
    repeats: bool = False


SEQUENCES = {
    "moves": {"cuf": b"\x1b[%p1%dC", "cub": b"\x1b[%p1%dD", "hpa": b"\x1b[%i%p1%dG"},
    "undoes": {"op": b"\x1b[39;49m", "rmul": b"\x1b[24m"},
    "ends": {"el": b"\x1b[K"},
    "erases": {"ech": b"\x1b[%p1%dX"},
    "repeats": {"rep": b"%p1%c\x1b[%p2%{1}%-%db"},
}
"""By ability its entries in terminfo, in the one spelling that a pen writes."""


def terminal_abilities() -> Abilities:
    """What terminfo knows of this process's terminal: none where it has no entry for it."""
    if "TEXTUAL_DRIVER" in os.environ:
        return Abilities()  # TERM is that of the server's terminal, the reader is a browser
    try:
        import curses

        curses.setupterm(os.environ.get("TERM", ""), 1)
    except Exception:  # a Python without curses raises ImportError, no entry curses.error
        return Abilities()
    found = {
        ability: all(curses.tigetstr(name) == text for name, text in texts.items())
        for ability, texts in SEQUENCES.items()
    }
    return Abilities(**found, fills=curses.tigetflag("bce") > 0)


@lru_cache(maxsize=16384)
def look_of(style: Style | None, colours: ColorSystem) -> Look:
    """The look of a style where there are so many colours."""
    if style is None:
        return PLAIN
    ink = style.color.downgrade(colours).get_ansi_codes() if style.color else ()
    ground = style.bgcolor.downgrade(colours).get_ansi_codes(False) if style.bgcolor else ()
    return Look(
        style._attributes & style._set_attributes,
        "" if ink == ("39",) else ";".join(ink),
        "" if ground == ("49",) else ";".join(ground),
        f"id={style._link_id};{style.link}" if style.link else "",
    )


@lru_cache(maxsize=4096)
def blank_of(look: Look) -> Look:
    """The look of a blank, without what is not seen of it."""
    return Look(ground=look.ground) if look.is_bare else look


def runs_of(segments: Iterable[Segment], colours: ColorSystem) -> list[Run]:
    """The texts of segments, with their looks."""
    return [(text, look_of(style, colours)) for text, style, control in segments if not control]


class _Part(NamedTuple):
    """Text of one look at its place; a blank part is nothing but its ground."""

    x: int
    y: int
    text: str
    look: Look
    cells: int
    is_blank: bool


class Pen:
    """Writes frames; before and behind each of them the terminal's own looks are in force."""

    def __init__(self, abilities: Abilities) -> None:
        self._can = abilities
        self._look = PLAIN
        self._x: int | None = None
        self._y: int | None = None
        """Where the cursor is; none where terminals differ about it."""

    def write(self, pieces: Iterable[Piece], width: int) -> str:
        """The bytes that paint these pieces, on a terminal of so many columns."""
        self._x = self._y = None
        parts = [part for piece in pieces for part in _parts(*piece)]
        written: list[str] = []
        for part, following in zip(parts, [*parts[1:], None], strict=False):
            if part.is_blank:
                written += self._blank(part, following, width)
            else:
                written += self._text(part, width)
        written.append(self._become(PLAIN))
        return "".join(written)

    def _text(self, part: _Part, width: int) -> Iterator[str]:
        yield self._become(part.look)
        yield self._go(part.x, part.y)
        is_certain = _is_certain(part.text)
        yield _repeated(part.text) if is_certain and self._can.repeats else part.text
        if not is_certain:
            self._x = self._y = None
        else:
            self._went(part, width)

    def _blank(self, part: _Part, following: _Part | None, width: int) -> Iterator[str]:
        """Show the ground of a part, in the way that takes the fewest bytes."""
        ground = part.look.ground
        if self._look.ground != ground or not self._look.is_bare:
            after = following.look if following else PLAIN
            if after.ground != ground or not after.is_bare:
                after = Look(self._look.bits & UNSEEN, self._look.ink, ground)
            yield self._become(after)
        yield self._go(part.x, part.y)
        can, cells = self._can, part.cells
        written = _repeated(part.text) if can.repeats else part.text
        if can.fills or not ground:
            end = part.x + cells
            if can.ends and end == width and len(written) >= len(ERASE_LINE):
                yield ERASE_LINE
                return
            is_joined = following is not None and following[:2] == (end, part.y)
            erased = f"\x1b[{cells}X"
            if can.erases and len(erased) * (2 if is_joined else 1) < len(written):
                yield erased
                return
        yield written
        self._went(part, width)

    def _become(self, look: Look) -> str:
        before, self._look = self._look, look
        return _change(before, look, self._can.undoes)

    def _went(self, part: _Part, width: int) -> None:
        # Behind the last column a cursor is in it or after it, as the terminal likes.
        end = part.x + part.cells
        self._x, self._y = end if end < width else None, part.y

    def _go(self, x: int, y: int) -> str:
        """The shortest way to a place."""
        from_x, from_y = self._x, self._y
        if (x, y) == (from_x, from_y):
            return ""
        self._x, self._y = x, y
        ways = [f"\x1b[{y + 1}H" if x == 0 else f"\x1b[{y + 1};{x + 1}H"]
        if from_y is not None and 0 <= y - from_y <= 3:
            # Terminals may add the return to the line feed by themselves.
            start = "\r" + "\n" * (y - from_y)
            if x == 0:
                ways.append(start)
            elif self._can.moves:
                ways += [start + _stepped(x, "C")]
        if y == from_y and self._can.moves:
            ways.append(f"\x1b[{x + 1}G")
            if from_x is not None:
                ways.append(_stepped(abs(x - from_x), "C" if x > from_x else "D"))
        return min(ways, key=len)


def _stepped(columns: int, direction: str) -> str:
    return f"\x1b[{columns if columns > 1 else ''}{direction}"


def _parts(x: int, y: int, runs: list[Run]) -> Iterator[_Part]:
    """The parts of a piece, with blanks that are next to each other as one."""
    blank: _Part | None = None
    for run, look in runs:
        texts = BLANKS.split(run) if look.is_bare else [run]
        for text in filter(None, texts):
            if look.is_bare and not text.strip(" "):
                seen = blank_of(look)
                if blank and blank.look == seen:
                    text = blank.text + text
                    x = blank.x
                elif blank:
                    yield blank
                blank = _Part(x, y, text, seen, len(text), True)
                x += len(text)
                continue
            if blank:
                yield blank
                blank = None
            cells = len(text) if text.isascii() else cell_len(text)
            yield _Part(x, y, text, look, cells, False)
            x += cells
    if blank:
        yield blank


@lru_cache(maxsize=4096)
def _is_certain(text: str) -> bool:
    """Whether every terminal takes as many columns for a text as it has characters."""
    return text.isascii() or all(cell_len(char) == 1 for char in text)


def _repeated(text: str) -> str:
    """The text, with characters that follow themselves told by their number."""

    def told(same: re.Match[str]) -> str:
        return min(same[0], f"{same[1]}\x1b[{len(same[0]) - 1}b", key=len)

    return SAME.sub(told, text)


@lru_cache(maxsize=16384)
def _change(before: Look, after: Look, undoes: bool) -> str:
    """The shortest sequence from a look to another; empty where they are the same."""
    link = "" if before.link == after.link else f"\x1b]8;{after.link or ';'}\x1b\\"
    anew = [ON[bit] for bit in _bits(after.bits)] + [code for code in after[1:3] if code]
    whole = f"\x1b[{';'.join(['0', *anew])}m" if anew else RESET
    if before[:3] == after[:3]:
        return link
    gone = before.bits & ~after.bits
    loses = gone or any(old and not new for old, new in zip(before[1:3], after[1:3], strict=True))
    if loses and not undoes:
        return link + whole
    off = dict.fromkeys(OFF[bit] for bit in _bits(gone))
    kept = sum(1 << bit for bit in _bits(before.bits) if OFF[bit] not in off)
    codes = [*off, *(ON[bit] for bit in _bits(after.bits & ~kept))]
    for old, new, own in zip(before[1:3], after[1:3], ("39", "49"), strict=True):
        if old != new:
            codes.append(new or own)
    return link + min(f"\x1b[{';'.join(codes)}m", whole, key=len)


def _bits(bits: int) -> Iterator[int]:
    return (bit for bit in range(bits.bit_length()) if bits >> bit & 1)
