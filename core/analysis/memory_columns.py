"""The instants that have a column of their own, and what was resident and in use at each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..record.memory import Pool
from ..record.record import LedgerRow
from .memory.card import CardReading, card_rows
from .memory.residents import Residents
from .segments import Segments

UNSPLIT = "blocks larger than asked for"
LAST_READING = "steady end"
"""Where nothing was read, on a device, this reading counts: within a step only the allocator's
hold of the device changes, and that is known."""


class Columns(NamedTuple):
    """By the column's name: the ledger's rows, the card's, and the allocator's pools."""

    ledger: dict[str, list[LedgerRow]]
    card: dict[str, list[LedgerRow]]
    pools: dict[str, list[Pool]]


def instants_of(residents: Residents) -> dict[str, int]:
    """The instants with a column, in order of time; without steps the peak and the end alone."""
    steps: list[int | None] = [*residents.notes.steps] or [None]
    first, steady = residents.span(steps[0]), residents.span(steps[-1])
    peak = residents.peak(*steady)
    if steps[-1] is None:
        return {"peak": peak, "end": steady[1]}
    forward_end_ns = residents.notes.forward_end_ns(steps[-1])
    return {
        "after build": first[0],
        "first step": residents.peak(*first),
        "after warm-up": steady[0],
        **({} if forward_end_ns is None else {"end of forward": residents.instant(forward_end_ns)}),
        "peak": peak,
        "steady end": steady[1],
    }


def columns_of(
    residents: Residents,
    readings: Mapping[str, CardReading],
    blocks: Mapping[str, int],
    segments: Segments | None,
) -> Columns:
    """Every column there can be.

    Args:
        readings: Of the device or process, by column.
        blocks: What the allocator's counters say was handed out, where they were read: its
            blocks can be larger than what was asked for.
        segments: Of the caching allocator, where there is one.
    """
    columns = Columns({}, {}, {})
    for name, instant in instants_of(residents).items():
        rows = residents.rows(instant)
        if name in blocks:
            rows.append(LedgerRow(UNSPLIT, blocks[name] - int(residents.live[instant])))
        columns.ledger[name] = rows
        reading = readings.get(name)
        if segments is not None:
            columns.pools[name] = _pools(residents, instant, segments)
            held = segments.reserved_bytes(residents.time_ns(instant))
            reading = (reading or readings.get(LAST_READING, CardReading())).with_reserved(held)
        if reading is not None:
            total = sum(row.bytes for row in rows)
            card = card_rows(total, reading, columns.pools.get(name, ()))
            if card:
                columns.card[name] = card
    return columns._replace(ledger=_without_empty_rows(columns.ledger))


def _pools(residents: Residents, instant: int, segments: Segments) -> list[Pool]:
    allocations = residents.allocations
    alive = allocations.alive_at(instant - 1)
    blocks = allocations.rounded(residents.history.granule)[alive]
    return segments.pools(residents.time_ns(instant), allocations.address[alive], blocks)


def _without_empty_rows(columns: dict[str, list[LedgerRow]]) -> dict[str, list[LedgerRow]]:
    """Drop the rows that are zero in every column."""
    used = {row.name for rows in columns.values() for row in rows if row.bytes}
    return {name: [row for row in rows if row.name in used] for name, rows in columns.items()}
