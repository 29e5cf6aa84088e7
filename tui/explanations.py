"""The origin of each number on the screens, read from ``explanations.toml``."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Explanation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number's origin.

    Attributes:
        title: The number as the screens call it.
        formula: The computation, as a formula or in words.
        clock: The clock or the counter that it comes from.
        source: The pass or file that it comes from.
        included: The things that count, and those that do not.
    """

    title: str
    formula: str
    clock: str
    source: str
    included: str


def _read(path: Path) -> dict[str, Explanation]:
    """The tables of the file by ``area.number``."""
    areas = msgspec.toml.decode(path.read_bytes(), type=dict[str, dict[str, Explanation]])
    return {
        f"{area}.{name}": entry for area, names in areas.items() for name, entry in names.items()
    }


EXPLANATIONS = _read(Path(__file__).with_suffix(".toml"))
