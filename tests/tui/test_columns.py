"""`?` has a sentence on every column of every table, and shows those where the cursor stands."""

from __future__ import annotations

import ast
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.widgets import Static

from sysbench import core, tui
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.sections import tables_of
from sysbench.tui.app import SysbenchApp
from sysbench.tui.explanations import explain_column
from sysbench.tui.screens.ask_dialog import ExplainScreen
from tests.tui.conftest import open_tab, until

RESULT_FIRST = True
FROZEN = RunDirectory(Path(__file__).parents[1] / "fixtures" / "tiny-cpu")
CORE, TUI = Path(str(core.__path__[0])), Path(str(tui.__path__[0]))
SENTENCES: dict[str, str] = tomllib.loads((TUI / "columns.toml").read_text())
BARS = {" "}
"""The column of bars, which its neighbour has in figures."""


def columns_in(source: Path) -> Iterator[str]:
    """Names of the columns that a module makes: ``Column("a", …)``, ``fields_of(X, "a", "b")``."""
    for node in ast.walk(ast.parse(source.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        name = called.id if isinstance(called, ast.Name) else ""
        given = {
            "Column": node.args[:1],
            "field_of": node.args[1:2],
            "fields_of": node.args[1:],
        }.get(name, [])
        for argument in given:
            texts = argument.value if isinstance(argument, ast.Starred) else argument
            for text in texts.elts if isinstance(texts, ast.Tuple) else [texts]:
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield text.value


def all_columns() -> dict[str, str]:
    """Every column's name, with a module that makes it."""
    modules = [*CORE.glob("tables/**/*.py"), *TUI.glob("widgets/tables/*.py")]
    return {column: module.stem for module in modules for column in columns_in(module)}


def test_every_column_has_a_sentence() -> None:
    found = all_columns()
    assert {"exclusive_ns", "of_roof", "change_ns", "odd"} <= found.keys(), "the scan finds none"
    lacking = {
        column: module
        for column, module in found.items()
        if column not in BARS and not explain_column(module, column)
    }
    assert lacking == {}
    made = [
        (table.name, column) for table in tables_of(FROZEN.record()) for column in table.columns
    ]
    assert [one for one in made if not explain_column(*one)] == []


def test_a_sentence_is_one_sentence_about_something() -> None:
    for name, sentence in SENTENCES.items():
        assert 3 < len(sentence) < 120 and not sentence.endswith("."), name


@pytest.mark.parametrize(
    ("tab", "words"), [("kernels", "time of this row alone"), ("memory", "peak")]
)
async def test_explain_lists_the_columns_of_the_table_in_view(
    app: SysbenchApp, sysbench_home: Path, tab: str, words: str
) -> None:
    run = RunDirectory(sysbench_home / "runs" / "frozen")
    shutil.copytree(FROZEN.path, run.path)
    async with app.run_test(size=(160, 48)) as pilot:
        await open_tab(pilot, app, run, tab)
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, ExplainScreen))
        await pilot.pause()
        text = str(app.screen.query_one("#origins", Static).content)
        assert "Columns of this table" in text and words in text
