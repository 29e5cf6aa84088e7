"""The rows of a trace, with their categories' swatches."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from sysbench.core.tables.trust import PERTURBED_MARK, mark_perturbed
from sysbench.tui.theme import Swatch, rich_colour
from sysbench.tui.widgets.table_view import TableView

SWATCH_WIDTH = 2


class KernelTable(TableView):
    """Rows with the swatch of their category, the same as in the bar above.

    With ``perturbed`` the times are marked and dim: tracing perturbed them too much.
    """

    def __init__(self, looks: Mapping[str, Swatch], *, perturbed: bool) -> None:
        super().__init__()
        self._looks = looks
        self._perturbed = perturbed

    def extra_cells(self, column: str) -> int:
        if column == "category":
            return SWATCH_WIDTH
        return perturbed_room(column, perturbed=self._perturbed)

    def cell(self, column: str, row: int, text: str) -> Text:
        look = self._looks.get(text.removesuffix(" (fused)")) if column == "category" else None
        if look is None:
            return perturbed_cell(column, text, perturbed=self._perturbed)
        return Text.assemble((look.glyph, rich_colour(self.app, look.colour)), " ", text)


def perturbed_cell(column: str, text: str, *, perturbed: bool) -> Text:
    """A cell as it is; marked and dim where it is a time that tracing perturbed."""
    if perturbed and column.endswith("_ns"):
        return Text(mark_perturbed(text), style="dim")
    return Text(text)


def perturbed_room(column: str, *, perturbed: bool) -> int:
    """Cells that the mark of a perturbed time takes."""
    return len(PERTURBED_MARK) if perturbed and column.endswith("_ns") else 0
