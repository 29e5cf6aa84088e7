"""Sources are parsed once, and again for other colours."""

from __future__ import annotations

import pytest
from textual.color import Color
from textual.css.stylesheet import StylesheetParseError

from sysbench.tui.app import SysbenchApp
from sysbench.tui.theme import OnceParsed


def sheet_of(*sources: str) -> OnceParsed:
    sheet = OnceParsed(variables={"tone": "red"})
    for number, source in enumerate(sources):
        sheet.add_source(source, read_from=(str(number), ""))
    sheet.reparse()
    return sheet


def test_a_source_is_parsed_once() -> None:
    sheet = sheet_of("Label { color: $tone; }")
    (rule,) = sheet.rules
    sheet.set_variables({"tone": "red"})
    sheet.add_source("Input { color: $tone; }", read_from=("later", ""))
    sheet.reparse()
    assert sheet.rules[0] is rule
    assert len(sheet.rules) == 2


def test_other_variables_are_seen() -> None:
    sheet = sheet_of("Label { color: $tone; }")
    assert sheet.rules[0].styles.color == Color.parse("red")
    sheet.set_variables({"tone": "blue"})
    sheet.reparse()
    assert sheet.rules[0].styles.color == Color.parse("blue")


def test_a_mistake_leaves_the_rules_as_they_were() -> None:
    sheet = sheet_of("Label { color: $tone; }")
    before = list(sheet.rules)
    sheet.add_source("Label { colour: red; }", read_from=("wrong", ""))
    with pytest.raises(StylesheetParseError):
        sheet.reparse()
    assert sheet._rules == before


async def test_a_theme_restyles_what_is_shown(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        before = app.screen.styles.background
        app.theme = "textual-light"
        await pilot.pause()
        assert app.screen.styles.background != before
