"""What one block keeps for backward, place by place in the code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..record.memory import Origin
from ..record.record import Memory, Record
from ..tables.table import Table

BLOCKS = "blocks"
"""The module that holds the blocks, all alike."""


def saved_table(record: Record) -> Table | None:
    """Operations of one block, those with the most bytes first; shares are of the block.

    None where blocks are not told apart: unless the activations that one place in the code
    called are, at the peak, all that the blocks' forward saved, their rows would not add up.
    """
    memory, layers = record.memory, record.spec.get("layers")
    if memory is None or not layers:
        return None
    whole = next((one.activation_bytes for one in memory.modules if one.module == BLOCKS), 0)
    kept = _under_one_call(memory, whole)
    return Table(
        name="saved",
        title="What one block saves for backward",
        columns=("operation", "called in", "tensors", "bytes", "share"),
        rows=tuple(
            (*_place(one.stack), one.blocks // layers, one.bytes // layers, one.bytes / whole)
            for one in kept
        ),
    )


def _under_one_call(memory: Memory, whole: int) -> Sequence[Origin]:
    """The activations that have an outermost part of the stack in common which holds as many
    bytes as the blocks in all; none where there is no such part."""
    kept = [one for one in memory.origins if one.category == "activations"]
    held: Counter[tuple[str, ...]] = Counter()
    for one in kept:
        frames = tuple(reversed(one.stack))
        held.update({frames[:depth]: one.bytes for depth in range(1, len(frames) + 1)})
    calls = [frames for frames, size in held.items() if whole and size == whole]
    if not calls:
        return ()
    call = max(calls, key=len)
    return [one for one in kept if tuple(reversed(one.stack))[: len(call)] == call]


def _place(stack: Sequence[str]) -> tuple[str, str]:
    """The operation, and the function that called it; on CUDA only the latter is known."""
    first, *others = stack
    return (first, others[0]) if first.startswith("aten::") and others else ("", first)
