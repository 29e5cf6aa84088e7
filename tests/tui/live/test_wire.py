"""Only what changes is sent."""

from __future__ import annotations

from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region
from textual.screen import ModalScreen
from textual.strip import Strip

from sysbench.tui.live.pen import PLAIN, Abilities, Pen
from sysbench.tui.live.wire import Changes, Shown, is_nothing

WIDTH, HEIGHT = 24, 3
CONSOLE = Console(color_system="truecolor", force_terminal=True)


def fresh() -> Shown:
    return Shown(Pen(Abilities()), ColorSystem.TRUECOLOR)


def partial(frame: list[Strip]) -> ChopsUpdate:
    chops = [{0: strip} for strip in frame]
    return ChopsUpdate(chops, [(y, 0, WIDTH) for y in range(HEIGHT)], [[WIDTH]] * HEIGHT)


def layout(frame: list[Strip]) -> LayoutUpdate:
    return LayoutUpdate([[strip] for strip in frame], Region(0, 0, WIDTH, HEIGHT))


def sent(shown: Shown, update: ChopsUpdate | LayoutUpdate, screen: object = None) -> Changes:
    changes = shown.only_changes(update, screen, WIDTH)
    assert isinstance(changes, Changes)
    return changes


FRAME = [Strip([Segment("x" * WIDTH, Style(color="red"))])] * HEIGHT


def test_a_frame_as_it_was_sends_nothing() -> None:
    shown = fresh()
    assert sent(shown, partial(FRAME)).render_segments(CONSOLE)
    for update in (partial([*FRAME]), layout([*FRAME])):
        changes = sent(shown, update)
        assert is_nothing(changes) and changes.render_segments(CONSOLE) == ""
    changed = [*FRAME[1:], Strip([Segment("y" * WIDTH)])]
    assert not is_nothing(sent(shown, partial(changed)))


def test_the_first_layout_of_another_screen_is_sent_whole() -> None:
    shown = fresh()
    sent(shown, layout(FRAME), "form")
    for screen in ("help", "form"):
        assert is_whole(sent(shown, layout(FRAME), screen))
    assert not sent(shown, layout(FRAME), "form").pieces


def test_a_dialog_sends_what_it_covers_and_then_what_it_covered() -> None:
    shown, dialog = fresh(), ModalScreen[None]()
    sent(shown, layout(FRAME), "form")
    red = Style(color="red")
    covered = [FRAME[0], Strip([Segment("x" * 10 + "y" + "x" * 13, red)]), FRAME[2]]
    for screen, frame, char in ((dialog, covered, "y"), ("form", FRAME, "x")):
        ((x, y, ((text, _),)),) = sent(shown, layout(frame), screen).pieces
        assert (x, y, text) == (10, 1, char)


def test_what_is_forgotten_is_sent_whole() -> None:
    shown = fresh()
    sent(shown, layout(FRAME))
    shown.forget()
    assert is_whole(sent(shown, layout(FRAME)))


def is_whole(changes: Changes) -> bool:
    found = [(x, y, len(runs[0][0])) for x, y, runs in changes.pieces]
    return found == [(0, y, WIDTH) for y in range(HEIGHT)]


def test_one_changed_cell_is_a_few_bytes() -> None:
    before = [Strip([Segment("x" * WIDTH)])] * HEIGHT
    shown = fresh()
    sent(shown, layout(before))
    changed = Strip([Segment("x" * 10 + "y" + "x" * 13)])
    update = sent(shown, partial([before[0], changed, before[2]]))
    assert update.pieces == [(10, 1, [("y", PLAIN)])]
    assert update.render_segments(CONSOLE) == "\x1b[2;11Hy"


def test_the_colour_that_a_blank_would_be_written_in_is_no_change() -> None:
    shown = fresh()
    sent(shown, partial([Strip([Segment(" " * WIDTH, Style(color="red", bold=True))])] * HEIGHT))
    assert not sent(shown, partial([Strip([Segment(" " * WIDTH)])] * HEIGHT)).pieces


def test_half_of_a_wide_character_is_never_sent() -> None:
    shown = fresh()
    wide, narrow = Strip([Segment("a世".ljust(WIDTH - 1))]), Strip([Segment("ab".ljust(WIDTH))])
    sent(shown, partial([wide] * HEIGHT))
    for frame, text in ((narrow, "b "), (wide, "世")):
        (first, *_) = sent(shown, partial([frame] * HEIGHT)).pieces
        assert first[0] == 1 and "".join(run for run, _ in first[2]) == text
