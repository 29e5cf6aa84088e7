"""Tables as CSV: a folder with one file a table, or one tidy file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from ..tables.table import Table


def table_as_csv(table: Table) -> bytes:
    """One table with a header line; null is an empty field, numbers are not rounded."""
    return _encode([table.columns, *table.rows])


def tables_as_tidy_csv(tables: Iterable[Table]) -> bytes:
    """All tables in one: a line per cell, with ``table``, ``row``, ``column``, ``value``."""
    lines = [
        (table.name, index, column, value)
        for table in tables
        for index, row in enumerate(table.rows)
        for column, value in zip(table.columns, row, strict=True)
    ]
    return _encode([("table", "row", "column", "value"), *lines])


def _encode(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
