"""Several ranks as tables: where the step went, what moved, who waited, who holds what."""

from __future__ import annotations

from ..record.record import Distributed
from .table import Cell, Row, Table, facts

SPLIT = ("compute", "waiting", "transfer", "exposed", "communication")
_WORDS = {
    "step": "the whole step",
    "compute": "step without exposed",
    "waiting": "standing still for the slowest rank",
    "transfer": "standing still while data moves",
    "exposed": "waiting + transfer",
    "communication": "data moves, behind computing or not",
}


def distributed_tables(block: Distributed) -> list[Table]:
    """All tables of the block, in reading order; some may be without rows."""
    return [
        ranks_table(block),
        split_table(block),
        collective_table(block),
        rank_table(block),
        optimizer_table(block),
    ]


def ranks_table(block: Distributed) -> Table:
    """How the ranks work together, and over what."""
    values: dict[str, Cell] = {
        "ranks": block.ranks,
        "parallel": block.parallel,
        "bucket_mib": block.bucket_mib,
        "shard_optimizer": block.shard_optimizer,
        "backend": block.backend,
        "interconnect": block.interconnect,
        "overhead_share": block.overhead,
        "disorder_ms": block.disorder_ms,
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
    return facts("distributed", "Several ranks: who works together, and over what", values, missing)


def split_table(block: Distributed) -> Table:
    """Where the step went; means add up, medians need not."""
    series = {"step": block.step, **{name: getattr(block, name) for name in SPLIT}}
    rows: list[Row] = []
    for name, spread in series.items():
        if spread is None:
            rows.append((name, None, None, None, None, None, block.missing.get(name, "")))
            continue
        share = spread.mean_ms / block.step.mean_ms
        rows.append(
            (
                *(name, spread.mean_ms, share, spread.median_ms),
                *(spread.ci_low_ms, spread.ci_high_ms, _WORDS[name]),
            )
        )
    return Table(
        name="distributed-split",
        title="Milliseconds per step, mean over ranks: compute + waiting + transfer = step",
        columns=("part", "mean_ms", "share", "median_ms", "ci_low_ms", "ci_high_ms", "note"),
        rows=tuple(rows),
    )


def collective_table(block: Distributed) -> Table:
    """What the ranks asked of each other."""
    return Table(
        name="distributed-collectives",
        title="Collectives per step; sent is what each rank sends if the ranks form a ring",
        columns=("kind", "calls", "bytes", "sent_bytes"),
        rows=tuple((row.kind, row.calls, row.bytes, row.sent_bytes) for row in block.collectives),
    )


def rank_table(block: Distributed) -> Table:
    """Rank by rank; who waits is not who is slow."""
    return Table(
        name="distributed-ranks",
        title="Ranks: medians per step; last is the share of collectives that it reached last",
        columns=(
            *("rank", "step_ms", "compute_ms", "waiting_ms", "transfer_ms", "exposed_ms"),
            *("communication_ms", "last_share", "device", "threads"),
        ),
        rows=tuple(
            (
                *(row.rank, row.step_ms, row.compute_ms, row.waiting_ms, row.transfer_ms),
                *(row.exposed_ms, row.communication_ms, row.last_share, row.device, row.threads),
            )
            for row in block.rows
        ),
    )


def optimizer_table(block: Distributed) -> Table:
    """What each rank holds around the optimizer's step."""
    return Table(
        name="distributed-memory",
        title="Live tensors by rank, before the first step and around a steady optimizer step",
        columns=(
            *("rank", "moment", "parameter_bytes", "gradient_bytes", "optimizer_bytes"),
            *("total_bytes", "allocated_bytes", "peak_allocated_bytes"),
        ),
        rows=tuple(
            (
                *(row.rank, row.moment, row.parameter_bytes, row.gradient_bytes),
                *(row.optimizer_bytes, row.total_bytes, row.allocated_bytes),
                row.peak_allocated_bytes,
            )
            for row in block.memory
        ),
    )
