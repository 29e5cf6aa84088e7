"""Compare two runs' memory at their peaks by row, module and stack."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from sysbench.core.record.memory import BEFORE_RECORDING, NO_OWNER, LedgerRow, Origin
from sysbench.core.record.record import Memory
from sysbench.core.trace.module_tree import group_by

LINE = re.compile(r":(\d+)(?= |$)")
PYTHON_FRAME = re.compile(r"\.py:\d+ ")

OriginPair = tuple[list[Origin], list[Origin]]
"""Origins of A and of B at one place; one of them may be empty."""


def without_lines(stack: Iterable[str]) -> tuple[str, ...]:
    return tuple(LINE.sub("", frame) for frame in stack)


def stack_of(pair: OriginPair) -> list[str]:
    """Return B's stack, or A's if B has none; without lines if the pair has several."""
    side = pair[1] or pair[0]
    stack = side[0].stack
    return stack if len({_stack(origin) for origin in side}) == 1 else [*without_lines(stack)]


def pair_origins(a: Sequence[Origin], b: Sequence[Origin]) -> list[OriginPair]:
    """Pair origins by the functions on their stacks, since lines move when code is edited.

    Stacks of the same functions are paired first, then those with the most innermost functions in
    common, down to the Python function that allocates: another script may call the same code.
    """
    pairs: list[OriginPair] = []
    left = (list(a), list(b))
    deepest = max((len(origin.stack) for side in left for origin in side), default=0)
    for depth in range(max(deepest, 1), 0, -1):
        sides = [group_by(side, _functions_to(depth)) for side in left]
        for functions in [shared for shared in sides[0] if shared in sides[1]]:
            pairs += _pair_lines(sides[0].pop(functions), sides[1].pop(functions))
        left = _flat(sides[0].values()), _flat(sides[1].values())
    return pairs + _alone(*left)


def _functions_to(depth: int) -> Callable[[Origin], tuple[str, ...]]:
    def functions(origin: Origin) -> tuple[str, ...]:
        # In front of it are operators or, without Python frames, the allocator itself.
        python = (place for place, frame in enumerate(origin.stack) if PYTHON_FRAME.search(frame))
        least = next(python, len(origin.stack)) + 1
        return without_lines(origin.stack[: max(depth, least)])

    return functions


def _pair_lines(a: list[Origin], b: list[Origin]) -> list[OriginPair]:
    """Pair origins with the same functions: equal ones, then lines in their order.

    If one side has more lines, those without an equal one become one pair: which of them moved is
    unknown.
    """
    pairs: list[OriginPair] = []
    for key in (lambda origin: (_stack(origin), origin.bytes), lambda origin: origin.bytes):
        pairs += _take_unique(a, b, key)
    stacks = [sorted({_stack(origin) for origin in side}, key=_lines) for side in (a, b)]
    if len(stacks[0]) != len(stacks[1]):
        pairs += _take_unique(a, b, _stack)
        return pairs + ([(a, b)] if a and b else _alone(a, b))
    by_stack = [group_by(side, _stack) for side in (a, b)]
    return pairs + [
        (by_stack[0][one], by_stack[1][other]) for one, other in zip(*stacks, strict=True)
    ]


def _take_unique(
    a: list[Origin], b: list[Origin], key: Callable[[Origin], Hashable]
) -> list[OriginPair]:
    """Remove and pair the origins whose key occurs once on each side."""
    by_key = [group_by(side, key) for side in (a, b)]
    pairs: list[OriginPair] = [
        (of_a, by_key[1][shared])
        for shared, of_a in by_key[0].items()
        if len(of_a) == len(by_key[1].get(shared, [])) == 1
    ]
    for side, taken in zip((a, b), zip(*pairs, strict=True) if pairs else ([], []), strict=True):
        taken_ids = {id(origin) for (origin,) in taken}
        side[:] = [origin for origin in side if id(origin) not in taken_ids]
    return pairs


def _alone(a: Iterable[Origin], b: Iterable[Origin]) -> list[OriginPair]:
    return [
        *((origins, []) for origins in group_by(a, _stack).values()),
        *(([], origins) for origins in group_by(b, _stack).values()),
    ]


def _flat(groups: Iterable[list[Origin]]) -> list[Origin]:
    return [origin for group in groups for origin in group]


def _stack(origin: Origin) -> tuple[str, ...]:
    return tuple(origin.stack)


def _lines(stack: Sequence[str]) -> tuple[tuple[int, ...], Sequence[str]]:
    """Sort key: the numbers of the lines, innermost first."""
    numbers = tuple(int(match[1]) for frame in stack if (match := LINE.search(frame)))
    return numbers, stack


KINDS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")

Key = TypeVar("Key", bound=Hashable)


class RowChange(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the ledger, or one kind of bytes of one module; absent counts as 0."""

    name: str
    kind: str = ""
    a_bytes: int
    b_bytes: int


class OriginChange(msgspec.Struct, frozen=True, kw_only=True):
    category: str
    phase: str
    stack: list[str]
    a_bytes: int
    b_bytes: int
    a_blocks: int
    b_blocks: int


class MemoryDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of memory from A to B, largest first.

    ``rows`` and ``origins`` each add up to the change of the peak, except for the rounding of
    blocks, which has no origin. A module's bytes include its children's.
    """

    rows: list[RowChange]
    modules: list[RowChange]
    origins: list[OriginChange]


def by_code(memory: Memory) -> Memory:
    """Return the memory with rows that depend on the code alone, to compare it.

    In an imported snapshot, whether a block is older than the recording, and within which
    annotation it was requested, depends on how it was recorded.
    """
    if memory.device is None:
        return memory
    ledger: Counter[str] = Counter()
    for row in memory.ledger:
        ledger[_owner(row.name)] += row.bytes
    groups = group_by(memory.origins, lambda row: (_owner(row.category), tuple(row.stack)))
    origins = [
        msgspec.structs.replace(
            rows[0],
            category=category,
            phase="",
            metadata="",
            bytes=sum(row.bytes for row in rows),
            blocks=sum(row.blocks for row in rows),
        )
        for (category, _), rows in groups.items()
    ]
    return msgspec.structs.replace(
        memory, origins=origins, ledger=[LedgerRow(name, count) for name, count in ledger.items()]
    )


def _owner(category: str) -> str:
    return NO_OWNER if category == BEFORE_RECORDING else category


def memory_difference(a: Memory, b: Memory) -> MemoryDifference:
    a, b = by_code(a), by_code(b)
    return MemoryDifference(
        rows=[
            RowChange(name=name, a_bytes=before, b_bytes=after)
            for name, before, after in _changed(_ledger(a), _ledger(b))
        ],
        modules=[
            RowChange(name=module, kind=kind, a_bytes=before, b_bytes=after)
            for (module, kind), before, after in _changed(_modules(a), _modules(b))
        ],
        origins=_origins(a, b),
    )


def _ledger(memory: Memory) -> dict[str, int]:
    return {row.name: row.bytes for row in memory.ledger}


def _modules(memory: Memory) -> dict[tuple[str, str], int]:
    return {(row.module, kind): getattr(row, kind) for row in memory.modules for kind in KINDS}


def _origins(a: Memory, b: Memory) -> list[OriginChange]:
    groups = [
        group_by(memory.origins, lambda origin: (origin.category, origin.phase))
        for memory in (a, b)
    ]
    changes = []
    for category, phase in dict.fromkeys([*groups[0], *groups[1]]):
        key = category, phase
        for pair in pair_origins(*(group.get(key, []) for group in groups)):
            a_bytes, b_bytes = (sum(origin.bytes for origin in side) for side in pair)
            a_blocks, b_blocks = (sum(origin.blocks for origin in side) for side in pair)
            if a_bytes != b_bytes:
                changes.append(
                    OriginChange(
                        category=category,
                        phase=phase,
                        stack=stack_of(pair),
                        a_bytes=a_bytes,
                        b_bytes=b_bytes,
                        a_blocks=a_blocks,
                        b_blocks=b_blocks,
                    )
                )
    return sorted(changes, key=lambda change: -abs(change.b_bytes - change.a_bytes))


def _changed(a: Mapping[Key, int], b: Mapping[Key, int]) -> Iterable[tuple[Key, int, int]]:
    keys = dict.fromkeys([*a, *b])
    changes = [
        (key, a.get(key, 0), b.get(key, 0)) for key in keys if a.get(key, 0) != b.get(key, 0)
    ]
    return sorted(changes, key=lambda change: -abs(change[2] - change[1]))
