"""The kernel table on the screen: every column that the core table has is there."""

from __future__ import annotations

from sysbench.core.tables.kernels import KERNEL_COLUMNS
from sysbench.tui.widgets.tables.kernel_table import IN_DETAIL, ORDER


def test_every_column_is_shown_or_in_the_line_of_the_row() -> None:
    names = [column.name for column in KERNEL_COLUMNS]
    assert sorted((*ORDER, *IN_DETAIL)) == sorted(names)
