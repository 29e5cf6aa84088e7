"""Reads columns of integers and texts out of an nsys SQLite export that nobody vouches for.

The file decides nothing but its data: only plain tables and plain columns are read, no view,
trigger or computed column of its making runs, and a page tree that leads in circles ends where
it has more rows or more text than a file of its size has room for.
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

from ...errors import DamagedFileError, NotFoundError

NULL = int(np.iinfo(np.int64).min)
"""Stands for SQL's null in columns of integers."""

SMALLEST_ROW_BYTES = 8
HANDLER_STEPS = 100_000
FREE_STEPS = 10_000_000
STEPS_PER_BYTE = 32
"""Of SQLite's virtual machine, for all queries together: real exports take less than one a byte."""
LONGEST_VALUE_BYTES = 2**26
MOST_PARAMETERS = 500
ROWS_AT_ONCE = 2**14

Integers = NDArray[np.int64]
Progress = Callable[[int, int], None]
"""Told the rows read so far, and how many there are to read."""


@contextmanager
def open_export(path: Path, progress: Progress | None = None) -> Iterator[ExportFile]:
    """Open an export read-only; whatever SQLite objects to in the block is a damaged file.

    Args:
        path: The export.
        progress: Told how far the reading of what is `expect`ed is.

    Raises:
        NotFoundError: There is no such file, or it may not be read.
        DamagedFileError: Not a database, damaged, or made to do harm.
    """
    try:
        with path.open("rb"):
            size = path.stat().st_size
        # Immutable: no lock, no journal beside it is looked at, nothing is ever written.
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            yield ExportFile(database, path, size, progress)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except (sqlite3.Error, ValueError) as error:  # a name that is no text is a ValueError
        raise DamagedFileError(f"{path} is not a whole nsys export: {error}") from error


class ExportFile:
    """An open export.

    Attributes:
        tables: The names of its plain tables.
    """

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
        self._most_rows = size // SMALLEST_ROW_BYTES
        self._most_steps = FREE_STEPS + STEPS_PER_BYTE * size
        self._steps = self._text_bytes = 0
        database.text_factory = self._text
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE_BYTES)
        database.set_progress_handler(self._count_steps, HANDLER_STEPS)
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        # Views and virtual tables have no root page.
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        self.tables = {str(name) for (name,) in self._rows(query)}

    def expect(self, tables: Sequence[str]) -> None:
        """Say which tables will be read, each as often as it will be: of these is the progress."""
        self._rows_expected = sum(self._last_row(table) for table in tables)

    def integers(
        self, table: str, required: Sequence[str], optional: Sequence[str] = ()
    ) -> dict[str, Integers]:
        """Columns of a table by name, all empty if there is no such table.

        Optional columns may be absent or null, which reads as NULL.

        Raises:
            DamagedFileError: A required column is absent, or holds what is no integer.
        """
        known = self._columns_of(table)
        absent = ", ".join(name for name in required if name not in known)
        if known and absent:
            raise DamagedFileError(f"{self.path}: its table {table} has no column {absent}")
        null = f"{NULL + 1} - 1"
        terms = [f'"{name}"' for name in required]
        terms += [f'COALESCE("{name}", {null})' if name in known else null for name in optional]
        # By no index: its order would be another one, for some columns and not for others.
        query = f'SELECT {", ".join(terms)} FROM "{table}" NOT INDEXED'
        rows = self._rows(query) if known else iter(())
        parts = []
        try:
            while len(part := np.fromiter(chain.from_iterable(self._some(rows)), np.int64)):
                parts.append(part.reshape(-1, len(terms)))
                self._tell(len(parts[-1]))
        except (TypeError, ValueError, OverflowError) as error:
            raise DamagedFileError(
                f"{self.path} is damaged: its table {table} has a value that is no integer"
            ) from error
        columns = np.concatenate([np.empty((0, len(terms)), np.int64), *parts]).T.copy()
        return dict(zip((*required, *optional), columns, strict=True))

    def texts(self, table: str, column: str) -> list[str | None]:
        """One column of texts, as many as `integers` has rows; null where it has no text."""
        known = self._columns_of(table)
        if not known:
            return []
        term = f'"{column}"' if column in known else "NULL"
        rows = self._rows(f'SELECT {term} FROM "{table}" NOT INDEXED')
        texts: list[str | None] = []
        while some := [value if isinstance(value, str) else None for (value,) in self._some(rows)]:
            texts += some
            self._tell(len(some))
        return texts

    def strings(self, ids: Integers) -> dict[int, str]:
        """Texts of StringIds by their id; those that are not there are left out."""
        if not {"id", "value"} <= self._columns_of("StringIds"):
            return {}
        found: dict[int, str] = {}
        wanted = np.unique(ids[ids != NULL]).tolist()
        for begin in range(0, len(wanted), MOST_PARAMETERS):
            some = wanted[begin : begin + MOST_PARAMETERS]
            marks = ", ".join("?" * len(some))
            query = f'SELECT "id", "value" FROM "StringIds" WHERE "id" IN ({marks})'
            rows = self._rows(query, some)
            found.update((key, text) for key, text in rows if isinstance(text, str))
        return found

    def facts(self, table: str) -> dict[str, str]:
        """A table of names and values, such as META_DATA_EXPORT; empty if there is none."""
        if not {"name", "value"} <= self._columns_of(table):
            return {}
        rows = self._rows(f'SELECT "name", "value" FROM "{table}"')
        return {
            name: text for name, text in rows if isinstance(name, str) and isinstance(text, str)
        }

    def _rows(self, query: str, parameters: Sequence[int] = ()) -> Iterator[tuple[Any, ...]]:
        """What a query finds, held one at a time: a few values may fill the memory."""
        self._text_bytes = 0
        cursor = self._database.execute(query, parameters)
        return chain(islice(cursor, self._most_rows), self._nothing_of(cursor))

    def _some(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """The next rows, of which the progress is then told."""
        return islice(rows, ROWS_AT_ONCE)

    def _tell(self, rows: int) -> None:
        self._rows_read += rows
        if self._progress is not None:
            self._progress(self._rows_read, self._rows_expected)

    def _last_row(self, table: str) -> int:
        """The number of a table's last row: its rows, if none was deleted; 0 if it is not known.

        Counting them would read the whole table, in one step that nothing can end.
        """
        if table not in self.tables:
            return 0
        try:
            ((last,),) = self._database.execute(f'SELECT max(rowid) FROM "{table}"')
        except sqlite3.OperationalError:  # it has no such numbers
            return 0
        return min(last, self._most_rows) if isinstance(last, int) and last > 0 else 0

    def _nothing_of(self, cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
        """No rows, once it is known that there are no more."""
        for _ in cursor:
            raise DamagedFileError(f"{self.path} is damaged: it has more rows than room")
        yield from ()

    def _count_steps(self) -> bool:
        """Ends the query under way, and those after it, by returning true."""
        self._steps += HANDLER_STEPS
        return self._steps > self._most_steps

    def _text(self, encoded: bytes) -> str:
        """A text that a query found; no query finds more of them than the file can hold."""
        self._text_bytes += len(encoded)
        if self._text_bytes > self._size:
            raise DamagedFileError(f"{self.path} is damaged: it has more text than room")
        return encoded.decode("utf-8", "replace")

    def _columns_of(self, table: str) -> set[str]:
        """Without hidden and computed columns; empty if there is no such table."""
        if table not in self.tables:
            return set()
        rows = self._rows(f'PRAGMA table_xinfo("{table}")')
        return {str(row[1]) for row in rows if row[6] == 0}
