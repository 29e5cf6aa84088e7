"""Tables of a run with several ranks: parts of the step, collectives, memory."""

from __future__ import annotations

from sysbench.core.record.distributed import CollectiveRow, HostRow, MemoryRow, RankRow
from sysbench.core.record.record import Distributed, Spread
from sysbench.core.tables.table import Cell, Column, Table, attributes, columns_for, facts, tabulate
from sysbench.core.tables.timing_tables import STATISTICS

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
        rank_steps_table(block),
        split_table(block),
        collective_table(block),
        rank_table(block),
        optimizer_table(block),
        host_table(block),
    ]


def rank_steps_table(block: Distributed) -> Table:
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
        (
            Column("part", lambda part: part, about="part of the step"),
            statistic("mean_ms"),
            Column("share", share, about="share of the mean step"),
            *map(statistic, ("median_ms", "ci_low_ms", "ci_high_ms")),
            Column(
                "note",
                lambda part: _WORDS[part] if series[part] else block.missing.get(part, ""),
                about="what the part contains, or why it is missing",
            ),
        ),
        name="distributed-split",
        title="Milliseconds per step, mean over ranks: compute + waiting + transfer = step",
    )


def collective_table(block: Distributed) -> Table:
    """Calls and bytes per step, by kind of collective."""
    return tabulate(
        block.collectives,
        columns_for(
            CollectiveRow,
            "kind",
            "calls",
            Column("bytes", about="input or output of one rank, whichever is larger"),
            Column("sent_bytes", about="bytes that one rank sends"),
        ),
        name="distributed-collectives",
        title="Collectives per step; sent is what each rank sends if the ranks form a ring",
    )


def rank_table(block: Distributed) -> Table:
    """One row per rank, with its host if there are several."""
    return tabulate(
        block.rows,
        columns_for(
            RankRow,
            "rank",
            Column("step_ms", about="median step of the rank"),
            Column("compute_ms", about="step time without waiting and transfer"),
            "waiting_ms",
            Column(
                "transfer_ms", about="time from the last rank's arrival at a collective to its end"
            ),
            Column("exposed_ms", about="communication during which the rank computed nothing"),
            Column("communication_ms", about="time in collectives: waiting and transfer"),
            Column("last_share", about="share of the collectives that this rank reached last"),
            "device",
            Column("threads", about="compute threads of the process"),
            Column("host", is_optional=True),
        ),
        name="distributed-ranks",
        title="Ranks: medians per step; last is the share of collectives that it reached last",
    )


def optimizer_table(block: Distributed) -> Table:
    """Bytes per rank around the optimizer step."""
    return tabulate(
        block.memory,
        columns_for(
            MemoryRow,
            "rank",
            Column("moment", about="moment at which the bytes were read"),
            "parameter_bytes",
            "gradient_bytes",
            "optimizer_bytes",
            Column("total_bytes", about="bytes of all of them"),
            "allocated_bytes",
            "peak_allocated_bytes",
        ),
        name="distributed-memory",
        title="Live tensors by rank, before the first step and around a steady optimizer step",
    )


def host_table(block: Distributed) -> Table:
    """Clock offset of each host; empty for a single host."""
    return tabulate(
        block.hosts,
        columns_for(
            HostRow,
            "host",
            Column("node", about="digits that stand for the cluster's node in records"),
            "ranks",
            Column("clock_ahead_ms", about="offset of the host's clock from host 0"),
            Column("clock_error_ms", about="maximum error of the offset"),
        ),
        name="distributed-hosts",
        title="Hosts: offset of each clock from host 0, and its maximum error",
    )
