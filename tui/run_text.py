"""Texts for plans and for runs in a list: age, state, and settings that differ."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sysbench.core.compare.power import ROUNDS_A_BLOCK, WANTED_POWER
from sysbench.core.formatting import counted, percent
from sysbench.core.runs.library import Entry
from sysbench.core.spec.fields import group_keys
from sysbench.core.spec.own_model import is_own
from sysbench.tui.text import amount, outcome_text

if TYPE_CHECKING:
    from sysbench.core.experiments.plan import Method, Plan

_OF_PRESETS = {"workload", *group_keys("dimensions")}
"""Keys without a meaning for a user's model."""
MINUTE, HOUR, DAY = 60, 3600, 86400


def state_text(entry: Entry) -> str:
    return "live" if entry.live else outcome_text(entry.status)


def now_ns() -> int:
    """Nanoseconds since the Unix epoch; tests replace this clock."""
    return time.time_ns()


def age(created_ns: int) -> str:
    """Format the age of a run: ``4 min ago``, ``1 h ago``; a date after four weeks."""
    seconds = (now_ns() - created_ns) // 10**9
    if seconds < 0 or seconds >= 28 * DAY:  # the clock was set, or long ago
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
    """Return the settings that affect a run's numbers, as words by key; blank if irrelevant."""
    if entry.command:
        return {"model": entry.model, "command": entry.command, "device": entry.device_name}
    words = {
        "model": entry.model,
        # A user model may fix these itself.
        "batch": f"B{entry.batch}" if entry.batch else "",
        "context": f"ctx {entry.context}" if entry.context else "",
        "precision": entry.precision,
        "attention": entry.attention,
        "step": entry.step,
        "optimizer": entry.optimizer if entry.step == "train" else "",
        "compile": "eager" if entry.compile == "off" else f"compile {entry.compile}",
        "device": entry.device_name,
    }
    if is_own(entry.model):
        words["attention"] = ""  # the model brings its own
    return words | {
        key: _setting(key, value)
        for key, value in sorted(entry.settings.items())
        if _matters(entry, key)
    }


def _matters(entry: Entry, key: str) -> bool:
    return not entry.command and not (is_own(entry.model) and key in _OF_PRESETS)


def _setting(key: str, value: Any) -> str:
    if key == "memory_limit":
        return f"limit {amount(value)}"
    return f"{key.replace('_', ' ')} {value}"


def usual_settings(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the settings that more than half of these runs share; none for fewer than two."""
    if len(entries) < 2:
        return {}
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        for key, text in settings_of(entry).items():
            counts[key][text] += key != "command"
    usual = {}
    for key, count in counts.items():
        text, times = count.most_common(1)[0]
        if times > len(entries) / 2:
            usual[key] = text
    return usual


def spec_text(entry: Entry, usual: dict[str, str]) -> str:
    """Return the model of a run, and its settings that differ from the usual ones."""
    own = settings_of(entry)
    words = [
        text for key, text in own.items() if text and (key == "model" or usual.get(key) != text)
    ]
    # Other keys are listed only if they differ from their defaults.
    words += [
        f"{key.replace('_', ' ')} default"
        for key in usual
        if key not in own and _matters(entry, key)
    ]
    return " · ".join(words)


def plan_facts(plan: Plan, max_minutes: float) -> list[tuple[str, str]]:
    """Return method, time limit, noise and detectable difference, or why one is unknown."""
    return [
        ("method", method_words(plan.method, plan.why_blocks)),
        ("time", _time(plan, max_minutes)),
        ("noise", plan.source or plan.missing["spread"]),
        ("power", finds_words(plan)),
    ]


def method_words(method: Method, why_blocks: str) -> str:
    if method == "duet":
        return "pairs of processes that take turns"
    why = f": {why_blocks}" if why_blocks else ""
    return f"one process at a time, in blocks of {ROUNDS_A_BLOCK} rounds{why}"


def _time(plan: Plan, max_minutes: float) -> str:
    limit = f"{max_minutes:g} minutes"
    what = "pair" if plan.method == "duet" else "round"
    count = plan.pairs if plan.method == "duet" else plan.blocks
    if plan.round_seconds is None or count is None:
        return f"at most {limit}; seconds per {what} unknown: {plan.missing['round_seconds']}"
    most = counted(count if what == "pair" else ROUNDS_A_BLOCK * count, what)
    return f"{plan.round_seconds:.1f} s per {what}; at most {limit}, which is {most}"


def finds_words(plan: Plan) -> str:
    """The smallest detectable difference, and the power for some smaller ones."""
    if plan.smallest is None:
        reason = plan.missing.get("smallest", "too few rounds")
        if plan.spread is None and plan.method == "blocks":
            reason = "run `sysbench-tui doctor --noise`"
        return f"smallest detectable difference unknown: {reason}"
    powers = ", ".join(
        f"{percent(row.difference, 0)}: {percent(row.power, 0)}" for row in plan.promises
    )
    detected = f"detects changes of {percent(plan.smallest)} and more"
    return f"{detected} ({percent(WANTED_POWER, 0)} power); power for {powers}"
