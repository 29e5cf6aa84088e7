"""What differs between two runs: causes, and how they were measured."""

from __future__ import annotations

from textual import getters
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from sysbench.core.compare.comparison import Comparison, describe_factors
from sysbench.core.tables.cells import literal
from sysbench.core.tables.verdict_sides import factor_table
from sysbench.tui.keys import give_focus
from sysbench.tui.screens.compare_text import QUIET
from sysbench.tui.widgets.table_view import TableView


class DiffersView(Vertical):
    """One row for each setting or fact of the machine that differs."""

    table = getters.query_one(TableView)

    def compose(self) -> ComposeResult:
        yield Static(id="causes", markup=False)
        table = TableView(flexible="B")
        table.add_class("panel")
        table.border_title = "Differs"
        yield table

    def show(self, comparison: Comparison) -> None:
        """Show the factors of this comparison."""
        self.table.show(factor_table(comparison.factors, comparison.procedure))
        words = describe_factors(comparison.factors)
        if comparison.a == comparison.b:
            words = "A and B are one run."
        self.query_one("#causes", Static).update(Content.styled(literal(words), QUIET))

    def start_focus(self) -> None:
        """Put the focus where the keys of the table work."""
        give_focus(self.table)
