"""Completion of a path as it is typed; → accepts it."""

from __future__ import annotations

import asyncio
import os

from textual.suggester import Suggester

MOST_NAMES = 10_000
"""Most names of a folder that are read."""


class PathSuggester(Suggester):
    """Suggests the folder's first name with the typed beginning; folders end in a slash."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return await asyncio.to_thread(completed, value)


def completed(text: str) -> str | None:
    """The text with the rest of the first name that fits; None if there is none.

    Hidden names are offered only after their dot.
    """
    folder, _, begun = text.rpartition("/")
    if not begun:
        return None
    place = os.path.expanduser(folder + "/") if "/" in text else "."
    fitting = []
    try:
        with os.scandir(place) as entries:
            for _, entry in zip(range(MOST_NAMES), entries, strict=False):
                if entry.name.startswith(begun) and entry.name.isprintable():
                    fitting.append(entry.name + "/" * entry.is_dir())
    except (OSError, ValueError):  # ValueError: a zero byte
        return None
    first = min(fitting, default=None)
    return None if first is None else text + first[len(begun) :]
