"""Tables of the ranks in a folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from sysbench.core.ranks.rank_rows import (
    FileRankRow,
    MatchedCollective,
    RankMemoryRow,
    Ranks,
    RankStepRow,
)
from sysbench.core.tables.kernel_tables import GROUP_NAME
from sysbench.core.tables.table import Cell, Column, Table, columns_for, tabulate

RANKS_TITLE = (
    "Ranks: computing, waiting, transfer, undivided and idle add up to the span of each; ms"
)


def _divided(name: Literal["waiting_ns", "transfer_ns"]) -> Callable[[Any], Cell]:
    """Return this part of exposed communication; unknown if no matched collective divides it."""

    def part(row: FileRankRow | RankStepRow) -> int | None:
        is_known = not row.exposed_ns or row.waiting_ns or row.transfer_ns
        return getattr(row, name) if is_known else None

    return part


def _if_matched(row: FileRankRow, value: int) -> int | None:
    return value if row.matched or not row.collectives else None


def ranks_table(ranks: Ranks) -> Table:
    """One row per rank."""
    has_undivided = any(row.undivided_ns for row in ranks.rows)
    return tabulate(
        ranks.rows,
        columns_for(
            FileRankRow,
            "rank",
            Column("device", is_optional=True),
            "span_ns",
            Column("compute_ns", about="time in which the rank computed or copied"),
            Column("waiting_ns", _divided("waiting_ns")),
            Column("transfer_ns", _divided("transfer_ns")),
            Column(
                "undivided_ns",
                lambda row: row.undivided_ns if has_undivided else None,
                is_optional=True,
                about="exposed communication that no other file has",
            ),
            Column("idle_ns", about="time in which nothing ran"),
            "exposed_ns",
            Column(
                "exposed_share",
                lambda row: row.exposed_ns / (row.span_ns or 1),
                unit="share",
                about="exposed communication over the span",
            ),
            Column(
                "last",
                lambda row: _if_matched(row, row.last),
                about="collectives that this rank reached last",
            ),
            Column(
                "late_ns",
                lambda row: _if_matched(row, row.late_ns),
                about="time in which others waited for this rank",
            ),
            Column(
                "bounded_ns",
                lambda row: _if_matched(row, row.bounded_ns),
                about="part of it that is certain despite clock errors",
            ),
            Column("collectives", about="collectives in the rank's file"),
            Column("matched", about="collectives that the other files contain as well"),
            Column("clock_ahead_ns", about="offset of the rank's clock from the reference rank"),
            Column("clock_error_ns", about="maximum error of the offset"),
            Column("clock_spread_ns", about="the same, if collectives end together"),
            "file",
        ),
        name="ranks",
        title=RANKS_TITLE,
    )


def rank_steps_table(ranks: Ranks) -> Table:
    """One row per step and rank."""
    return tabulate(
        ranks.steps,
        columns_for(
            RankStepRow,
            "step",
            "rank",
            Column("ns", about="time of the step"),
            "exposed_ns",
            Column("waiting_ns", _divided("waiting_ns")),
            Column("transfer_ns", _divided("transfer_ns")),
        ),
        name="steps",
        title="Steps by rank: exposed communication, of it waiting and transfer",
    )


def exposed_table(ranks: Ranks) -> Table:
    """Exposed communication: one row per step, one column per rank; null if the rank lacks the
    step."""
    by_step: dict[int, dict[int, int]] = {}
    for row in ranks.steps:
        by_step.setdefault(row.step, {})[row.rank] = row.exposed_ns

    def of_rank(rank: int) -> Column[tuple[int, dict[int, int]]]:
        return Column(
            f"rank{rank}_exposed_ns",
            lambda item: item[1].get(rank),
            heading=f"rank {rank}",
            about="exposed communication of the rank",
        )

    step: Column[tuple[int, dict[int, int]]] = Column(
        "step", lambda item: item[0], about="number of the step"
    )
    return tabulate(
        by_step.items(),
        (step, *(of_rank(row.rank) for row in ranks.rows)),
        name="exposed",
        title="Exposed communication by step and rank, ms",
    )


def matched_table(ranks: Ranks) -> Table:
    """Collectives found in all files, longest first."""
    return tabulate(
        ranks.collectives,
        columns_for(
            MatchedCollective,
            "calls",
            "kind",
            Column("purpose", heading="group name", is_optional=True, about=GROUP_NAME),
            "ranks",
            Column("bytes", is_optional=True, about="bytes of one call"),
            "waiting_ns",
            Column("most_waiting_ns", about="longest wait of a rank for the last one"),
            "transfer_ns",
            Column("algorithm_gbs", heading="alg GB/s", is_optional=True),
            Column("bus_gbs", heading="bus GB/s", is_optional=True),
            Column("group", is_optional=True),
            Column("source", is_optional=True, about="rank that sends"),
            Column("target", is_optional=True, about="rank that receives"),
        ),
        name="collectives",
        title="Matched collectives: mean waiting for the last rank, then transfer, ms",
    )


def rank_memory_table(ranks: Ranks) -> Table:
    """One row per rank."""
    return tabulate(
        ranks.memory,
        columns_for(
            RankMemoryRow,
            "rank",
            Column("device", is_optional=True, about="device of the snapshot"),
            Column("peak_bytes", is_optional=True),
            Column("reserved_bytes", is_optional=True),
            Column("end_bytes", about="bytes alive at the end of the recording"),
            "baseline_bytes",
            Column(
                "largest_bytes", is_optional=True, about="bytes that this place holds at the peak"
            ),
            Column(
                "largest",
                heading="held by",
                is_optional=True,
                about="place in the code that holds the most bytes at the peak",
            ),
            "file",
        ),
        name="memory",
        title="Memory of each rank's recording",
    )


def ranks_tables(ranks: Ranks) -> dict[str, list[Table]]:
    """Return non-empty tables by section."""
    sections = {
        "ranks": [ranks_table(ranks)],
        "steps": [exposed_table(ranks), rank_steps_table(ranks)],
        "collectives": [matched_table(ranks)],
        "memory": [rank_memory_table(ranks)],
    }
    kept = {name: [table for table in tables if table.rows] for name, tables in sections.items()}
    return {name: tables for name, tables in kept.items() if tables}


def ranks_notes(ranks: Ranks) -> list[str]:
    """Describe clock alignment, absent ranks and other limits."""
    notes = []
    errors = [row.clock_error_ns for row in ranks.rows if row.clock_error_ns is not None]
    spreads = [row.clock_spread_ns for row in ranks.rows if row.clock_spread_ns is not None]
    if ranks.one_clock:
        notes.append("the ranks are of one file, with one clock")
    elif len(errors) > 1:
        notes.append(
            f"clocks aligned to rank {ranks.reference} by collectives: error "
            f"{max(errors) / 1e6:.3g} ms at most, {max(spreads) / 1e6:.3g} ms if these end on "
            "all ranks at the same time"
        )
    if ranks.absent:
        names = ", ".join(map(str, ranks.absent[:16]))
        more = f" and {len(ranks.absent) - 16} more" if len(ranks.absent) > 16 else ""
        notes.append(
            f"of {ranks.world_size} ranks, these have no file: {names}{more}; waiting for them "
            "counts as transfer"
        )
    notes += ranks.missing.values()
    if ranks.left_out:
        names = ", ".join(ranks.left_out[:4])
        more = f" and {len(ranks.left_out) - 4} more" if len(ranks.left_out) > 4 else ""
        notes.append(f"of another kind and left out: {names}{more}")
    return notes
