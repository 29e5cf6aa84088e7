"""What the Memory tab shows of a record: its steady step, or the time until memory ran out."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content

from ...core.analysis.memory.oom import out_of_memory
from ...core.record.memory import Oom
from ...core.record.record import Memory, Record, Timeline
from ...core.tables.memory import (
    card_table,
    devices_table,
    largest_table,
    ledger_table,
    memory_table,
    module_table,
    oom_largest_table,
    oom_ledger_table,
    oom_origins_table,
    oom_table,
    origins_table,
    pools_table,
    reconciliation_table,
    resident_table,
    would_fit_table,
)
from ...core.tables.table import Table
from .memory_words import peak_line, refusal_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The tab's content.

    Attributes:
        head: One sentence above everything.
        tables: By the name of their view, those without rows left out.
        timeline: None where nothing was recorded; ``no_timeline`` says why.
        mark_ms: The instant that the cursor begins at, and ``mark`` what it is.
    """

    head: Content
    tables: dict[str, Table]
    timeline: Timeline | None
    no_timeline: str
    mark_ms: float
    mark: str


def shown_of(record: Record) -> Shown | None:
    """None where the memory pass left nothing."""
    if record.memory is not None:
        return _steady_step(record.memory)
    told = out_of_memory(record)
    if told is None or told[1].timeline is None:
        return None
    return _refusal(told[0].name, told[1])


def _steady_step(memory: Memory) -> Shown:
    return Shown(
        head=peak_line(memory),
        tables=_with_rows(
            {
                "ledger": ledger_table(memory),
                "stacks": origins_table(memory),
                "largest": largest_table(memory),
                "modules": module_table(memory),
                "predicted": reconciliation_table(memory),
                "resident": resident_table(memory),
                "card": card_table(memory),
                "pools": pools_table(memory),
                "devices": devices_table(memory),
                "totals": memory_table(memory),
            }
        ),
        timeline=memory.timeline if memory.timeline.t_ms else None,
        no_timeline=memory.missing.get("timeline", "no event was recorded"),
        mark_ms=memory.peak_ms,
        mark="peak",
    )


def _refusal(name: str, oom: Oom) -> Shown:
    return Shown(
        head=refusal_line(oom),
        tables=_with_rows(
            {
                "ledger": oom_ledger_table(oom),
                "stacks": oom_origins_table(oom),
                "largest": oom_largest_table(oom),
                "fits": would_fit_table(oom),
                "request": oom_table(name, oom),
            }
        ),
        timeline=oom.timeline,
        no_timeline="",
        mark_ms=oom.refused_ms or 0.0,
        mark="refusal",
    )


def _with_rows(tables: dict[str, Table]) -> dict[str, Table]:
    return {name: table for name, table in tables.items() if table.rows}
