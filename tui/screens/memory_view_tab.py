"""The content of the Memory tab: a steady step, or the time until memory ran out."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content

from sysbench.core.memory.oom import held, out_of_memory, refused
from sysbench.core.record.memory import Oom, prediction_error
from sysbench.core.record.record import Memory, Record, Timeline
from sysbench.core.tables.memory_tables import (
    oom_largest_table,
    oom_ledger_table,
    oom_origins_table,
    oom_table,
    recording_notes,
    would_fit_table,
)
from sysbench.core.tables.sections import SECTIONS, Source
from sysbench.core.tables.table import Table
from sysbench.tui.text import amount, signed_percent, significant
from sysbench.tui.widgets.timeline import TimelineView

SWATCH_WIDTH, AMOUNT_WIDTH = 2, 10


def peak_line(memory: Memory) -> Content:
    """The peak, and the totals that are not the peak, each with its name."""
    line = Content.assemble(
        "peak ",
        (amount(memory.peak_allocated_bytes), "bold $accent"),
        f" allocated at {significant(memory.peak_ms, 3)} ms",
        f", in {memory.peak_phase}" if memory.peak_phase else "",
    )
    pieces = recording_notes(memory)
    if memory.predicted_peak_bytes and memory.prediction_error is not None:
        error = signed_percent(memory.prediction_error)
        pieces.append(f"predicted {amount(memory.predicted_peak_bytes)} ({error})")
    if memory.resident_set:
        pieces.append(f"resident {memory.resident_set}")
    pieces.append(f"reserved {amount(memory.peak_reserved_bytes)}{_predicted_reserve(memory)}")
    whose = "driver" if memory.source == "cuda-snapshot" else "process"
    pieces.append(f"{whose} {amount(memory.driver_used_bytes)}")
    return line + Content.styled("".join(f" · {piece}" for piece in pieces), "$foreground 70%")


def _predicted_reserve(memory: Memory) -> str:
    """`` (predicted 3.1 GiB, +0.0 %)``; empty where no allocator was played."""
    error = prediction_error(memory.predicted_reserved_bytes, memory.peak_reserved_bytes)
    if error is None:
        return ""
    return f" (predicted {amount(memory.predicted_reserved_bytes)}, {signed_percent(error)})"


def refusal_line(oom: Oom) -> Content:
    """The request that failed and the memory there was, when memory ran out."""
    line = Content.assemble(("out of memory", "bold $error"), f": {refused(oom)}")
    pieces = [held(oom)]
    if oom.predicted_peak_bytes is not None:
        pieces.append(f"predicted peak {amount(oom.predicted_peak_bytes)}")
    return line + Content.styled(
        "".join(f" · {piece}" for piece in pieces if piece), "$foreground 70%"
    )


def cursor_text(view: TimelineView, sample: int, width: int) -> Content:
    """Time, phase, live bytes, and the categories that make them up, largest first."""
    timeline = view.timeline
    t_ms = timeline.t_ms[sample]
    phase = next((name for name, low, high in timeline.phases if low <= t_ms <= high), "")
    lines = [
        Content.assemble((amount(timeline.live_bytes[sample]), "bold"), " live"),
        Content.styled(f"{significant(t_ms, 4)} ms {phase}", "$foreground 60%"),
    ]
    live_bytes = [(timeline.categories[name][sample], name) for name in view.order]
    room = max(width - SWATCH_WIDTH - AMOUNT_WIDTH, 8)
    for count, name in sorted(live_bytes, reverse=True):
        if count:
            look = view.looks[name]
            text = f"{_cut(name, room):<{room}}{amount(count):>{AMOUNT_WIDTH}}"
            lines.append(Content.assemble((f"{look.glyph} ", look.colour), text))
    return Content("\n").join(lines)


def _cut(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: room - 1]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """The tab's content.

    Attributes:
        head: One sentence above everything.
        tables: The tables by the name of their view, those without rows left out.
        timeline: None where nothing was recorded; ``no_timeline`` says why.
        mark_ms: The instant at which the cursor begins; ``mark`` is its name.
    """

    head: Content
    tables: dict[str, Table]
    timeline: Timeline | None
    no_timeline: str
    mark_ms: float
    mark: str


def memory_view_of(record: Record) -> MemoryView | None:
    """The content for a record; None where the memory pass left nothing."""
    if record.memory is not None:
        return _steady_step(record, record.memory)
    pass_and_oom = out_of_memory(record)
    if pass_and_oom is None or pass_and_oom[1].timeline is None:
        return None
    return _refusal(pass_and_oom[0].name, pass_and_oom[1])


def _steady_step(record: Record, memory: Memory) -> MemoryView:
    return MemoryView(
        head=peak_line(memory),
        tables=_views(record),
        timeline=memory.timeline if memory.timeline.t_ms else None,
        no_timeline=memory.missing.get("timeline", "no event was recorded"),
        mark_ms=memory.peak_ms,
        mark="peak",
    )


_TABLE_OF_VIEW = {
    "ledger": "ledger",
    "stacks": "origins",
    "largest": "largest",
    "modules": "modules",
    "predicted": "reconciliation",
    "resident": "resident",
    "card": "card",
    "pools": "pools",
    "devices": "devices",
    "totals": "memory",
}
"""The first views in order; any other table of the section follows under its name."""


def _views(record: Record) -> dict[str, Table]:
    tables = {table.name: table for table in SECTIONS["memory"].tables(Source(record=record))}
    views = {view: tables.pop(name) for view, name in _TABLE_OF_VIEW.items() if name in tables}
    return views | tables


def _refusal(name: str, oom: Oom) -> MemoryView:
    return MemoryView(
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
