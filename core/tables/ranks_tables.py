"""Tables of the ranks in a folder."""

from __future__ import annotations

from sysbench.core.ranks.rank_rows import (
    FileRankRow,
    MatchedCollective,
    RankMemoryRow,
    Ranks,
    RankStepRow,
)
from sysbench.core.tables.table import Column, Table, fields_of, tabulate

RANKS_TITLE = (
    "Ranks: computing, waiting, transfer, undivided and idle add up to the span of each; ms"
)


def ranks_table(ranks: Ranks) -> Table:
    """One row per rank."""
    has_undivided = any(row.undivided_ns for row in ranks.rows)
    has_devices = any(row.device is not None for row in ranks.rows)
    return tabulate(
        ranks.rows,
        (
            *fields_of(FileRankRow, rank="number of the process"),
            *(fields_of(FileRankRow, device="device of the row") if has_devices else ()),
            *fields_of(
                FileRankRow,
                span_ns="from the first kernel to the last",
                compute_ns="time in which the rank computed or copied",
                waiting_ns="exposed communication until the last rank's arrival",
                transfer_ns="exposed communication after the last rank's arrival",
            ),
            *(
                fields_of(FileRankRow, undivided_ns="exposed communication that no other file has")
                if has_undivided
                else ()
            ),
            *fields_of(
                FileRankRow,
                idle_ns="time in which nothing ran",
                exposed_ns="communication during which no other kernel ran",
            ),
            Column(
                "exposed_share",
                lambda row: row.exposed_ns / (row.span_ns or 1),
                unit="share",
                about="exposed communication over the span",
            ),
            *fields_of(
                FileRankRow,
                last="collectives that this rank reached last",
                late_ns="time in which others waited for this rank",
                bounded_ns="part of it that is certain despite clock errors",
            ),
            *fields_of(
                FileRankRow,
                collectives="collectives in the rank's file",
                matched="collectives that the other files contain as well",
            ),
            *fields_of(
                FileRankRow,
                clock_ahead_ns="offset of the rank's clock from the reference rank",
                clock_error_ns="maximum error of the offset",
                clock_spread_ns="the same, if collectives end together",
                file="file name",
            ),
        ),
        name="ranks",
        title=RANKS_TITLE,
    )


def rank_steps_table(ranks: Ranks) -> Table:
    """One row per step and rank."""
    return tabulate(
        ranks.steps,
        fields_of(
            RankStepRow,
            step="number of the step",
            rank="number of the process",
            ns="time of the step",
            exposed_ns="communication during which no other kernel ran",
            waiting_ns="exposed communication until the last rank's arrival",
            transfer_ns="exposed communication after the last rank's arrival",
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
        (
            *fields_of(
                MatchedCollective,
                calls="number of calls",
                kind="kind of the row",
                ranks="number of ranks",
            ),
            Column("bytes", lambda row: row.bytes, is_optional=True, about="bytes of one call"),
            *fields_of(
                MatchedCollective,
                waiting_ns="exposed communication until the last rank's arrival",
                most_waiting_ns="longest wait of a rank for the last one",
                transfer_ns="exposed communication after the last rank's arrival",
            ),
            Column(
                "algorithm_gbs",
                lambda row: row.algorithm_gbs,
                heading="alg GB/s",
                is_optional=True,
                about="bytes over transfer time",
            ),
            Column(
                "bus_gbs",
                lambda row: row.bus_gbs,
                heading="bus GB/s",
                is_optional=True,
                about="bus bandwidth as in nccl-tests",
            ),
            Column("group", lambda row: row.group, is_optional=True, about="group of ranks"),
        ),
        name="collectives",
        title="Matched collectives: mean waiting for the last rank, then transfer, ms",
    )


def rank_memory_table(ranks: Ranks) -> Table:
    """One row per rank."""
    return tabulate(
        ranks.memory,
        (
            *fields_of(
                RankMemoryRow, rank="number of the process", peak_bytes="bytes alive at the peak"
            ),
            Column(
                "reserved_bytes",
                lambda row: row.reserved_bytes,
                is_optional=True,
                about="bytes reserved from the driver",
            ),
            *fields_of(
                RankMemoryRow,
                end_bytes="bytes alive at the end of the recording",
                baseline_bytes="bytes allocated before the recording",
            ),
            Column(
                "largest_bytes",
                lambda row: row.largest_bytes,
                is_optional=True,
                about="bytes that this place holds at the peak",
            ),
            Column(
                "largest",
                lambda row: row.largest,
                heading="held by",
                is_optional=True,
                about="place in the code that holds the most bytes at the peak",
            ),
            *fields_of(RankMemoryRow, file="file name"),
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
    if len(errors) > 1:
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
