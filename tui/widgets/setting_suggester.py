"""Completion of ``key=value`` settings of a spec as they are typed; → accepts it."""

from __future__ import annotations

from textual.suggester import Suggester

from sysbench.core.spec.fields import FIELDS, field_named
from sysbench.core.spec.models import model_presets


class SettingSuggester(Suggester):
    """Completes the last of several settings: its key first, then a value of a closed list."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return completed_setting(value)


def completed_setting(text: str) -> str | None:
    """The text with the rest of the first key or value that fits; None if there is none."""
    _, _, last = text.rpartition(" ")
    key, equals, begun = last.partition("=")
    if not last:
        return None
    if not equals:
        names = [f"{field.name}=" for field in FIELDS if field.name.startswith(key)]
        return text + names[0][len(key) :] if names else None
    known = [field for field in FIELDS if field.name == key]
    if not known:
        return None
    choices = list(model_presets()) if key == "model" else list(field_named(key).choices)
    fitting = [choice for choice in choices if choice.startswith(begun)]
    return text + fitting[0][len(begun) :] if fitting else None
