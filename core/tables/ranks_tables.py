"""Tables of several ranks: of a run, or of the files in a folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from sysbench.core.ranks.rank_rows import FileRankRow, Ranks, RankStepRow
from sysbench.core.record.record import Distributed, Spread
from sysbench.core.tables.kernel_tables import GROUP_NAME
from sysbench.core.tables.table import Cell, Column, Table, attributes, facts, tabulate
from sysbench.core.tables.timing_tables import STATISTICS

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
            about="exposed communication that could not be divided",
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
            about="collectives that waited for this rank alone, beyond the spread of the clocks",
        ),
        Column(
            "late_ns",
            lambda row: _if_matched(row, row.late_ns),
            about="time in which only this rank was missing",
        ),
        Column(
            "bounded_ns",
            lambda row: _if_matched(row, row.bounded_ns),
            about="lateness, in full, in collectives where it exceeds the clock error",
        ),
        Column("collectives", about="collectives in the rank's file"),
        Column("matched", about="collectives that the other files contain as well"),
        Column("clock_ahead_ns", about="offset of the rank's clock from the reference rank"),
        Column("clock_error_ns", about="maximum error of the offset"),
        Column("clock_spread_ns", about="the same, if collectives end together"),
        "file",
        name="ranks",
        title=RANKS_TITLE,
    )


def rank_steps_table(ranks: Ranks) -> Table:
    """One row per step and rank."""
    return tabulate(
        ranks.steps,
        "step",
        "rank",
        Column("ns", about="time of the step"),
        "exposed_ns",
        Column("waiting_ns", _divided("waiting_ns")),
        Column("transfer_ns", _divided("transfer_ns")),
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
        step,
        *(of_rank(row.rank) for row in ranks.rows),
        name="exposed",
        title="Exposed communication by step and rank, ms",
    )


def matched_table(ranks: Ranks) -> Table:
    """Collectives found in all files, longest first."""
    return tabulate(
        ranks.collectives,
        "calls",
        "kind",
        Column("purpose", heading="group name", is_optional=True, about=GROUP_NAME),
        "ranks",
        Column("bytes", is_optional=True, about="bytes of one call"),
        Column("waiting_ns", about="mean time of a rank until the last rank's arrival"),
        Column("most_waiting_ns", about="longest wait of a rank for the last one"),
        Column("transfer_ns", about="mean time from then to the end, also while ranks computed"),
        Column("algorithm_gbs", heading="alg GB/s", is_optional=True),
        Column("bus_gbs", heading="bus GB/s", is_optional=True),
        Column("group", is_optional=True),
        Column("source", is_optional=True, about="rank that sends"),
        Column("target", is_optional=True, about="rank that receives"),
        name="collectives",
        title="Matched collectives: mean waiting for the last rank, then transfer, ms",
    )


def rank_memory_table(ranks: Ranks) -> Table:
    """One row per rank."""
    return tabulate(
        ranks.memory,
        "rank",
        Column("device", is_optional=True, about="device of the snapshot"),
        Column("peak_bytes", is_optional=True),
        Column("reserved_bytes", is_optional=True),
        Column("end_bytes", about="bytes alive at the end of the recording"),
        "baseline_bytes",
        Column("largest_bytes", is_optional=True, about="bytes that this place holds at the peak"),
        Column(
            "largest",
            heading="held by",
            is_optional=True,
            about="place in the code that holds the most bytes at the peak",
        ),
        "file",
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


SPLIT = ("compute", "waiting", "transfer", "exposed", "communication")
_WORDS = {
    "step": "the whole step",
    "compute": "step without exposed",
    "waiting": "waiting for the slowest rank",
    "transfer": "waiting while data moves",
    "exposed": "waiting + transfer",
    "communication": "data moves, overlapped with computing or not",
}


def distributed_tables(block: Distributed) -> list[Table]:
    """Return all tables in reading order; some may be empty."""
    return [
        strategy_table(block),
        split_table(block),
        collective_table(block),
        processes_table(block),
        optimizer_table(block),
        host_table(block),
    ]


def strategy_table(block: Distributed) -> Table:
    """Strategy, backend and interconnect."""
    values: dict[str, Cell] = {
        **attributes(block, "ranks", "parallel", "bucket_mib", "shard_optimizer"),
        **attributes(block, "backend", "interconnect"),
        "overhead_share": block.overhead,
        "disorder_ms": block.disorder_ms,
        **({"clock_error_ms": block.clock_error_ms} if block.clock_error_ms else {}),
    }
    missing = {"bucket_mib": "this strategy has no buckets"} | block.missing
    if (reduced := block.all_reduce) is not None:
        values |= {
            "payload_bytes": reduced.payload_bytes,
            "transfer_ms": reduced.transfer.median_ms,
            "algorithm_gigabytes_per_second": reduced.algorithm_gigabytes_per_second,
            "bus_gigabytes_per_second": reduced.bus_gigabytes_per_second,
            "bandwidth_formula": reduced.formula,
        }
    return facts(
        "distributed", "Several ranks: strategy, backend and interconnect", values, missing
    )


def split_table(block: Distributed) -> Table:
    """Parts of the step. Means add up, medians need not."""
    series: dict[str, Spread | None] = {"step": block.step}
    series |= {name: getattr(block, name) for name in SPLIT}
    whole_ms = block.step.mean_ms

    def statistic(key: str) -> Column[str]:
        return Column(
            key,
            lambda part: getattr(series[part], key) if series[part] else None,
            about=STATISTICS[key],
        )

    def share(part: str) -> float | None:
        spread = series[part]
        return spread.mean_ms / whole_ms if spread else None

    return tabulate(
        series,
        Column[str]("part", lambda part: part, about="part of the step"),
        statistic("mean_ms"),
        Column("share", share, about="share of the mean step"),
        *map(statistic, ("median_ms", "ci_low_ms", "ci_high_ms")),
        Column(
            "note",
            lambda part: _WORDS[part] if series[part] else block.missing.get(part, ""),
            about="what the part contains, or why it is missing",
        ),
        name="distributed-split",
        title="Milliseconds per step, mean over ranks: compute + waiting + transfer = step",
    )


def collective_table(block: Distributed) -> Table:
    """Calls and bytes per step, by kind of collective."""
    return tabulate(
        block.collectives,
        "kind",
        "calls",
        Column("bytes", about="input or output of one rank, whichever is larger"),
        Column("sent_bytes", about="bytes that one rank sends"),
        name="distributed-collectives",
        title="Collectives per step; sent is what each rank sends if the ranks form a ring",
    )


def processes_table(block: Distributed) -> Table:
    """One row per rank, with its host if there are several."""
    return tabulate(
        block.rows,
        "rank",
        Column("step_ms", about="median step of the rank"),
        Column("compute_ms", about="step time without waiting and transfer"),
        "waiting_ms",
        Column(
            "transfer_ms", about="time without computing after all ranks had reached a collective"
        ),
        Column("exposed_ms", about="communication during which the rank computed nothing"),
        Column(
            "communication_ms",
            about="time in which collectives could move data, also while the rank computed",
        ),
        Column("last_share", about="share of the collectives that this rank reached last"),
        "device",
        Column("threads", about="compute threads of the process"),
        Column("host", is_optional=True),
        name="distributed-ranks",
        title="Ranks: medians per step; last is the share of collectives that it reached last",
    )


def optimizer_table(block: Distributed) -> Table:
    """Bytes per rank around the optimizer step."""
    return tabulate(
        block.memory,
        "rank",
        Column("moment", about="moment at which the bytes were read"),
        "parameter_bytes",
        "gradient_bytes",
        "optimizer_bytes",
        Column("total_bytes", about="bytes of all of them"),
        "allocated_bytes",
        "peak_allocated_bytes",
        name="distributed-memory",
        title="Live tensors by rank, before the first step and around a steady optimizer step",
    )


def host_table(block: Distributed) -> Table:
    """Clock offset of each host; empty for a single host."""
    return tabulate(
        block.hosts,
        "host",
        Column("node", about="digits that stand for the cluster's node in records"),
        "ranks",
        Column("clock_ahead_ms", about="offset of the host's clock from host 0"),
        Column("clock_error_ms", about="maximum error of the offset"),
        name="distributed-hosts",
        title="Hosts: offset of each clock from host 0, and its maximum error",
    )
