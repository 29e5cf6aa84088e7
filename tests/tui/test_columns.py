"""`?` has a sentence about every column of every table, and shows those of the focused table."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sysbench import core, tui
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.section_tables import tables_of
from sysbench.core.tables.table import MEANINGS
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.ask_dialog import ExplainScreen
from sysbench.tui.widgets.drawing import Folding
from tests.tui.conftest import open_tab, until

RESULT_FIRST = True
FROZEN = RunDirectory(Path(__file__).parents[1] / "fixtures" / "tiny-cpu")
CORE, TUI = Path(str(core.__path__[0])), Path(str(tui.__path__[0]))


def columns_in(source: Path) -> Iterator[tuple[str, str | None]]:
    """Columns that a module makes, each with its ``about`` as source text; None without one."""
    for node in ast.walk(ast.parse(source.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        name = called.id if isinstance(called, ast.Name) else ""
        words = {str(word.arg): ast.unparse(word.value) for word in node.keywords}
        if name == "Column":
            column = ast.unparse(node.args[0]).strip("'")
            yield column, words.get("about") or meaning_of(column)
        elif name in ("columns_for", "tabulate"):
            names = [part.value for part in node.args if isinstance(part, ast.Constant)]
            yield from ((str(column), meaning_of(str(column))) for column in names)


def meaning_of(column: str) -> str | None:
    return repr(MEANINGS[column]) if column in MEANINGS else None


def all_columns() -> dict[tuple[str, str], str | None]:
    """The ``about`` of every column, by module and name."""
    modules = [*CORE.glob("tables/*.py"), *TUI.glob("widgets/*.py")]
    return {
        (module.stem, column): about
        for module in modules
        if module.stem != "table"
        for column, about in columns_in(module)
    }


def test_every_column_has_a_sentence() -> None:
    columns = all_columns()
    names = {name for _, name in columns}
    assert {"exclusive_ns", "of_roof", "change_ns", "odd"} <= names, "the scan finds none"
    assert [column for column, about in columns.items() if not about and column[1] != "BAR"] == []
    tables = tables_of(FROZEN.record())
    assert [(table.name, set(table.columns) - table.about.keys()) for table in tables] == [
        (table.name, set()) for table in tables
    ]


def test_a_sentence_is_short_and_has_no_full_stop() -> None:
    sentences = {about for about in all_columns().values() if about and about[0] in "'\""}
    assert len(sentences) > 150
    for sentence in map(ast.literal_eval, sentences):
        assert 3 < len(sentence) < 120 and not sentence.endswith("."), sentence


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
        text = str(app.screen.query_one("#text", Folding).render())
        assert "Columns of this table" in text and words in text
        # On a wide screen the text stands beside the table, on others in the middle.
        dialog = app.screen.query_one(".dialog")
        assert dialog.region.x > 80 and dialog.region.right == 160
        await pilot.resize_terminal(100, 48)
        await until(pilot, lambda: dialog.region.right < 100)
