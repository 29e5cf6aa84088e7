"""Explanations of the numbers on the screens, from ``explanations.toml``."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Explanation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a number is computed.

    Attributes:
        title: Name on the screens.
        formula: As a formula or in words.
        clock: Clock or counter.
        source: Pass or file.
        included: What counts, and what does not.
    """

    title: str
    formula: str
    clock: str
    source: str
    included: str


def _read(path: Path) -> dict[str, Explanation]:
    areas = msgspec.toml.decode(path.read_bytes(), type=dict[str, dict[str, Explanation]])
    return {
        f"{area}.{name}": entry for area, names in areas.items() for name, entry in names.items()
    }


@cache
def _columns() -> dict[str, str]:
    return msgspec.toml.decode(Path(__file__).with_name("columns.toml").read_bytes(), type=dict)


def explain_column(table: str, column: str) -> str:
    """Explain a column of a table; empty if its name is a value of the data, such as a run."""
    columns = _columns()
    return columns.get(f"{table}.{column}") or columns.get(column, "")


EXPLANATIONS = _read(Path(__file__).with_suffix(".toml"))
