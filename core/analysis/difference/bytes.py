"""The change of the memory peak, row by row: category, phase, stack; to the byte."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from ...record.memory import Origin
from ...record.record import Memory
from .nodes import ByteNode, Kind, State

LINE = re.compile(r":\d+(?= |$)")
UNLISTED = "smaller allocations, and what has no stack"
UNACCOUNTED = "not in the ledger"
NO_PHASE = "outside of all phases"
NO_STACK = "stack not recorded"
FRAMES_SHOWN = 2

Key = TypeVar("Key")
Sides = tuple[list[Origin], list[Origin]]


def memory_difference_tree(a: Memory, b: Memory) -> ByteNode:
    """The peak of B against A's, in bytes.

    Categories are the rows of the two ledgers, rounding to the allocator's blocks among them;
    below are the phases in which the memory was requested, and the stacks. Stacks are matched
    frame by frame, then without line numbers. What a category has beyond its listed stacks is a
    row of its own, so that every level adds up.
    """
    ledgers = [{row.name: row.bytes for row in side.ledger if row.bytes} for side in (a, b)]
    origins = [_grouped(side.origins, lambda origin: origin.category) for side in (a, b)]
    names = dict.fromkeys([*ledgers[0], *ledgers[1]])
    categories = [
        _category(
            name,
            (ledgers[0].get(name), ledgers[1].get(name)),
            (origins[0].get(name, []), origins[1].get(name, [])),
        )
        for name in names
    ]
    peaks = a.peak_allocated_bytes, b.peak_allocated_bytes
    return _complete(
        ByteNode(kind="peak", name="peak", state="both", a_bytes=peaks[0], b_bytes=peaks[1]),
        categories,
        UNACCOUNTED,
    )


def _category(name: str, ledger: tuple[int | None, int | None], sides: Sides) -> ByteNode:
    phases = _paired(sides, lambda origin: origin.phase)
    return _complete(
        _node("category", name, name, ledger),
        [_phase(phase or NO_PHASE, origins) for phase, origins in phases.items()],
        UNLISTED,
    )


def _phase(name: str, sides: Sides) -> ByteNode:
    pairs = _stack_pairs(sides)
    blocks = [[origin.blocks for origin in side] for side in sides]
    sizes = [sum(origin.bytes for origin in side) if side else None for side in sides]
    node = _node("phase", name, name, (sizes[0], sizes[1]))
    return _with_blocks(node, sum(blocks[0]), sum(blocks[1])).with_children(
        _in_order([_stack(*pair) for pair in pairs])
    )


def _stack_pairs(sides: Sides) -> list[Sides]:
    """Origins by their stack; of the others those with one counterpart but for line numbers."""
    exact = _paired(sides, lambda origin: tuple(origin.stack))
    pairs = [pair for pair in exact.values() if all(pair)]
    left = [
        [origin for pair in exact.values() if not all(pair) for origin in pair[side]]
        for side in (0, 1)
    ]
    for pair in _paired((left[0], left[1]), _without_lines).values():
        is_clear = all(len({tuple(origin.stack) for origin in side}) == 1 for side in pair)
        if is_clear:
            pairs.append(pair)
        else:
            by_stack = [_grouped(side, lambda origin: tuple(origin.stack)) for side in pair]
            pairs += [(origins, []) for origins in by_stack[0].values()]
            pairs += [([], origins) for origins in by_stack[1].values()]
    return pairs


def _without_lines(origin: Origin) -> tuple[str, ...]:
    return tuple(LINE.sub("", frame) for frame in origin.stack)


def _stack(a: Sequence[Origin], b: Sequence[Origin]) -> ByteNode:
    stacks = [side[0].stack if side else None for side in (a, b)]
    stack = stacks[0] if stacks[1] is None else stacks[1]
    names = [None if frames is None else stack_name(frames) for frames in stacks]
    sizes = [sum(origin.bytes for origin in side) if side else None for side in (a, b)]
    node = _node("stack", names[0], names[1], (sizes[0], sizes[1]), stack or [])
    blocks = [sum(origin.blocks for origin in side) for side in (a, b)]
    return _with_blocks(node, blocks[0], blocks[1])


def stack_name(stack: Sequence[str]) -> str:
    """The innermost frames of a stack."""
    return " < ".join(stack[:FRAMES_SHOWN]) or NO_STACK


def _node(
    kind: Kind,
    a_name: str | None,
    b_name: str | None,
    sizes: tuple[int | None, int | None],
    stack: Sequence[str] = (),
) -> ByteNode:
    """A node on the sides that have a size."""
    state: State = "both" if a_name == b_name else "renamed"
    if sizes[0] is None:
        state = "new"
    elif sizes[1] is None:
        state = "gone"
    name = (a_name if b_name is None else b_name) or ""
    return ByteNode(
        kind=kind,
        name=name,
        state=state,
        a_name=(a_name or "") if state == "renamed" else "",
        a_bytes=sizes[0] or 0,
        b_bytes=sizes[1] or 0,
        stack=list(stack),
    )


def _with_blocks(node: ByteNode, a_blocks: int, b_blocks: int) -> ByteNode:
    return msgspec.structs.replace(node, a_blocks=a_blocks, b_blocks=b_blocks)


def _complete(node: ByteNode, children: list[ByteNode], rest: str) -> ByteNode:
    """The node with its children, and one more for what they lack of it."""
    if not children and node.kind != "peak":
        return node
    a_rest = node.a_bytes - sum(child.a_bytes for child in children)
    b_rest = node.b_bytes - sum(child.b_bytes for child in children)
    if a_rest or b_rest:
        children = [
            *children,
            ByteNode(kind="rest", name=rest, state="both", a_bytes=a_rest, b_bytes=b_rest),
        ]
    return node.with_children(_in_order(children))


def _in_order(nodes: Iterable[ByteNode]) -> list[ByteNode]:
    """The biggest change first."""
    return sorted(nodes, key=lambda node: (-abs(node.change), -max(node.amounts), node.name))


def _grouped(origins: Iterable[Origin], key: Callable[[Origin], Key]) -> dict[Key, list[Origin]]:
    groups: defaultdict[Key, list[Origin]] = defaultdict(list)
    for origin in origins:
        groups[key(origin)].append(origin)
    return dict(groups)


def _paired(sides: Sides, key: Callable[[Origin], Key]) -> dict[Key, Sides]:
    a, b = (_grouped(side, key) for side in sides)
    return {name: (a.get(name, []), b.get(name, [])) for name in dict.fromkeys([*a, *b])}
