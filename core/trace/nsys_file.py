"""Reader of integer and text columns of an nsys SQLite export from an untrusted source.

The file controls only data: only plain tables and columns are read, so no view, trigger or computed
column runs. A cyclic page tree is rejected when it returns more rows or text than a file of its
size can contain.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sysbench.core.errors import DamagedFileError, NotFoundError

NULL = int(np.iinfo(np.int64).min)
"""SQL NULL in columns of integers."""

MIN_ROW_BYTES = 8
HANDLER_STEPS = 100_000
FREE_STEPS = 10_000_000
STEPS_PER_BYTE = 32
"""Maximum steps of SQLite's virtual machine per byte of the file; real exports need less than
one."""
MAX_VALUE_BYTES = 2**26
MAX_PARAMETERS = 500
ROWS_AT_ONCE = 2**14

Integers = NDArray[np.int64]
Progress = Callable[[int, int], None]
"""Called with the number of rows read so far and in total."""


@contextmanager
def open_export(path: Path, progress: Progress | None = None) -> Iterator[ExportFile]:
    """Open an export read-only; SQLite errors inside the block become DamagedFileError.

    Raises:
        NotFoundError: The file does not exist or is not readable.
        DamagedFileError: The file is no database, damaged, or hostile.
    """
    try:
        with path.open("rb"):
            size = path.stat().st_size
        # Immutable: takes no lock, reads no journal next to the file, never writes.
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            yield ExportFile(database, path, size, progress)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except (sqlite3.Error, ValueError) as error:  # a name that is no text is a ValueError
        raise DamagedFileError(f"{path} is not a whole nsys export: {error}") from error


class ExportFile:
    def __init__(
        self,
        database: sqlite3.Connection,
        path: Path,
        size: int,
        progress: Progress | None = None,
    ) -> None:
        self.path = path
        self._progress = progress
        self._rows_read = self._rows_expected = 0
        self._database = database
        self._size = size
        self._most_rows = size // MIN_ROW_BYTES
        self._most_steps = FREE_STEPS + STEPS_PER_BYTE * size
        self._steps = self._text_bytes = 0
        database.text_factory = self._text
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        database.set_progress_handler(self._count_steps, HANDLER_STEPS)
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        # Views and virtual tables have no root page.
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        self.tables = {str(name) for (name,) in self._rows(query)}

    def expect(self, tables: Sequence[str]) -> None:
        """Add the rows of these tables to the total of the progress."""
        self._rows_expected = sum(self._last_row(table) for table in tables)

    def integers(
        self, table: str, required: Sequence[str], optional: Sequence[str] = ()
    ) -> dict[str, Integers]:
        """Read columns of a table by name, empty if there is no such table.

        Optional columns may be absent or null, which reads as NULL.

        Raises:
            DamagedFileError: A required column is absent, or a value is no integer.
        """
        columns = self._columns_of(table)
        absent = ", ".join(name for name in required if name not in columns)
        if columns and absent:
            raise DamagedFileError(f"{self.path}: its table {table} has no column {absent}")
        null = f"{NULL + 1} - 1"  # the literal negates a number that does not fit 64 bits
        terms = [f'"{name}"' for name in required]
        terms += [f'COALESCE("{name}", {null})' if name in columns else null for name in optional]
        # Without an index, which could give the rows of different queries in different orders.
        query = f'SELECT {", ".join(terms)} FROM "{table}" NOT INDEXED'
        rows = self._rows(query) if columns else iter(())
        parts = []
        try:
            while len(part := np.fromiter(chain.from_iterable(self._next(rows)), np.int64)):
                parts.append(part.reshape(-1, len(terms)))
                self._advance(len(parts[-1]))
        except (TypeError, ValueError, OverflowError) as error:
            raise DamagedFileError(
                f"{self.path} is damaged: its table {table} has a value that is no integer"
            ) from error
        # Copied, so that each column lies in one piece.
        values = np.concatenate([np.empty((0, len(terms)), np.int64), *parts]).T.copy()
        return dict(zip((*required, *optional), values, strict=True))

    def texts(self, table: str, column: str) -> list[str | None]:
        """Read one text column, row by row as `integers`; None for other values."""
        columns = self._columns_of(table)
        if not columns:
            return []
        term = f'"{column}"' if column in columns else "NULL"
        rows = self._rows(f'SELECT {term} FROM "{table}" NOT INDEXED')
        texts: list[str | None] = []
        while part := [value if isinstance(value, str) else None for (value,) in self._next(rows)]:
            texts += part
            self._advance(len(part))
        return texts

    def strings(self, ids: Integers) -> dict[int, str]:
        """Read StringIds by id."""
        if not {"id", "value"} <= self._columns_of("StringIds"):
            return {}
        strings: dict[int, str] = {}
        wanted = np.unique(ids[ids != NULL]).tolist()
        for begin in range(0, len(wanted), MAX_PARAMETERS):
            batch = wanted[begin : begin + MAX_PARAMETERS]
            marks = ", ".join("?" * len(batch))
            query = f'SELECT "id", "value" FROM "StringIds" WHERE "id" IN ({marks})'
            rows = self._rows(query, batch)
            strings.update((key, text) for key, text in rows if isinstance(text, str))
        return strings

    def facts(self, table: str) -> dict[str, str]:
        """Read a table of names and values, such as META_DATA_EXPORT; empty if absent."""
        if not {"name", "value"} <= self._columns_of(table):
            return {}
        rows = self._rows(f'SELECT "name", "value" FROM "{table}"')
        return {
            name: text for name, text in rows if isinstance(name, str) and isinstance(text, str)
        }

    def _rows(self, query: str, parameters: Sequence[int] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield rows one by one: a few long values could fill the memory."""
        self._text_bytes = 0
        cursor = self._database.execute(query, parameters)
        return chain(islice(cursor, self._most_rows), self._check_exhausted(cursor))

    def _next(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        return islice(rows, ROWS_AT_ONCE)

    def _advance(self, rows: int) -> None:
        self._rows_read += rows
        if self._progress is not None:
            self._progress(self._rows_read, self._rows_expected)

    def _last_row(self, table: str) -> int:
        """Return the last row id, about the number of rows; 0 if unknown.

        Counting rows would read the whole table in one step that cannot be interrupted.
        """
        if table not in self.tables:
            return 0
        try:
            ((last,),) = self._database.execute(f'SELECT max(rowid) FROM "{table}"')
        except sqlite3.OperationalError:  # a table WITHOUT ROWID
            return 0
        return min(last, self._most_rows) if isinstance(last, int) and last > 0 else 0

    def _check_exhausted(self, cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
        for _ in cursor:
            raise DamagedFileError(f"{self.path} is damaged: it has more rows than room")
        yield from ()

    def _count_steps(self) -> bool:
        """Count steps; returning true aborts the query."""
        self._steps += HANDLER_STEPS
        return self._steps > self._most_steps

    def _text(self, encoded: bytes) -> str:
        """Decode a text; the texts of a query cannot be longer than the file."""
        self._text_bytes += len(encoded)
        if self._text_bytes > self._size:
            raise DamagedFileError(f"{self.path} is damaged: it has more text than room")
        return encoded.decode("utf-8", "replace")

    def _columns_of(self, table: str) -> set[str]:
        """Return a table's plain columns, not hidden or computed."""
        if table not in self.tables:
            return set()
        rows = self._rows(f'PRAGMA table_xinfo("{table}")')
        return {str(row[1]) for row in rows if row[6] == 0}
