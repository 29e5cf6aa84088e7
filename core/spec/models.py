"""Reads the shipped model presets from ``profiles/models/*.toml``."""

from __future__ import annotations

import difflib
import tomllib
from functools import cache
from importlib import resources

import msgspec

from ..dimensions import Dimensions
from ..errors import SpecError

CUSTOM = "custom"
"""The name of a model whose dimensions were given one by one."""


class ModelPreset(msgspec.Struct, frozen=True, kw_only=True):
    """A named model size.

    Attributes:
        name: Full name, ``family/size``; a family of one size is just its name.
        dimensions: The numbers behind the name.
        note: What a reader of the name should know, or empty.
    """

    name: str
    dimensions: Dimensions
    note: str = ""


@cache
def model_presets() -> dict[str, ModelPreset]:
    """All shipped presets by full name, smallest first within each family."""
    folder = resources.files("sysbench.profiles") / "models"
    presets: dict[str, ModelPreset] = {}
    for entry in sorted(folder.iterdir(), key=lambda item: (item.name != "tiny.toml", item.name)):
        if not entry.name.endswith(".toml"):
            continue
        family = entry.name.removesuffix(".toml")
        for size, table in tomllib.loads(entry.read_text("utf-8")).items():
            name = size if size == family else f"{family}/{size}"
            note = table.pop("note", "")
            dimensions = msgspec.convert(table, Dimensions)
            presets[name] = ModelPreset(name=name, dimensions=dimensions, note=note)
    return presets


def find_model(name: str) -> ModelPreset:
    """The preset of that full name, or of that size when only one family has it.

    Raises:
        SpecError: No such preset, or a bare size that several families have.
    """
    presets = model_presets()
    if name in presets:
        return presets[name]
    matches = [full for full in presets if full.rpartition("/")[2].lower() == name.lower()]
    if len(matches) == 1:
        return presets[matches[0]]
    if matches:
        choices = " or ".join(
            f"{full} ({presets[full].dimensions.parameters:,} parameters)" for full in matches
        )
        raise SpecError("model", name, f"ambiguous, say which: {choices}")
    sizes = [full.rpartition("/")[2] for full in presets]
    close = difflib.get_close_matches(name, [*presets, *sizes], n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise SpecError("model", name, f"no such preset; {hint}known: {', '.join(presets)}")
