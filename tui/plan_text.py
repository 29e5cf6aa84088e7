"""The forecast of an experiment in words, for the command and for its dialog."""

from __future__ import annotations

from sysbench.core.compare.power import ROUNDS_A_BLOCK, WANTED_POWER
from sysbench.core.experiments.pairing import Method
from sysbench.core.experiments.plan import Plan
from sysbench.core.formatting import counted, percent


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
