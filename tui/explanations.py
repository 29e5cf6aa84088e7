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


EXPLANATIONS = _read(Path(__file__).with_suffix(".toml"))
