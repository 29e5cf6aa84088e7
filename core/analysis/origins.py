"""Who holds the bytes of one instant, by category, phase and the stack that asked for them."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..record_memory import Origin
from .ledger import Residents
from .memory_tables import readable

SMALLER = "smaller"


def origins_alive(residents: Residents, instant: int, keep: int) -> list[Origin]:
    """The ``keep`` largest origins at an instant, and the rest as one: they sum to its bytes.

    Bytes are as requested. Stacks that read alike are one.
    """
    allocations, attribution = residents.allocations, residents.attribution
    totals: defaultdict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0])
    for index in np.flatnonzero(allocations.alive_at(instant - 1)).tolist():
        key = attribution.category[index], attribution.phase[index], int(allocations.stack[index])
        totals[key][0] += int(allocations.bytes[index])
        totals[key][1] += 1
    texts = {number: _text(residents, number) for _, _, number in totals}
    merged: defaultdict[tuple[str, str, tuple[str, ...]], list[int]] = defaultdict(lambda: [0, 0])
    for (category, phase, number), (size, blocks) in totals.items():
        merged[category, phase, texts[number]][0] += size
        merged[category, phase, texts[number]][1] += blocks
    found = [
        Origin(category, phase, size, blocks, list(stack))
        for (category, phase, stack), (size, blocks) in merged.items()
    ]
    found.sort(key=lambda one: (-one.bytes, one.category, one.phase, one.stack))
    rest = found[keep:]
    if rest:
        size, blocks = sum(one.bytes for one in rest), sum(one.blocks for one in rest)
        found[keep:] = [Origin(SMALLER, "", size, blocks, [])]
    return found


def _text(residents: Residents, stack: int) -> tuple[str, ...]:
    return tuple(readable(residents.history.stacks[stack])) if stack >= 0 else ()
