"""Rounds that another tenant of the machine disturbed. Their times play no part in it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sysbench.core.compare.conditions import others_load
from sysbench.core.formatting import percent
from sysbench.core.record.timing import Round

MOST_REPEATS = 2
"""Repeats of one disturbed round; after them the neighbour is part of the machine."""
CPU_JUMP = 0.15
"""Share of all cores by which other processes must exceed their usual share.

One busy process is more than that on machines of up to six cores. The shortest measured part that
a share is known of, 0.4 core-seconds in ticks of 0.01 s, has an error of a third of it.
"""
USUAL_ROUNDS = 8
"""Rounds back that say what is usual."""
_LEAST_ROUNDS = 2


def disturbance(row: Round, earlier: Sequence[Round]) -> str:
    """The tenant that came during a round, as a sentence part; empty if none did.

    Usual is what the last rounds that count have seen, the busiest of them included: a neighbour
    that comes and goes all the time disturbs no round more than others, and one that stays counts
    once its round was repeated often enough. A round's time has no say, so that leaving rounds out
    favours no side.

    Args:
        row: The round to judge.
        earlier: Rounds of both sides before it, those that do not count included.
    """
    counted = (each for each in earlier if each.counts)
    usual = sorted(counted, key=lambda each: each.started_ns)[-USUAL_ROUNDS:]
    if len(usual) < _LEAST_ROUNDS:
        return ""
    present = {name for each in usual for name in each.tenants}
    arrived = [name for name in row.tenants if name not in present]
    if arrived:
        return f"{', '.join(arrived)} came to the device"
    loads = [load for each in usual if (load := others_load(each)) is not None]
    load = others_load(row)
    if load is None or len(loads) < _LEAST_ROUNDS:
        return ""
    if load <= max(loads) or load <= statistics.median(loads) + CPU_JUMP:
        return ""
    return (
        f"other processes took {percent(load, 0)} of the cores, "
        f"at most {percent(max(loads), 0)} in the rounds before"
    )


def accepted(rounds: Sequence[Round]) -> list[Round]:
    """Rounds that count although a tenant disturbed them: it stayed while they were repeated.

    Args:
        rounds: All rounds of both sides in one experiment.
    """
    ordered = sorted(rounds, key=lambda row: row.started_ns)
    return [
        row
        for n, row in enumerate(ordered)
        if row.counts
        and sum(bool(each.disturbed) and _place(each) == _place(row) for each in ordered[:n])
        >= MOST_REPEATS
        and disturbance(row, ordered[:n])
    ]


def _place(row: Round) -> tuple[int | None, int | None]:
    return row.block, row.position
