"""What a pen writes shows what the whole paint shows, in pyte and in tmux."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import unicodedata
from dataclasses import replace
from pathlib import Path

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from sysbench.tui.live.pen import Abilities, Pen
from sysbench.tui.live.wire import Shown

WIDTH, HEIGHT = 40, 4
XTERM = Abilities(moves=True, undoes=True, ends=True, erases=True, fills=True, repeats=True)
LINUX = replace(XTERM, repeats=False)
SCREEN = replace(LINUX, erases=False, fills=False)
TERMINALS = (XTERM, LINUX, SCREEN, Abilities())
DEPTHS = (ColorSystem.STANDARD, ColorSystem.EIGHT_BIT, ColorSystem.TRUECOLOR)
STYLES = [
    None,
    Style(color="#d55e00", bgcolor="#0f1317"),
    Style(color="#d55e00", bgcolor="#0f1317", bold=True),
    Style(color="#d3dae3", bgcolor="#12171c", bold=True, italic=True),
    Style(color="red", underline=True),
    Style(bgcolor="blue", reverse=True),
    Style(color="default", bgcolor="default", strike=True),
    Style(color="#d3dae3", bgcolor="#0f1317", link="https://example.org"),
    Style(bold=True),
]
CONSOLE = Console(color_system="truecolor", force_terminal=True)

texts = st.one_of(
    st.text(st.sampled_from("ab █世é▚─"), max_size=12),
    st.text(st.sampled_from(" █─x="), min_size=1, max_size=1).flatmap(
        lambda char: st.integers(1, WIDTH).map(lambda times: char * times)
    ),
)
rows = st.lists(st.tuples(texts, st.sampled_from(STYLES)), max_size=5)
lines = rows.map(
    lambda parts: Strip([Segment(text, style) for text, style in parts]).adjust_cell_length(WIDTH)
)
frames = st.tuples(
    st.sampled_from(["layout", "other", "part"]), st.lists(lines, min_size=HEIGHT, max_size=HEIGHT)
)


class Screen(pyte.Screen):
    """pyte's screen, which repeats characters, and fills what it erases only where told to."""

    def __init__(self, width: int = WIDTH, height: int = HEIGHT, fills: bool = True) -> None:
        self._fills, self._last = fills, " "
        super().__init__(width, height)
        self.reset_mode(7, private=True)  # no wrapping: Textual turns it off

    def draw(self, data: str) -> None:
        self._last = data[-1]
        super().draw(data)

    def repeat(self, times: int = 1) -> None:
        super().draw(self._last * times)

    def erase_in_line(self, how: int = 0, private: bool = False) -> None:
        with_looks = self.cursor.attrs
        self.cursor.attrs = with_looks if self._fills else self.default_char
        super().erase_in_line(how, private)
        self.cursor.attrs = with_looks

    def erase_characters(self, count: int | None = None) -> None:
        with_looks = self.cursor.attrs
        self.cursor.attrs = with_looks if self._fills else self.default_char
        super().erase_characters(count)
        self.cursor.attrs = with_looks


class Stream(pyte.Stream):
    csi = pyte.Stream.csi | {"b": "repeat"}
    events = pyte.Stream.events | {"repeat"}


def fed(screen: Screen, written: str) -> list[list[tuple[object, ...]]]:
    """What is seen in each cell after these bytes: of a blank only its ground."""
    Stream(screen).feed(written)
    return [[seen(screen.buffer[y][x]) for x in range(screen.columns)] for y in range(screen.lines)]


def seen(cell: pyte.screens.Char) -> tuple[object, ...]:
    if cell.data == " " and not (cell.underscore or cell.reverse or cell.strikethrough):
        return (" ", cell.bg)
    return (unicodedata.normalize("NFC", cell.data), *cell[1:])


def whole(frame: list[Strip], colours: ColorSystem) -> str:
    """Every line at its place, every style spelt out, as Textual writes them."""
    return "".join(
        f"\x1b[{y};1H"
        + "".join(
            f"\x1b[{Strip.render_ansi(style, colours) if style else ''}m{text}\x1b[0m"
            for text, style, _ in strip
        )
        for y, strip in enumerate(frame, 1)
    )


def update_of(kind: str, frame: list[Strip], width: int = WIDTH) -> CompositorUpdate:
    if kind == "part":
        chops = [{0: strip} for strip in frame]
        spans = [(y, 0, width) for y in range(len(frame))]
        return ChopsUpdate(chops, spans, [[width]] * len(frame))
    return LayoutUpdate([[strip] for strip in frame], Region(0, 0, width, len(frame)))


@pytest.mark.parametrize("can", TERMINALS)
@settings(max_examples=60)
@given(st.lists(frames, min_size=1, max_size=4), st.sampled_from(DEPTHS))
def test_every_frame_looks_like_the_whole_paint(
    can: Abilities, moving: list[tuple[str, list[Strip]]], colours: ColorSystem
) -> None:
    shown = Shown(Pen(can), colours)
    screen = Screen(fills=can.fills)
    fed(screen, "\x1b[7m" + "?" * WIDTH + "\x1b[m")  # another program's
    for number, (kind, frame) in enumerate(moving):
        kind = kind if number else "layout"
        other = number if kind == "other" else "same"
        update = shown.only_changes(update_of(kind, frame), other, WIDTH)
        assert fed(screen, update.render_segments(CONSOLE)) == fed(
            Screen(fills=can.fills), whole(frame, colours)
        )


@pytest.mark.parametrize("can", TERMINALS)
@settings(max_examples=30)
@given(st.lists(lines, min_size=HEIGHT, max_size=HEIGHT), st.sampled_from(DEPTHS))
def test_a_terminal_of_another_size_is_painted_anew(
    can: Abilities, frame: list[Strip], colours: ColorSystem
) -> None:
    shown = Shown(Pen(can), colours)
    for width, height in ((WIDTH, HEIGHT), (24, 3), (WIDTH + 9, HEIGHT)):
        shown.forget()
        sized = [strip.adjust_cell_length(width) for strip in frame[:height]]
        update = shown.only_changes(update_of("layout", sized, width), "same", width)
        screen = Screen(width, height, can.fills)
        expected = Screen(width, height, can.fills)
        assert fed(screen, update.render_segments(CONSOLE)) == fed(expected, whole(sized, colours))


def written(
    can: Abilities, *segments: Segment, colours: ColorSystem = ColorSystem.TRUECOLOR
) -> str:
    frame = [Strip(segments)]
    return (
        Shown(Pen(can), ColorSystem.TRUECOLOR)
        .only_changes(update_of("layout", frame), "same", WIDTH)
        .render_segments(CONSOLE)
    )


def test_only_what_differs_of_a_style_is_written() -> None:
    bold, plain = Segment("a", STYLES[2]), Segment("b", STYLES[1])
    looks = "38;2;213;94;0;48;2;15;19;23"
    assert written(XTERM, bold, plain) == f"\x1b[1;{looks}m\x1b[1Ha\x1b[22mb\x1b[m"


def test_blanks_are_erased_only_as_the_terminal_can() -> None:
    row = Segment("a"), Segment(" " * (WIDTH - 1), Style(bgcolor="#0f1317"))
    ground = "\x1b[48;2;15;19;23m"
    assert written(XTERM, *row).endswith(f"a{ground}\x1b[K\x1b[m")
    assert written(SCREEN, *row).endswith(f"a{ground}{' ' * (WIDTH - 1)}\x1b[m")
    plain = Segment("a"), Segment(" " * (WIDTH - 1))
    assert written(SCREEN, *plain).endswith("a\x1b[K")
    assert written(Abilities(), *plain).endswith("a" + " " * (WIDTH - 1))


def test_characters_are_repeated_only_where_the_terminal_can() -> None:
    rule = Segment("=" * WIDTH)
    assert written(XTERM, rule).endswith("=\x1b[39b")
    assert written(LINUX, rule).endswith("=" * WIDTH)


def test_a_line_of_a_box_is_written_out_as_tmux_needs_it() -> None:
    assert written(XTERM, Segment("─" * WIDTH)).endswith("─" * WIDTH)


ASK = """
import curses, os
try:
    curses.setupterm(os.environ["TERM"], 1)
except curses.error:
    print("absent")
else:
    from sysbench.tui.live.pen import terminal_abilities
    print(terminal_abilities())
"""


@pytest.mark.parametrize(
    ("term", "can"),
    [
        ("xterm-256color", XTERM),
        ("linux", LINUX),
        ("screen-256color", SCREEN),
        ("vt100", None),
    ],
)
def test_terminfo_says_what_a_terminal_can(term: str, can: Abilities | None) -> None:
    environment = {**os.environ, "TERM": term}
    environment.pop("TEXTUAL_DRIVER", None)
    asked = [sys.executable, "-P", "-c", ASK]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    if done.stdout == "absent\n":
        pytest.skip(f"no entry for {term} here")
    expected = can or Abilities()
    assert done.stdout == f"{expected}\n"


def test_an_unknown_terminal_and_a_browser_get_only_what_all_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sysbench.tui.live.pen import terminal_abilities

    monkeypatch.setenv("TEXTUAL_DRIVER", "textual.drivers.web_driver:WebDriver")
    assert terminal_abilities() == Abilities()


@pytest.mark.skipif(not shutil.which("tmux"), reason="no tmux here")
def test_tmux_shows_the_whole_paint(tmp_path: Path) -> None:
    frame = [
        Strip([Segment("ab" + " " * 20, STYLES[1]), Segment("─" * 18, STYLES[3])]),
        Strip([Segment(" " * 12, STYLES[2]), Segment("世界", STYLES[4]), Segment(" " * 24)]),
        Strip([Segment("█" * 30, STYLES[6]), Segment(" " * 10, STYLES[5])]),
        Strip([Segment("end", STYLES[8]), Segment(" " * 37, STYLES[1])]),
    ]
    colours = ColorSystem.EIGHT_BIT
    paints = [
        Shown(Pen(can), colours)
        .only_changes(update_of("layout", frame), "same", WIDTH)
        .render_segments(CONSOLE)
        for can in (XTERM, SCREEN, Abilities())
    ]
    # A capture leaves out what is erased behind the last character of a line.
    ends = "".join(f"\x1b[{y};{WIDTH}H|" for y in range(1, HEIGHT + 1))
    paints = [paint + ends for paint in (whole(frame, colours), *paints)]
    first, *others = (shown_by_tmux(tmp_path / str(at), one) for at, one in enumerate(paints))
    assert first == fed(Screen(), paints[0])
    assert others == [first] * 3


def shown_by_tmux(folder: Path, painted: str) -> list[list[tuple[object, ...]]]:
    """The cells of a pane of tmux after these bytes."""
    folder.mkdir()
    ready, paint = folder / "ready", folder / "paint"
    paint.write_text(painted)
    server = ["tmux", "-S", str(folder / "socket"), "-f", os.devnull]
    shows = f"printf '\\033[?7l'; cat {paint}; touch {ready}; exec sleep 600"
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    size = ("-x", str(WIDTH), "-y", str(HEIGHT))
    status = (";", "set", "-g", "status", "off", ";", "new-session", "-d", *size, shows)
    subprocess.run([*server, "start-server", *status], env=environment, check=True)
    try:
        deadline = time.monotonic() + 60
        while not ready.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        captured = subprocess.run(
            [*server, "capture-pane", "-p", "-e", "-N"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    finally:
        subprocess.run([*server, "kill-server"], check=True)
    placed = (f"\x1b[{y};1H{line}" for y, line in enumerate(captured.splitlines(), 1))
    return fed(Screen(), "".join(placed))
