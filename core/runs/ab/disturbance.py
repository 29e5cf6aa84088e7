"""Rounds that another tenant of the machine disturbed. Their times play no part in it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ...analysis.verdict.conditions import others_load
from ...formatting import percent
from ...record.timing import Round

CPU_JUMP = 0.25
"""Share of all cores by which other processes must exceed their usual share."""
_USUAL_ROUNDS = 8
_LEAST_ROUNDS = 2


def disturbance(row: Round, earlier: Sequence[Round]) -> str:
    """The tenant that came during a round, as a sentence part; empty if none did.

    Only what differs from the rounds before it counts: a neighbour that is always there slows
    both sides down and is part of the machine. A round's time has no say, so that leaving rounds
    out favours no side.

    Args:
        row: The round to judge.
        earlier: Rounds of both sides before it.
    """
    usual = sorted(earlier, key=lambda each: each.started_ns)[-_USUAL_ROUNDS:]
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
    before = statistics.median(loads)
    if load <= before + CPU_JUMP:
        return ""
    return f"other processes took {percent(load, 0)} of the cores, usually {percent(before, 0)}"
