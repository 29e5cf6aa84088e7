"""Rows of tables as a reader chooses them, each with a key by which it is found again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypedDict

import msgspec

from sysbench.core.errors import NotFoundError, SpecError
from sysbench.core.formatting import did_you_mean
from sysbench.core.tables.table import Cell, Row, Table, facts, is_number, select, with_column


class RowChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Rows and columns of tables to show, by default all.

    Attributes:
        top: Maximum number of rows.
        fields: Names of columns.
        min_share: Leave out rows whose ``share`` is below this; an unknown share stays.
    """

    top: int | None = None
    fields: tuple[str, ...] = ()
    min_share: float = 0.0


EVERY_ROW = RowChoice()


def choose(tables: Sequence[Table], choice: RowChoice) -> list[Table]:
    """Return the chosen rows and columns; tables without any of the columns are left out.

    Raises:
        SpecError: A column that no table has.
    """
    _check_fields(tables, choice)
    return [_chosen(table, choice) for table in tables if _has_fields(table, choice)]


def _check_fields(tables: Sequence[Table], choice: RowChoice) -> None:
    known = dict.fromkeys(name for table in tables for name in table.columns)
    for name in choice.fields if tables else ():
        if name not in known:
            hint = did_you_mean(name, known).strip() or f"columns: {', '.join(known)}"
            raise SpecError("--fields", name, hint)


def _has_fields(table: Table, choice: RowChoice) -> bool:
    return not choice.fields or bool(set(choice.fields) & set(table.columns))


def _chosen(table: Table, choice: RowChoice) -> Table:
    rows = table.rows
    if choice.min_share and "share" in table.columns:
        place = table.index("share")
        rows = tuple(
            row for row in rows if not is_number(share := row[place]) or share >= choice.min_share
        )
    table = msgspec.structs.replace(table, rows=rows[: choice.top])
    fields = [name for name in choice.fields if name in table.columns]
    return select(table, fields) if fields else table


KEY = "key"
KEYED_BY = {
    "runs": ("id",),
    "findings": ("rule",),
    "tree": ("path",),
    "kernels": ("phase", "category", "module", "op", "name"),
}
"""Columns that name a row; in other tables all texts do."""
NAME = re.compile(r"[\w.-]{1,40}")


def row_keys(table: Table) -> list[str]:
    """Return a key per row: the table's name, and the row's name or a digest of its texts.

    Rows with the same texts have the same key in every document and of every run; within a table
    the second is ``KEY~2``.
    """
    named = [name for name in KEYED_BY.get(table.name, ()) if name in table.columns]
    places = [table.index(name) for name in named] or range(len(table.columns))
    seen: Counter[str] = Counter()
    keys = []
    for row in table.rows:
        texts = [text for place in places if isinstance(text := row[place], str) and text]
        name = texts[0] if len(texts) == 1 and NAME.fullmatch(texts[0]) else _digest(texts)
        key = f"{table.name}:{name}"
        seen[key] += 1
        keys.append(key if seen[key] == 1 else f"{key}~{seen[key]}")
    return keys


def _digest(texts: Sequence[str]) -> str:
    return blake2b("\0".join(texts).encode(errors="replace"), digest_size=5).hexdigest()


class Listing(TypedDict):
    """A table in a JSON document; ``total`` is the number of rows before any was left out."""

    title: str
    total: int
    truncated: bool
    rows: list[dict[str, Cell]]


def listings(tables: Sequence[Table], choice: RowChoice = EVERY_ROW) -> dict[str, Listing]:
    """Return the chosen rows by the tables' names, each with its ``key``.

    Raises:
        SpecError: A column that no table has.
    """
    _check_fields(tables, choice)
    documents = {}
    fields = choice.fields and (KEY, *choice.fields)
    for table in tables:
        if _has_fields(table, choice):
            keyed = with_column(table, KEY, row_keys(table))
            shown = _chosen(keyed, msgspec.structs.replace(choice, fields=fields))
            documents[table.name] = Listing(
                title=table.title,
                total=len(table.rows),
                truncated=len(shown.rows) < len(table.rows),
                rows=[*shown.mappings()],
            )
    return documents


@dataclass(frozen=True, slots=True)
class RowFacts:
    """All columns of one row, and the rows of other tables that name the same thing."""

    row: Table
    related: list[Table]


SUBJECTS = ("path", "name", "rule", "module")
"""Columns whose text is what a row is about, the first one that a row has."""


def row_facts(tables: Sequence[Table], key: str) -> RowFacts:
    """Return what the tables contain about the row with this key.

    Raises:
        NotFoundError: No row has the key.
    """
    wanted = key.partition(":")[0]
    for table in tables:
        keys = row_keys(table) if table.name == wanted else []
        if key in keys:
            place = keys.index(key)
            break
    else:
        close = [name for table in tables if table.name == wanted for name in row_keys(table)]
        hint = did_you_mean(key, close[:2000]).strip() or "rows have `key` in --section NAME --json"
        raise NotFoundError(f"no row {key}: {hint}")
    cells = table.mapping(place)
    subject = next((cells[name] for name in SUBJECTS if cells.get(name)), None)
    related = []
    for other in tables:
        rows = tuple(
            row
            for index, row in enumerate(other.rows)
            if (other is not table or index != place) and _names(row, subject)
        )
        if rows:
            related.append(msgspec.structs.replace(other, rows=rows))
    return RowFacts(facts("row", f"{table.title}: {key}", cells), related)


def _names(row: Row, subject: Cell) -> bool:
    """Return whether a cell is the subject or a part of it: ``blocks.0`` has ``blocks.0.ffn``."""
    return isinstance(subject, str) and any(
        isinstance(cell, str)
        and (cell == subject or cell.startswith((f"{subject}.", f"{subject}/")))
        for cell in row
    )
