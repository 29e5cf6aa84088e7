"""Compare two runs' memory at their peaks by row, module and stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import msgspec

from sysbench.core.memory.stack_pairs import pair_origins, stack_of
from sysbench.core.record.memory import BEFORE_RECORDING, NO_OWNER, LedgerRow
from sysbench.core.record.record import Memory
from sysbench.core.trace.module_tree import group_by

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
