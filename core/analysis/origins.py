"""Who holds the bytes of one instant, by category, phase and the stack that asked for them."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..record.memory import Origin
from .memory.lists import readable
from .memory.residents import Residents

SMALLER = "smaller"


def origins_alive(residents: Residents, instant: int, keep: int) -> list[Origin]:
    """The ``keep`` largest origins at an instant, and the rest as one: they sum to its bytes.

    Bytes are as requested. Stacks that read alike are one.
    """
    allocations, attribution = residents.allocations, residents.attribution
    totals: defaultdict[tuple[str, str, int], _Sum] = defaultdict(_Sum)
    for index in np.flatnonzero(allocations.alive_at(instant - 1)).tolist():
        key = attribution.category[index], attribution.phase[index], int(allocations.stack[index])
        totals[key].add(int(allocations.bytes[index]), 1, residents.block_bytes(index))
    texts = {number: _text(residents, number) for _, _, number in totals}
    merged: defaultdict[tuple[str, str, tuple[str, ...]], _Sum] = defaultdict(_Sum)
    for (category, phase, number), total in totals.items():
        merged[category, phase, texts[number]].add(*total.parts)
    found = [
        Origin(category, phase, size, blocks, list(stack), held)
        for (category, phase, stack), total in merged.items()
        for size, blocks, held in [total.parts]
    ]
    found.sort(key=lambda one: (-one.bytes, one.category, one.phase, one.stack))
    rest = found[keep:]
    if rest:
        smaller = _Sum()
        for one in rest:
            smaller.add(one.bytes, one.blocks, one.block_bytes)
        size, blocks, held = smaller.parts
        found[keep:] = [Origin(SMALLER, "", size, blocks, [], held)]
    return found


class _Sum:
    """Bytes as requested, how many blocks, and their bytes where the allocator has granules."""

    def __init__(self) -> None:
        self.parts: tuple[int, int, int | None] = 0, 0, None

    def add(self, size: int, blocks: int, held: int | None) -> None:
        known = self.parts
        self.parts = (
            known[0] + size,
            known[1] + blocks,
            known[2] if held is None else (known[2] or 0) + held,
        )


def _text(residents: Residents, stack: int) -> tuple[str, ...]:
    return tuple(readable(residents.history.stacks[stack])) if stack >= 0 else ()
