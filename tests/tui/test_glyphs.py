"""ASCII terminals get every line, cell for cell."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color

from sysbench.tui.app import SysbenchApp
from sysbench.tui.glyphs import ascii_only, to_ascii
from sysbench.tui.theme import AsciiFilter, PrintableFilter
from tests.cli.reading.test_hostile_records import ATTACK
from tests.tui.conftest import painted

# Zero-width characters never reach the screen alone.
visible = st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Mn", "Me", "Mc", "Cn")))


@given(visible)
def test_translation_is_ascii_and_keeps_the_width(text: str) -> None:
    translated = to_ascii(text)
    assert translated.isascii()
    assert len(translated) == cell_len(text)


def test_lines_blocks_and_braille_become_their_likes() -> None:
    assert to_ascii("╭─ ▁█ ●○ ✓✗ ±0.5 °C µs ⠉⣀⣿ ╯") == "+- -# *o vx ~0.5 'C us '.: +"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "linux"}, True),
        ({"TERM": "linux", "SYSBENCH_ASCII": "0"}, False),
        ({"TERM": "xterm-256color", "SYSBENCH_ASCII": "1"}, True),
    ],
)
def test_the_linux_console_is_ascii_by_default(environment: dict[str, str], expected: bool) -> None:
    assert ascii_only(environment) is expected


def test_a_locale_that_is_not_utf8_is_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locale.getpreferredencoding", lambda _: "ISO-8859-1")
    assert ascii_only({"TERM": "xterm"})


def test_the_filter_keeps_styles() -> None:
    (segment,) = AsciiFilter().apply([Segment("█")], Color.parse("black"))
    assert segment.text == "#"


@settings(max_examples=30)
@given(st.text(max_size=40))
def test_nothing_that_a_terminal_obeys_gets_to_it_and_no_column_moves(text: str) -> None:
    attack = f"{ATTACK}{text}{ATTACK}"
    (segment,) = PrintableFilter().apply([Segment(attack)], Color.parse("black"))
    assert not [char for char in segment.text if unicodedata.category(char) in ("Cc", "Cs", "Zl")]
    assert "\u202e" not in segment.text
    if attack.isascii():
        assert cell_len(segment.text) == cell_len(attack)


async def test_every_painted_line_is_ascii_in_ascii_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSBENCH_ASCII", "1")
    app = SysbenchApp()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        lines = [strip.text for strip in painted(app)]
    assert any("What to run" in line for line in lines)
    assert all(line.isascii() for line in lines)
