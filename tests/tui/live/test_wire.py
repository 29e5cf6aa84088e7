"""Only what changes is sent, and the terminal then shows what the screen does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from sysbench.tui.live.wire import Cell, Changes, Shown, cells_of

WIDTH, HEIGHT = 24, 3
STYLES = [None, Style(color="red"), Style(color="red", bold=True), Style(bgcolor="blue")]
texts = st.text(st.sampled_from("ab █世é▚"), max_size=WIDTH)
lines = st.lists(st.tuples(texts, st.sampled_from(STYLES)), max_size=4).map(
    lambda parts: Strip(
        [Segment(text, style) for text, style in parts]
    ).adjust_cell_length(WIDTH)
)  # fmt: skip
frames = st.lists(st.lists(lines, min_size=HEIGHT, max_size=HEIGHT), min_size=1, max_size=5)


def partial(frame: list[Strip]) -> ChopsUpdate:
    chops = [{0: strip} for strip in frame]
    return ChopsUpdate(chops, [(y, 0, WIDTH) for y in range(HEIGHT)], [[WIDTH]] * HEIGHT)


def sent(shown: Shown, frame: list[Strip]) -> Changes:
    changes = shown.only_changes(partial(frame))
    assert isinstance(changes, Changes)
    return changes


def paint(terminal: list[list[Cell]], changes: Changes) -> None:
    for x, y, strip in changes.pieces:
        cells = cells_of(strip)
        terminal[y][x : x + len(cells)] = cells


@settings(max_examples=60)
@given(frames)
def test_the_terminal_shows_each_frame(moving: list[list[Strip]]) -> None:
    shown = Shown()
    terminal: list[list[Cell]] = [[("?", None)] * WIDTH for _ in range(HEIGHT)]
    for frame in moving:
        paint(terminal, sent(shown, frame))
        assert terminal == [cells_of(strip) for strip in frame]


def test_a_frame_as_it_was_sends_nothing() -> None:
    frame = [Strip([Segment("x" * WIDTH, STYLES[1])])] * HEIGHT
    shown, console = Shown(), Console(color_system="truecolor", force_terminal=True)
    assert sent(shown, frame).render_segments(console)
    assert sent(shown, [*frame]).render_segments(console) == ""


def test_one_changed_cell_is_a_few_bytes() -> None:
    before = [Strip([Segment("x" * WIDTH)])] * HEIGHT
    shown = Shown()
    layout = LayoutUpdate([[strip] for strip in before], Region(0, 0, WIDTH, HEIGHT))
    assert shown.only_changes(layout) is layout
    changed = Strip([Segment("x" * 10 + "y" + "x" * 13)])
    assert sent(shown, [before[0], changed, before[2]]).pieces == [(10, 1, Strip([Segment("y")]))]


def test_half_of_a_wide_character_is_never_sent() -> None:
    shown = Shown()
    sent(shown, [Strip([Segment("a世".ljust(WIDTH - 1))])] * HEIGHT)
    (first, *_) = sent(shown, [Strip([Segment("ab".ljust(WIDTH))])] * HEIGHT).pieces
    assert first[0] == 1 and first[2].text == "b "
    (first, *_) = sent(shown, [Strip([Segment("a世".ljust(WIDTH - 1))])] * HEIGHT).pieces
    assert first[0] == 1 and first[2].text == "世"
