"""What differs between two runs: causes, and how they were measured."""

from __future__ import annotations

from collections.abc import Sequence

from textual import getters
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from ....core.analysis.compare import Comparison, Factor
from ....core.tables.cells import one_figure
from ....core.tables.table import Table
from ...keys import give_focus
from ...widgets.tables.table_view import TableView
from .text import QUIET

CAUSE, PROCEDURE = "may be the cause", "only how long it was measured"


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
        self.query_one("#causes", Static).update(Content.styled(causes_words(comparison), QUIET))

    def start_focus(self) -> None:
        """Put the focus where the keys of the table work."""
        give_focus(self.table)


def causes_words(comparison: Comparison) -> str:
    """What the number of factors means for the change."""
    if comparison.a == comparison.b:
        return "A and B are one run."
    match len(comparison.factors):
        case 0:
            return "Nothing that could be a cause differs: the same work on the same machine."
        case 1:
            return "One factor differs: no other setting can be the cause of a change."
        case count:
            return f"{count} factors differ: a change has no single cause."


def factor_table(factors: Sequence[Factor], procedure: Sequence[Factor]) -> Table:
    """The factors, those that may be causes first."""
    rows = [
        (factor.name, one_figure(factor.name, factor.a), one_figure(factor.name, factor.b), what)
        for what, some in ((CAUSE, factors), (PROCEDURE, procedure))
        for factor in some
    ]
    return Table(
        name="factors", title="What differs", columns=("factor", "A", "B", "what"), rows=tuple(rows)
    )
