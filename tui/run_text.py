"""Words for a run in a list: its age, its state, and the settings that tell it from the others."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sysbench.core.runs.library import Entry
from sysbench.tui.text import amount, outcome_text

if TYPE_CHECKING:
    pass


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


def usual_settings(entries: Sequence[Entry]) -> dict[str, str]:
    """The settings that more than half of these runs have, by key; none for fewer than two."""
    if len(entries) < 2:
        return {}
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        for key, text in settings_of(entry).items():
            counts[key][text] += 1
    usual = {}
    for key, count in counts.items():
        text, times = count.most_common(1)[0]
        if times > len(entries) / 2:
            usual[key] = text
    return usual


def spec_text(entry: Entry, usual: dict[str, str]) -> str:
    """The settings of a run that are not the usual ones, in the order of a headline."""
    own = settings_of(entry)
    words = [text for key, text in own.items() if text and usual.get(key) != text]
    # A key beside the main ones is there only where it is not at its default.
    words += [f"{key.replace('_', ' ')} default" for key in usual if key not in own]
    return " · ".join(words)
