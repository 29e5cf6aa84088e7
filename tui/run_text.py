"""Texts for plans and for runs in a list: age, state, and settings that differ."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sysbench.core.runs.library import Entry
from sysbench.tui.text import amount, outcome_text

if TYPE_CHECKING:
    from sysbench.core.predict.fit_grid import Fit


def plan_facts(plan: Plan, max_minutes: float) -> list[tuple[str, str]]:
    """Return time limit, noise and detectable difference, or the reason why one is unknown."""
    return [
        ("time", _time(plan, max_minutes)),
        ("noise", plan.source or plan.missing["spread"]),
        ("power", finds_words(plan)),
    ]


def _time(plan: Plan, max_minutes: float) -> str:
    limit = f"{max_minutes:g} minutes"
    if plan.round_seconds is None or plan.blocks is None:
        return f"at most {limit}; seconds per round unknown: {plan.missing['round_seconds']}"
    rounds = counted(ROUNDS_A_BLOCK * plan.blocks, "round")
    return f"{plan.round_seconds:.1f} s per round; at most {limit}, which is {rounds}"


def finds_words(plan: Plan) -> str:
    """The smallest detectable difference, and the power for some smaller ones."""
    if plan.smallest is None:
        reason = plan.missing.get("smallest", "too few rounds")
        if plan.spread is None:
            reason = "run `sysbench-tui doctor --noise`"
        return f"smallest detectable difference unknown: {reason}"
    powers = ", ".join(
        f"{percent(row.difference, 0)}: {percent(row.power, 0)}" for row in plan.promises
    )
    detected = f"detects changes of {percent(plan.smallest)} and more"
    return f"{detected} ({percent(WANTED_POWER, 0)} power); power for {powers}"


def is_sure(fit: Fit) -> bool:
    """Whether every larger value certainly does not fit."""
    return fit.beyond == fit.next


def nothing_fits(fit: Fit) -> str:
    """Verb for a largest value of 0."""
    return "fits" if is_sure(fit) else "is guaranteed to fit"


def may_fit(fit: Fit) -> str:
    """``batch 27 to 29 might fit, 30 and more will not``; empty if none might fit."""
    if fit.beyond is None or fit.next is None or fit.beyond <= fit.next:
        return ""
    last = fit.beyond - 1
    values = f"{fit.key} {fit.next:,}" + (f" to {last:,}" if last > fit.next else "")
    return f"{values} might fit, {fit.beyond:,} and more will not"


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
    return words | {key: _setting(key, value) for key, value in sorted(entry.settings.items())}


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
            counts[key][text] += 1
    usual = {}
    for key, count in counts.items():
        text, times = count.most_common(1)[0]
        if times > len(entries) / 2:
            usual[key] = text
    return usual


def spec_text(entry: Entry, usual: dict[str, str]) -> str:
    """Return the settings of a run that differ from the usual ones."""
    own = settings_of(entry)
    words = [text for key, text in own.items() if text and usual.get(key) != text]
    # Other keys are listed only if they differ from their defaults.
    words += [f"{key.replace('_', ' ')} default" for key in usual if key not in own]
    return " · ".join(words)
