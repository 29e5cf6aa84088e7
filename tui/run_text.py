"""Words for a run in a list: its age, its state, and the settings that tell it from the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..core.runs.library import Entry
from .text import amount, outcome_text

MINUTE, HOUR, DAY = 60, 3600, 86400


def state_text(entry: Entry) -> str:
    """The state of a run in a word or two, the same on every screen and in `list`."""
    return "live" if entry.live else outcome_text(entry.status)


def now_ns() -> int:
    """The instant that ages are counted to, Unix epoch."""
    return time.time_ns()


def age(created_ns: int) -> str:
    """The time since a run was made: ``4 min ago``, ``1 h ago``; a date after four weeks."""
    seconds = (now_ns() - created_ns) // 10**9
    if seconds < 0 or seconds >= 28 * DAY:  # a clock that was set, or long ago
        return time.strftime("%Y-%m-%d", time.localtime(created_ns / 1e9))
    if seconds < MINUTE:
        return "just now"
    unit, length = next(
        (unit, length)
        for unit, length in (("d", DAY), ("h", HOUR), ("min", MINUTE))
        if seconds >= length
    )
    return f"{seconds // length} {unit} ago"


def settings_of(entry: Entry) -> dict[str, str]:
    """What decides a run's numbers, by key, in the words of a list; blank has no say in it."""
    words = {
        "model": entry.model,
        # A model of the user's may decide these itself.
        "batch": f"B{entry.batch}" if entry.batch else "",
        "context": f"ctx {entry.context}" if entry.context else "",
        "precision": entry.precision,
        "attention": entry.attention,
        "step": entry.step,
        "optimizer": entry.optimizer if entry.step == "train" else "",
        "compile": "eager" if entry.compile == "off" else f"compile {entry.compile}",
        "device": entry.device_name,
    }
    return words | {key: _setting(key, value) for key, value in sorted(entry.settings.items())}


def _setting(key: str, value: Any) -> str:
    if key == "memory_limit":
        return f"limit {amount(value)}"
    return f"{key.replace('_', ' ')} {value}"


def shared_settings(entries: Sequence[Entry]) -> dict[str, str]:
    """The settings in which all these runs agree."""
    every = [settings_of(entry) for entry in entries]
    if not every:
        return {}
    return {
        key: text for key, text in every[0].items() if all(one.get(key) == text for one in every)
    }


def spec_text(entry: Entry, shared: dict[str, str]) -> str:
    """The settings of a run that are not shared by all, in the order of a headline."""
    own = settings_of(entry)
    return " · ".join(text for key, text in own.items() if text and key not in shared)
