"""The change of the memory peak, row by row: category, phase, stack; to the byte."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from sysbench.core.compare.nodes import (
    ByteNode,
    Kind,
    group_by,
    in_order,
    name_sides,
    pair_by,
)
from sysbench.core.record.memory import Origin
from sysbench.core.record.record import Memory

LINE = re.compile(r":\d+(?= |$)")
UNLISTED = "smaller allocations, and what has no stack"
UNACCOUNTED = "not in the ledger"
NO_PHASE = "outside of all phases"
NO_STACK = "stack not recorded"
FRAMES_SHOWN = 2

Sides = tuple[list[Origin], list[Origin]]
Sizes = tuple[int | None, int | None]
"""Bytes of A and of B; None on a side that has no such row."""


def memory_difference_tree(a: Memory, b: Memory) -> ByteNode:
    """Compare the peak of B with A's, in bytes.

    Categories are the rows of the two ledgers, rounding to the allocator's blocks among them;
    below are the phases in which the memory was requested, and the stacks. Stacks are matched
    frame by frame, then without line numbers. What a category has beyond its listed stacks is a
    row of its own, so that every level adds up.
    """
    ledger_a, ledger_b = (
        {row.name: row.bytes for row in side.ledger if row.bytes} for side in (a, b)
    )
    origins = pair_by(a.origins, b.origins, lambda origin: origin.category)
    categories = []
    for name in dict.fromkeys([*ledger_a, *ledger_b]):
        phases = pair_by(*origins.get(name, ([], [])), lambda origin: origin.phase)
        below = [_phase(phase or NO_PHASE, sides) for phase, sides in phases.items()]
        sizes = ledger_a.get(name), ledger_b.get(name)
        rest = _rest(UNLISTED, sizes, below) if below else []
        categories.append(_node("category", name, sizes, children=[*below, *rest]))
    peaks = a.peak_allocated_bytes, b.peak_allocated_bytes
    rest = _rest(UNACCOUNTED, peaks, categories)
    return _node("peak", "peak", peaks, children=[*categories, *rest])


def _rest(name: str, sizes: Sizes, children: Sequence[ByteNode]) -> list[ByteNode]:
    """A row for what the children lack, if they lack anything."""
    a_rest = (sizes[0] or 0) - sum(child.a_bytes for child in children)
    b_rest = (sizes[1] or 0) - sum(child.b_bytes for child in children)
    return [_node("rest", name, (a_rest, b_rest))] if a_rest or b_rest else []


def _phase(name: str, sides: Sides) -> ByteNode:
    stacks = []
    for pair in _stack_pairs(*sides):
        frames = [side[0].stack if side else [] for side in pair]
        stack = frames[1] if pair[1] else frames[0]
        node = _node("stack", stack_name(stack), _sizes(pair), pair, a_name=stack_name(frames[0]))
        stacks.append(msgspec.structs.replace(node, stack=stack))
    return _node("phase", name, _sizes(sides), sides, children=stacks)


def _sizes(sides: Sides) -> Sizes:
    a, b = (sum(origin.bytes for origin in side) if side else None for side in sides)
    return a, b


def _node(
    kind: Kind,
    name: str,
    sizes: Sizes,
    sides: Sides | None = None,
    *,
    a_name: str = "",
    children: Sequence[ByteNode] = (),
) -> ByteNode:
    """A node on the sides that have a size, with the blocks of ``sides``."""
    a_bytes, b_bytes = sizes
    name, state, a_name = name_sides(
        None if a_bytes is None else a_name or name, None if b_bytes is None else name
    )
    blocks = [sum(origin.blocks for origin in side) for side in sides] if sides else [None, None]
    return ByteNode(
        kind=kind,
        name=name,
        state=state,
        a_name=a_name,
        a_bytes=a_bytes or 0,
        b_bytes=b_bytes or 0,
        a_blocks=blocks[0],
        b_blocks=blocks[1],
        children=in_order(children),
    )


def _stack_pairs(a: Sequence[Origin], b: Sequence[Origin]) -> list[Sides]:
    """Pair origins by their stack; the rest where only line numbers differ, if that is unique."""
    exact = pair_by(a, b, _stack)
    pairs = [pair for pair in exact.values() if all(pair)]
    left = [pair for pair in exact.values() if not all(pair)]
    without_lines = pair_by(
        [origin for pair in left for origin in pair[0]],
        [origin for pair in left for origin in pair[1]],
        lambda origin: tuple(LINE.sub("", frame) for frame in origin.stack),
    )
    for pair in without_lines.values():
        stacks = [group_by(side, _stack) for side in pair]
        if len(stacks[0]) == len(stacks[1]) == 1:
            pairs.append(pair)
        else:
            pairs += [(origins, []) for origins in stacks[0].values()]
            pairs += [([], origins) for origins in stacks[1].values()]
    return pairs


def _stack(origin: Origin) -> tuple[str, ...]:
    return tuple(origin.stack)


def stack_name(stack: Sequence[str]) -> str:
    """The innermost frames of a stack."""
    return " < ".join(stack[:FRAMES_SHOWN]) or NO_STACK
