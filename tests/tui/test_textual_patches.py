"""The frame diff shows the same as Textual's own output; each patch is still needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import unicodedata
from pathlib import Path
from typing import Any

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App
from textual.command import CommandPalette
from textual.errors import NoWidget
from textual.events import Click
from textual.geometry import Region
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widgets import Static

from sysbench.tui.textual_patches import FrameBuffer, FrameDiffApp, is_chops, is_layout

WIDTH, HEIGHT = 40, 4
DEPTHS = ("standard", "256", "truecolor")
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


def console_of(depth: str = "truecolor") -> Console:
    return Console(color_system=depth, force_terminal=True)  # type: ignore[arg-type]


class Screen(pyte.Screen):
    """pyte's screen, which may erase with the default background."""

    def __init__(self, width: int = WIDTH, height: int = HEIGHT, fills: bool = True) -> None:
        self._fills = fills
        super().__init__(width, height)
        self.reset_mode(7, private=True)  # no wrapping: Textual turns it off

    def erase_in_line(self, how: int = 0, private: bool = False) -> None:
        attributes = self.cursor.attrs
        self.cursor.attrs = attributes if self._fills else self.default_char
        super().erase_in_line(how, private)
        self.cursor.attrs = attributes


def cells_after(screen: Screen, written: str) -> list[list[tuple[object, ...]]]:
    """Visible content of each cell; for a blank only its background."""
    pyte.Stream(screen).feed(written)
    return [[seen(screen.buffer[y][x]) for x in range(screen.columns)] for y in range(screen.lines)]


def seen(cell: pyte.screens.Char) -> tuple[object, ...]:
    if cell.data == " " and not (cell.underscore or cell.reverse or cell.strikethrough):
        return (" ", cell.bg)
    return (unicodedata.normalize("NFC", cell.data), *cell[1:])


def layout(frame: list[Strip]) -> Any:
    width = frame[0].cell_length
    return LayoutUpdate([[strip] for strip in frame], Region(0, 0, width, len(frame)))


def stock_paint(frame: list[Strip], console: Console) -> str:
    # Copies: a style keeps its codes, whatever the depth of the next console.
    copies = [
        Strip([Segment(text, style and style.copy()) for text, style, _ in strip])
        for strip in frame
    ]
    painted: str = layout(copies).render_segments(console)
    return painted


def partial(frame: list[Strip]) -> Any:
    spans = [(y, 0, WIDTH) for y in range(len(frame))]
    return ChopsUpdate([{0: strip} for strip in frame], spans, [[WIDTH]] * len(frame))


def fresh(can_erase: bool = True) -> FrameBuffer:
    return FrameBuffer(can_erase=can_erase)


def sent(buffer: FrameBuffer, update: Any, screen: object = "form") -> str:
    return buffer.encode(update, screen, console_of())


@pytest.mark.parametrize("fills", [True, False])
@settings(max_examples=100)
@given(st.lists(frames, min_size=1, max_size=4), st.sampled_from(DEPTHS))
def test_every_frame_looks_like_the_stock_paint(
    fills: bool, moving: list[tuple[str, list[Strip]]], depth: str
) -> None:
    buffer, console = fresh(fills), console_of(depth)
    screen = Screen(fills=fills)
    cells_after(screen, "\x1b[7m" + "?" * WIDTH + "\x1b[m")  # another program's
    for number, (kind, frame) in enumerate(moving):
        update = partial(frame) if kind == "part" and number else layout(frame)
        other = number if kind == "other" else "same"
        stock = stock_paint(frame, console)
        shown = cells_after(screen, buffer.encode(update, other, console))
        assert shown == cells_after(Screen(fills=fills), stock)


@given(st.lists(lines, min_size=HEIGHT, max_size=HEIGHT))
@settings(max_examples=50)
def test_a_frame_of_another_size_is_sent_whole(frame: list[Strip]) -> None:
    buffer = fresh()
    for width, height in ((WIDTH, HEIGHT), (24, 3), (WIDTH + 9, HEIGHT)):
        sized = [strip.adjust_cell_length(width) for strip in frame[:height]]
        stock = stock_paint(sized, console_of())
        shown = cells_after(Screen(width, height), sent(buffer, layout(sized)))
        assert shown == cells_after(Screen(width, height), stock)


FRAME = [Strip([Segment("x" * WIDTH, Style(color="red"))])] * HEIGHT


def test_a_frame_as_it_was_sends_nothing() -> None:
    buffer = fresh()
    assert sent(buffer, layout(FRAME))
    assert sent(buffer, partial([*FRAME])) == sent(buffer, layout([*FRAME])) == ""


def test_the_first_frame_of_another_screen_and_a_forgotten_one_are_sent_whole() -> None:
    buffer = fresh()
    whole = sent(buffer, layout(FRAME), "form")
    for screen in ("help", "form"):
        assert sent(buffer, layout(FRAME), screen) == whole
    assert not sent(buffer, layout(FRAME), "form")
    buffer.forget()
    assert sent(buffer, layout(FRAME), "form") == whole


def test_a_dialog_sends_what_it_covers_and_then_what_it_covered() -> None:
    buffer, dialog = fresh(), ModalScreen[None]()
    sent(buffer, layout(FRAME), "form")
    covered = [
        FRAME[0],
        Strip([Segment("x" * 10 + "y" + "x" * 29, Style(color="red"))]),
        *FRAME[2:],
    ]
    for screen, frame, char in ((dialog, covered, "y"), ("form", FRAME, "x")):
        assert sent(buffer, layout(frame), screen) == f"\x1b[2;11H\x1b[31m{char}\x1b[m"


def test_styles_are_written_once_and_blanks_at_the_end_erased_where_they_can_be() -> None:
    style = Style(bgcolor="#0f1317")
    frame = [Strip([Segment("a", style), Segment("b", style), Segment(" " * 38, style)])]
    codes = "\x1b[48;2;15;19;23m"
    assert sent(fresh(), layout(frame)) == f"\x1b[1;1H{codes}ab\x1b[K\x1b[m"
    assert sent(fresh(False), layout(frame)) == f"\x1b[1;1H{codes}ab{' ' * 38}\x1b[m"


def test_the_colour_that_a_blank_would_be_written_in_is_no_change() -> None:
    buffer = fresh()
    sent(buffer, layout([Strip([Segment(" " * WIDTH, Style(color="red", bold=True))])]))
    assert not sent(buffer, layout([Strip([Segment(" " * WIDTH)])]))


def test_half_of_a_wide_character_is_never_sent() -> None:
    wide, narrow = Strip([Segment("a世".ljust(WIDTH - 1))]), Strip([Segment("ab".ljust(WIDTH))])
    buffer = fresh()
    sent(buffer, layout([wide]))
    assert sent(buffer, layout([narrow])) == "\x1b[1;2Hb "
    assert sent(buffer, layout([wide])) == "\x1b[1;2H世"


def test_textual_still_repaints_what_did_not_change() -> None:
    """Else the frame diff can go."""
    for update in (layout(FRAME), partial(FRAME)):
        assert update.render_segments(console_of()) == update.render_segments(console_of()) != ""


def test_the_shape_of_the_compositor_s_updates_is_known() -> None:
    assert is_layout(layout(FRAME)) and not is_chops(layout(FRAME))
    assert is_chops(partial(FRAME)) and not is_layout(partial(FRAME))
    assert hasattr(App, "_display")


async def test_an_unknown_update_is_painted_by_textual() -> None:
    class Unknown:
        def render_segments(self, console: Console) -> str:
            return "stock"

    app, update = FrameDiffApp[None](), Unknown()
    async with app.run_test():
        app._display(app.screen, update)  # type: ignore[arg-type]
        assert update.render_segments(console_of()) == "stock"


def test_terminfo_decides_whether_blanks_are_erased() -> None:
    code = "from sysbench.tui.textual_patches import erases_with_background as e; print(e())"
    for term, expected in (
        ("xterm-256color", "True"),
        ("screen-256color", "False"),
        ("?", "False"),
    ):
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env={**os.environ, "TERM": term},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected, term


class Stock(App[None]):
    def compose(self) -> Any:
        yield Static("below")


async def test_textual_s_palette_still_crashes_at_a_click_outside() -> None:
    """Else `GuardedPalette.on_click` can go."""
    app = Stock()
    async with app.run_test(size=(30, 8)) as pilot:
        palette = CommandPalette()
        await app.push_screen(palette)
        await pilot.pause()
        with pytest.raises(NoWidget):
            palette._on_click(Click(palette, 19, 9, 0, 0, 1, False, False, False, 19, 9))


async def test_textual_s_palette_still_crashes_without_room() -> None:
    """Else `GuardedPalette._action_command_list` can go."""
    assert hasattr(CommandPalette, "_action_command_list")
    app = Stock()
    with pytest.raises(KeyError):
        async with app.run_test(size=(30, 4)) as pilot:
            await app.push_screen(CommandPalette())
            await pilot.pause()
            await pilot.press("down", "pagedown")


@pytest.mark.skipif(not shutil.which("tmux"), reason="no tmux here")
def test_tmux_shows_the_stock_paint(tmp_path: Path) -> None:
    frame = [
        Strip([Segment("ab" + " " * 20, STYLES[1]), Segment("─" * 18, STYLES[3])]),
        Strip([Segment(" " * 12, STYLES[2]), Segment("世界", STYLES[4]), Segment(" " * 24)]),
        Strip([Segment("█" * 30, STYLES[6]), Segment(" " * 10, STYLES[5])]),
        Strip([Segment("end", STYLES[8]), Segment(" " * 37, STYLES[1])]),
    ]
    console = console_of("256")
    paints = [fresh(can).encode(layout(frame), "form", console) for can in (True, False)]
    # A capture leaves out what is erased behind the last character of a line.
    ends = "".join(f"\x1b[{y};{WIDTH}H|" for y in range(1, HEIGHT + 1))
    paints = [paint + ends for paint in (stock_paint(frame, console), *paints)]
    stock, *others = (shown_by_tmux(tmp_path / str(at), one) for at, one in enumerate(paints))
    assert stock == cells_after(Screen(), paints[0])
    assert others == [stock] * 2


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
    return cells_after(Screen(), "".join(placed))
