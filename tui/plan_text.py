"""The forecast of an experiment in words, for the command and for its dialog."""

from __future__ import annotations

from sysbench.core.compare.power import ROUNDS_A_BLOCK, WANTED_POWER
from sysbench.core.experiments.plan import Plan
from sysbench.core.formatting import counted, percent


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
